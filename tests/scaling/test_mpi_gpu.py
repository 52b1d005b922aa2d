"""Training on MPI in GPU mode: by way of the host and from GPU to GPU, two ranks are one process with the doubled batch."""

from __future__ import annotations

import sys

import pytest
from mpi_cases import BATCH, GPU_CASES, make_files, save, solver_of
from mpi_run import NEEDED, SUPPORT, mpiexec, same

from minicaffe.mode import set_mode_cpu, set_mode_gpu

pytest.importorskip("mpi4py", reason="the extra minicaffe[mpi] is not installed")
pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")
pytestmark = [pytest.mark.gpu, NEEDED]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The results of two ranks, both ways, and of one process; all in GPU mode."""
    folder = tmp_path_factory.mktemp("mpi_gpu")
    make_files(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        set_mode_gpu()
        try:
            for case in GPU_CASES:
                solver = solver_of(case, BATCH * 2, "none")
                solver.solve()
                save(solver, folder / f"{case}_alone.npz")
        finally:
            set_mode_cpu()
    status, text = mpiexec(
        "-n", "2", sys.executable, str(SUPPORT / "mpi_cases.py"), str(folder), "gpu", folder=folder, seconds=120
    )
    assert status == 0, text
    return folder


@pytest.mark.parametrize("way", ["staged", "device"])
@pytest.mark.parametrize("case", GPU_CASES)
def test_two_ranks_are_one_process_with_their_batches_together(case, way, folder):
    if not (folder / f"{case}_{way}.npz").exists():
        pytest.skip("this MPI takes no addresses of device memory")
    same(folder / f"{case}_{way}.npz", folder / f"{case}_alone.npz")


@pytest.mark.parametrize("case", GPU_CASES)
def test_gradients_stay_on_the_device_where_mpi_takes_it(case, folder):
    if not (folder / f"{case}_device.txt").exists():
        pytest.skip("this MPI takes no addresses of device memory")
    staged, device = (int((folder / f"{case}_{way}.txt").read_text()) for way in ("staged", "device"))
    assert device < staged / 2


def test_a_gpu_chosen_by_number_is_not_replaced(tmp_path):
    make_files(tmp_path)
    (tmp_path / "chosen.py").write_text(CHOSEN)
    for number, expected in (("0", "chosen 0"), ("", "own")):
        status, text = mpiexec("-n", "2", sys.executable, "chosen.py", number, folder=tmp_path)
        assert status == 0, text
        assert text.split("\n").count(expected) == 1


CHOSEN = """
import sys
import minicaffe
from minicaffe import mpi
from minicaffe.cuda.device import current, installed_gpus
if sys.argv[1]:
    minicaffe.set_device(int(sys.argv[1]))
minicaffe.set_mode_gpu()
taken = []
mpi.job.set_device = lambda number: taken.append(number)
with mpi.training() as job:
    everyones = job.gather(taken)
    count = len(installed_gpus())
    if sys.argv[1]:
        assert everyones == [[], []]
        print("chosen", current().ordinal)
    else:
        assert everyones == [[rank % count] for rank in range(job.count)]
        print("own")
"""
