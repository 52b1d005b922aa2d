"""Training on MPI: N ranks are one process with N times the batch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from mpi_cases import BATCH, CASES, make_files, save, solver_of
from mpi_run import NEEDED, SUPPORT, mpiexec, same

pytest.importorskip("mpi4py", reason="the extra minicaffe[mpi] is not installed")
pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")
pytestmark = NEEDED


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The results of all cases by 2 and 3 ranks and alone; resumed: 1 -> 2, 1 -> 3, 2 -> 3 and 2 -> 1."""
    folder = tmp_path_factory.mktemp("mpi")
    make_files(folder)
    before = os.getcwd()
    os.chdir(folder)
    try:
        alone(folder)
        for count in (2, 3):
            status, text = mpiexec("-n", str(count), sys.executable, str(SUPPORT / "mpi_cases.py"), str(folder), folder=folder)
            assert status == 0, text
        solver = solver_of("Adam", 6, "none")
        solver.solve("from_2_iter_4.solverstate")
        save(solver, folder / "on_2_1.npz")
    finally:
        os.chdir(before)
    return folder


def alone(folder: Path) -> None:
    for case in CASES:
        for count in (2, 3):
            solver = solver_of(case, BATCH * count, "none")
            solver.solve()
            save(solver, folder / f"{case}_{count}_alone.npz")
    solver = solver_of("Adam", 6, "from_1", snapshot=4)
    solver.solve()
    save(solver, folder / "on_alone.npz")


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_ranks_are_one_process_with_their_batches_together(case, count, folder):
    same(folder / f"{case}_{count}.npz", folder / f"{case}_{count}_alone.npz")


@pytest.mark.parametrize("way", ["1_2", "1_3", "2_3", "2_1"])
def test_a_snapshot_of_some_ranks_goes_on_with_others(way, folder):
    same(folder / f"on_{way}.npz", folder / "on_alone.npz")


@pytest.mark.parametrize("count", [2, 3])
def test_as_many_ranks_go_on_bit_for_bit_with_random_numbers_of_their_own(count, folder):
    with np.load(folder / f"straight_{count}.npz") as straight, np.load(folder / f"resumed_{count}.npz") as resumed:
        for name in straight.files:
            np.testing.assert_array_equal(straight[name], resumed[name])


@pytest.mark.parametrize("count", [2, 3])
def test_a_signal_to_one_rank_stops_all_in_the_same_iteration(count, folder):
    assert [(folder / f"stopped_{count}_{rank}.txt").read_text() for rank in range(count)] == ["5"] * count
    assert (folder / f"stopped_{count}_iter_5.solverstate").is_file()


def test_batch_norms_means_are_each_ranks_own(folder):
    assert (folder / "means_3.txt").read_text() == "3"
