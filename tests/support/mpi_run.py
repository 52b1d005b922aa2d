"""mpiexec for the tests of training on MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from two_hosts import search_path

MPIEXEC = shutil.which("mpiexec", path=search_path())
NEEDED = pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec")

SUPPORT = Path(__file__).parent
TRAIN = (sys.executable, "-m", "minicaffe", "train")
SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONPATH": str(SUPPORT),
}


def mpiexec(*words: str, folder: Path, seconds: float = 120) -> tuple[int, str]:
    """Run mpiexec. Return its exit status and its output."""
    done = subprocess.run(
        [str(MPIEXEC), *words],
        cwd=folder,
        env=os.environ | SETTINGS,
        timeout=seconds,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    return done.returncode, done.stdout


def same(found: Path, expected: Path) -> None:
    """Assert that two files are equal up to float32 rounding over some iterations."""
    with np.load(found) as theirs, np.load(expected) as ours:
        assert theirs.files == ours.files
        for name in ours.files:
            np.testing.assert_allclose(theirs[name], ours[name], rtol=2e-4, atol=2e-6, err_msg=f"{found.name} {name}")


def wait_for(text: str, log: Path) -> None:
    """Wait until log has text, at most 120 s."""
    until = time.monotonic() + 120
    while text not in log.read_text(errors="replace"):
        assert time.monotonic() < until, log.read_text(errors="replace")
        time.sleep(0.1)
