"""The working directory of the tests of `minicaffe detect --out`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from detecting import make_folder


@pytest.fixture(scope="session")
def made_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each test gets a copy of."""
    path = tmp_path_factory.mktemp("made")
    make_folder(path)
    return path


@pytest.fixture
def folder(made_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a detector and seven images of seven sizes, the fourth of which is invalid."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(made_folder, tmp_path, dirs_exist_ok=True)
    return tmp_path
