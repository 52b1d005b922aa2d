"""The working directory of the tests of `minicaffe detect --out`."""

from __future__ import annotations

from pathlib import Path

import pytest
from detecting import make_folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a detector and seven images of seven sizes, the fourth of which is invalid."""
    monkeypatch.chdir(tmp_path)
    make_folder(tmp_path)
    return tmp_path
