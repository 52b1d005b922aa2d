"""The working directory of the tests of `minicaffe detect --out`. Without Ray, or mpi4py and mpiexec, the tests of these are
not collected, unless a command names their file."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from detecting import make_folder
from mpi_run import MPIEXEC

collect_ignore = [
    *([] if find_spec("ray") else ["test_ray.py", "test_ray_hosts.py"]),
    *([] if find_spec("mpi4py") and MPIEXEC else ["test_mpi.py", "test_mpi_faults.py", "test_mpi_gpu.py"]),
]


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
