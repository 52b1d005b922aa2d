"""A training step, end to end: reading an image, forward, backward, update; only minicaffe, with compiled loops and without.

    python -m benchmarks train --threads 1 [--net "ZF end to end=train.prototxt" --net ...] [--write]

float32, images of 600 x 1000 with 5 boxes each, in memory; random weights; without --net, the nets of examples/shapes. Each is
a train prototxt that begins with RoIData (or its Python layer). SGD with momentum. Medians of 5 steps after the first, in
separate processes, whose losses and peak memory are in the last columns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks._child import gigabytes, in_child
from benchmarks._contenders import ways
from benchmarks._nets import randomise
from benchmarks._report import OURS, Row, Table, named_files, options
from benchmarks._smoke import usual
from minicaffe import SGDSolver, kernels, set_random_seed
from minicaffe.data.roidb_entry import Entry
from minicaffe.formats.prototxt import read_net
from minicaffe.layers.proposal.roi_data import RoIData
from minicaffe.proto import caffe_pb2

SHAPES = Path(__file__).parents[1] / "examples" / "shapes"
DEFAULT = {"shapes R-FCN": SHAPES / "rfcn/train.prototxt", "shapes Faster R-CNN": SHAPES / "faster_rcnn/train.prototxt"}
STEPS = usual(5, 1)
SIZE = usual((600, 1000), (128, 192))


def main(arguments: Sequence[str] = ()) -> None:
    parser = options("train", __doc__ or "")
    parser.add_argument("--net", action="append", default=[], metavar="NAME=FILE", help="a detection net's train prototxt")
    given = parser.parse_args(arguments)
    table = Table("train", ("training step", "threads"), OURS, ("loss", "peak GB"))
    for name, file in (named_files(given.net) or DEFAULT).items():
        if given.rows in name:
            found = {contender: in_child(steps, str(file), way) for contender, way in ways().items()}
            losses = " / ".join(f"{loss:.3g}" for (_, loss), _ in found.values())
            peaks = " / ".join(gigabytes(peak) for _, peak in found.values())
            times = {contender: seconds for contender, ((seconds, _), _) in found.items()}
            table.add(Row((name, str(given.threads)), times, (losses, peaks)))
    if given.write:
        table.write()


def steps(file: str, way: str) -> tuple[float, float]:
    """Median seconds of a step in this way of loops, and the last loss, which must be finite."""
    with kernels.using(way):
        return _steps(file)


def random_solver(file: str) -> SGDSolver:
    """Return the solver of a train prototxt, with random weights and images."""
    set_random_seed(0)
    param = caffe_pb2.SolverParameter(base_lr=1e-4, momentum=0.9, weight_decay=5e-4, lr_policy="fixed", display=0)
    param.train_net_param.CopyFrom(read_net(file).param)
    solver = SGDSolver(param)
    reader = next(layer for layer in solver.net.layers if isinstance(layer, RoIData))
    reader.set_roidb(images(reader.num_classes))
    randomise(solver.net)
    return solver


def _steps(file: str) -> tuple[float, float]:
    solver = random_solver(file)
    taken = []
    for _ in range(STEPS + 1):
        start = time.perf_counter()
        solver.step(1)
        taken.append(time.perf_counter() - start)
    loss = sum(
        float(solver.net.blobs[name].read_data().sum()) for name, weight in solver.net.blob_loss_weights.items() if weight
    )
    if not np.isfinite(loss):
        raise SystemExit(f"{file}: the loss is {loss}")
    return statistics.median(taken[1:]), loss


def images(classes: int) -> list[Entry]:
    """Four images of noise."""
    random = np.random.default_rng(0)
    entries: list[Entry] = []
    for _ in range(4):
        ends = np.array(SIZE[::-1]) / [1000, 600]
        corners = ends * random.uniform(0, [600, 300], (5, 2))
        boxes = np.concatenate([corners, corners + ends * random.uniform(60, [390, 290], (5, 2))], axis=1)
        pixels = random.integers(0, 256, (*SIZE, 3), np.uint8)
        entries.append({"image": pixels, "boxes": boxes, "gt_classes": random.integers(1, classes, 5)})
    return entries
