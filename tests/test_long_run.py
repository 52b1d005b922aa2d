"""Memory stays flat: a short run of tests/support/long_run.py."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import long_run
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks for memory in Linux's way")


@pytest.mark.parametrize(("make", "count"), [(long_run.training, 300), (long_run.detections, 40)])
def test_memory_stays_flat(
    make: Callable[[], Callable[[], object]], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """measure itself ends with SystemExit where it grows."""
    monkeypatch.chdir(tmp_path)
    assert len(long_run.measure("runs", make(), count)) == count // max(1, count // long_run.POINTS)


def test_memory_that_grows_is_found() -> None:
    kept: list[bytearray] = []
    with pytest.raises(SystemExit, match="memory grows"):
        long_run.measure("runs", lambda: kept.append(bytearray(b"x" * 2**24)), 8)
