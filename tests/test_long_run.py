"""Memory stays flat: short runs of tests/support/long_run.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import long_run
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks for memory in Linux's way")


def test_memory_stays_flat(tmp_path: Path) -> None:
    """In a process of its own: what other tests keep, or let go, moves the figure by more than GROWTH. By half-way most tables
    of calls have been made once; after 20 sizes they had not, and the allocator's waves came on top."""
    command = [sys.executable, long_run.__file__, "--training", "300", "--detections", "120"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        "300 iterations of training",
        "120 detections of changing sizes",
    ]


def test_memory_that_grows_is_found() -> None:
    kept: list[bytearray] = []
    with pytest.raises(SystemExit, match="memory grows"):
        long_run.measure("runs", lambda: kept.append(bytearray(b"x" * 2**24)), 8)
