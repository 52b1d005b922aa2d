"""The program of the ranks of benchmarks/scale_mpi.py: training steps with and without the exchange, in turns.

mpiexec -n 2 python -m benchmarks._mpi_steps TRAIN.prototxt STEPS
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from benchmarks._nets import randomise
from benchmarks.train import images
from minicaffe import SGDSolver, set_random_seed
from minicaffe.formats.prototxt import read_net
from minicaffe.layers.proposal.roi_data import RoIData
from minicaffe.proto import caffe_pb2
from minicaffe.scaling import mpi
from minicaffe.scaling.mpi.job import Job, RankExchange
from minicaffe.training.exchange import Exchange


def main(file: str, steps: int) -> None:
    with mpi.training() as job:
        set_random_seed(0)
        param = caffe_pb2.SolverParameter(base_lr=1e-5, momentum=0.9, lr_policy="fixed", display=0, average_loss=1)
        param.train_net_param.CopyFrom(read_net(file).param)
        solver = SGDSolver(param, seed=0)
        reader = next(layer for layer in solver.net.layers if isinstance(layer, RoIData))
        reader.set_roidb(images(reader.num_classes))
        randomise(solver.net)
        with job.train(solver):
            found = measured(solver, job, steps)
        if job.rank == 0:
            print("RESULT", json.dumps(found))


def measured(solver: SGDSolver, job: Job, steps: int) -> dict[str, float]:
    """Medians of seconds over the steps after the first pair, of the slowest rank; waited: after the backward pass."""
    together, alone = solver.exchange, Exchange()
    assert isinstance(together, RankExchange)
    waited, backward = [0.0], [0.0]
    began = [0.0]
    wait = job.wait

    def timed(request: object, what: str) -> None:
        start = time.perf_counter()
        wait(request, what)
        waited[-1] += time.perf_counter() - start

    taken: dict[str, list[float]] = {"with": [], "without": []}
    first, last = len(solver.net.layers) - 1, 0
    solver.net.before_backward(lambda i: began.__setitem__(0, time.perf_counter()) if i == first else None)
    solver.net.after_backward(lambda i: backward.append(time.perf_counter() - began[0]) if i == last else None)
    for _ in range(steps + 1):
        for name, exchange in (("without", alone), ("with", together)):
            job.gather(0)  # all start together
            solver.exchange = exchange
            waited.append(0.0)
            job.wait = timed  # type: ignore[method-assign]
            start = time.perf_counter()
            solver._iteration()
            taken[name].append(time.perf_counter() - start)
            job.wait = wait  # type: ignore[method-assign]
    sums = together.sums
    slowest = [max(each) for each in zip(*job.gather(taken["with"][1:]), strict=True)]
    without = [max(each) for each in zip(*job.gather(taken["without"][1:]), strict=True)]
    return {
        "with": statistics.median(slowest),
        "without": statistics.median(without),
        "waited": statistics.median(waited[2::2][1:]),
        "backward": statistics.median(backward[1:]),
        "bytes": sums.bytes,
        "buckets": len(sums.buckets),
        "last": sum(blob.count * blob.dtype.itemsize for blob in sums.buckets[-1].blobs),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
