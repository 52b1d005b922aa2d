"""Small trainings for test_mpi.py: what all ranks of `mpiexec python mpi_cases.py FOLDER` train, and one process alone.

A case's net takes BATCH records a rank; alone it takes as many as all ranks together. Weights go to FOLDER/CASE_N.npz.
`mpi_cases.py FOLDER gpu` trains GPU_CASES in GPU mode, first with gradients that go by way of the host, then from GPU to GPU:
MPI is told to take the device's addresses, which on the test device are the host's.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np
from training_case import RULES, make_rows

from minicaffe.formats.prototxt import parse_solver
from minicaffe.training.signals import signal_actions
from minicaffe.training.solver import SGDSolver
from minicaffe.training.solvers import get_solver

BATCH, ITERATIONS = 3, 9

DATA = """layer {{ name: "data" type: "HDF5Data" top: "data" top: "label"
  hdf5_data_param {{ source: "files.txt" batch_size: {batch} shuffle: true }} }}
"""
NET = """
layer { name: "ip1" type: "InnerProduct" bottom: "data" top: "ip1" inner_product_param { num_output: 8
  weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2" inner_product_param { num_output: 3
  weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""
SHARED = """
layer { name: "ip0" type: "InnerProduct" bottom: "data" top: "ip0" param { name: "w" } param { name: "b" }
  inner_product_param { num_output: 6 weight_filler { type: "xavier" } } }
layer { name: "tanh" type: "TanH" bottom: "ip0" top: "tanh" }
layer { name: "again" type: "InnerProduct" bottom: "tanh" top: "again" param { name: "w" } param { name: "b" }
  inner_product_param { num_output: 6 weight_filler { type: "xavier" } } }
layer { name: "frozen" type: "InnerProduct" bottom: "again" top: "frozen" param { lr_mult: 0 } param { lr_mult: 0 }
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
layer { name: "ip2" type: "InnerProduct" bottom: "frozen" top: "ip2" inner_product_param { num_output: 3
  weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""
TEST = """layer { name: "data" type: "HDF5Data" top: "data" top: "label" include { phase: TEST }
  hdf5_data_param { source: "files.txt" batch_size: 5 } }
"""

CASES: dict[str, tuple[str, str, str]] = {
    **{kind: (kind, NET, "weight_decay: 0.001") for kind in RULES},
    "iter_size": ("SGD", NET, "iter_size: 2 average_loss: 3"),
    "clip": ("SGD", NET, "clip_gradients: 0.3 regularization_type: 'L1' weight_decay: 0.01"),
    "shared": ("SGD", SHARED, ""),
    "after_backward": ("Adam", SHARED, "layer_wise_reduce: false"),
    "tested": ("SGD", NET, "display: 3 test_iter: 2 test_interval: 4"),
}
"""Solver type, net, and what else the solver says."""


GPU_CASES = ("Adam", "clip", "shared", "after_backward")

RANDOM = """layer { name: "data" type: "ImageData" top: "data" top: "label" transform_param { mirror: true scale: 0.01 }
  image_data_param { source: "images.txt" batch_size: 2 shuffle: true } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 9
  weight_filler { type: "xavier" } } }
layer { name: "drop" type: "Dropout" bottom: "ip" top: "ip" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip" top: "ip2" inner_product_param { num_output: 3
  weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""
"""A net in which ranks draw different random numbers: mirroring and Dropout."""


def make_files(folder: Path) -> None:
    """Write the records: 31 and 12 rows of 6 numbers; seven images."""
    from PIL import Image

    random = np.random.default_rng(4)
    make_rows(folder, random)
    for i in range(7):
        Image.fromarray(random.integers(0, 256, (4, 5, 3), np.uint8)).save(folder / f"{i}.png")
    (folder / "images.txt").write_text("".join(f"{i}.png {i % 3}\n" for i in range(7)))


def solver_text(case: str, batch: int, prefix: str, **more: object) -> str:
    """Return a case's solver prototxt, its net in it."""
    kind, net, settings = CASES[case]
    data = DATA.format(batch=batch)
    if "test_iter" in settings:
        data = data.replace('top: "label"', 'top: "label" include { phase: TRAIN }') + TEST
    numbers = {"max_iter": ITERATIONS, "random_seed": 5, "snapshot_after_train": "false"} | more
    text = " ".join(f"{name}: {value}" for name, value in numbers.items())
    return f'type: "{kind}" {RULES[kind]} {settings} {text} snapshot_prefix: "{prefix}" net_param {{ {data + net} }}'


def solver_of(case: str, batch: int, prefix: str, **more: object) -> SGDSolver:
    return get_solver(parse_solver(solver_text(case, batch, prefix, **more)))


def random_solver(prefix: str) -> SGDSolver:
    text = f'{RULES["Adam"]} max_iter: 8 snapshot: 4 random_seed: 5 snapshot_prefix: "{prefix}" snapshot_after_train: false'
    return get_solver(parse_solver(f'type: "Adam" {text} net_param {{ {RANDOM} }}'))


def save(solver: SGDSolver, path: Path) -> None:
    """Weights, histories and the loss shown."""
    arrays = [blob.data for blob in solver.net.learnable_params] + solver.history
    np.savez(path, *arrays, np.array(solver.smoothed_loss))


def main(folder: Path) -> None:
    """Every case in the ranks; then one stopped by a signal, and one resumed from a snapshot of other ranks."""
    from minicaffe.scaling import mpi
    from minicaffe.scaling.mpi import buckets

    os.chdir(folder)
    buckets.BYTES = 100  # several buckets in so small a net
    with mpi.training(timeout=60) as job:
        for case in CASES:
            solver = solver_of(case, BATCH, "none")
            with job.train(solver):
                solver.solve()
            if job.rank == 0:
                save(solver, folder / f"{case}_{job.count}.npz")
        own_statistics(job, folder)
        stop_by_signal(job, folder)
        go_on(job, folder)
        go_on_with_own_numbers(job, folder)


def on_gpu(folder: Path) -> None:
    """GPU_CASES both ways, to FOLDER/CASE_WAY.npz; to FOLDER/CASE_WAY.txt how many bytes came from the device meanwhile.
    On a GPU itself device memory is given to MPI only where MPI says that it takes it."""
    import minicaffe
    from minicaffe.cuda.device import current
    from minicaffe.scaling import mpi
    from minicaffe.scaling.mpi import buckets, device_buckets

    os.chdir(folder)
    buckets.BYTES = 100
    minicaffe.set_mode_gpu()
    with mpi.training(timeout=60) as job:
        can = "not a GPU" in current().name or device_buckets.cuda_aware()
        for way in ("staged", "device")[: 1 + can]:
            device_buckets.cuda_aware = lambda way=way: way == "device"
            for case in GPU_CASES:
                solver = solver_of(case, BATCH, "none")
                with job.train(solver):
                    solver.step(1)
                    current().transfers.reset()
                    solver.step(ITERATIONS - 1)
                    moved = current().transfers.to_host
                if job.rank == 0:
                    save(solver, folder / f"{case}_{way}.npz")
                    (folder / f"{case}_{way}.txt").write_text(str(moved))


def own_statistics(job, folder: Path) -> None:
    """BatchNorm's means are each rank's own, its trained weights are not: no check takes that for a difference."""
    CASES["batch_norm"] = ("SGD", NET.replace("ReLU", "BatchNorm"), "display: 2")
    solver = solver_of("batch_norm", BATCH, "none")
    with job.train(solver):
        solver.step(3)
        solver.step(3)
    with job.train(solver):
        solver.step(3)
    means = job.gather(solver.net.params["relu1"][0].data.tolist())
    if job.rank == 0:
        (folder / f"means_{job.count}.txt").write_text(str(len({str(mean) for mean in means})))


def stop_by_signal(job, folder: Path) -> None:
    """Send SIGTERM to the last rank in iteration 4: all stop after it, and rank 0 writes a snapshot."""
    solver = solver_of("SGD", BATCH, f"stopped_{job.count}", snapshot_after_train="true")
    last = job.rank == job.count - 1
    solver.add_callback(lambda: os.kill(os.getpid(), signal.SIGTERM) if last and solver.iter == 4 else None, lambda: None)
    with job.train(solver), signal_actions() as request:
        solver.set_action_function(request)
        solver.solve()
    (folder / f"stopped_{job.count}_{job.rank}.txt").write_text(str(solver.iter))


def go_on(job, folder: Path) -> None:
    """From the snapshots that any other number of ranks (alone: 1) left, of 6 records an iteration."""
    for state in sorted(folder.glob("from_*_iter_4.solverstate")):
        ranks = state.name.split("_")[1]
        if 6 % job.count == 0:
            solver = solver_of("Adam", 6 // job.count, f"on_{ranks}_{job.count}")
            with job.train(solver):
                solver.solve(state)
            if job.rank == 0:
                save(solver, folder / f"on_{ranks}_{job.count}.npz")
    if 6 % job.count == 0:
        solver = solver_of("Adam", 6 // job.count, f"from_{job.count}", snapshot=4)
        with job.train(solver):
            solver.solve()


def go_on_with_own_numbers(job, folder: Path) -> None:
    """Resume a snapshot with the same number of ranks, each with its own random numbers."""
    straight, resumed = random_solver(f"random_{job.count}"), random_solver("none")
    with job.train(straight):
        straight.solve()
    with job.train(resumed):
        resumed.restore(f"random_{job.count}_iter_4.solverstate")
        resumed.step(4)
    if job.rank == 0:
        save(straight, folder / f"straight_{job.count}.npz")
        save(resumed, folder / f"resumed_{job.count}.npz")


if __name__ == "__main__":
    (on_gpu if "gpu" in sys.argv else main)(Path(sys.argv[1]))
