"""Whole detection nets in TEST, compared with PyTorch, which runs the same layers, and onnxruntime, which runs our export.

    python -m benchmarks nets --threads 1 [--net "Faster R-CNN ZF=FILE" --net ...] [--write]

float32, one image of 600 x 1000, random weights; without --net, the nets of examples/shapes. Each is a test prototxt with the
inputs data and im_info. Blobs are compared first, with the same rois, because nearly equal scores may swap. The
peak is that of a separate process that makes the net and runs it three times, like `minicaffe run` and `detect`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import minicaffe
from benchmarks._child import gigabytes, in_child
from benchmarks._contenders import contenders, leave_out, same
from benchmarks._nets import random_net
from benchmarks._report import Row, Table, named_files, options
from benchmarks._timing import interleaved

SHAPES = Path(__file__).parents[1] / "examples" / "shapes"
DEFAULT = {"shapes R-FCN": SHAPES / "rfcn/test.prototxt", "shapes Faster R-CNN": SHAPES / "faster_rcnn/test.prototxt"}
SIZE = (600, 1000)


def main(arguments: Sequence[str] = ()) -> None:
    parser = options("nets", __doc__ or "")
    parser.add_argument("--net", action="append", default=[], metavar="NAME=FILE", help="a detection net's test prototxt")
    given = parser.parse_args(arguments)
    table = Table("nets", ("net", "threads"), ("minicaffe", "PyTorch", "onnxruntime"), ("rois", "peak GB"))
    for name, file in (named_files(given.net) or DEFAULT).items():
        if given.rows in name:
            add(table, name, file, given.threads)
    if given.write:
        table.write()


def add(table: Table, name: str, file: Path, threads: int) -> None:
    """One net's row."""
    _, peak = in_child(run_outputs, str(file))
    net = random_net(file, (1, 3, *SIZE))
    net.forward()
    rois = len(net.blobs["rois"].read_data())
    runs = contenders(net, table.contenders)
    if "PyTorch" in runs:
        check_torch(name, net)
    times = interleaved(runs, seconds=3)
    table.add(Row((name, str(threads)), times, (str(rois), gigabytes(peak))))


def check_torch(name: str, net: Any) -> None:
    """Exit unless PyTorch agrees in every blob (with our rois), and makes about as many rois itself."""
    from benchmarks._torch import Graph

    graph, rois = Graph(net, "cpu"), len(net.blobs["rois"].read_data())
    for blob, theirs in graph.comparable().items():
        same(f"{name}, blob {blob}: minicaffe and PyTorch", net.blobs[blob].read_data(), theirs, 1e-3)
    if abs((found := graph.count("rois")) - rois) > rois / 20:  # slightly different: torchvision's NMS adds no 1 to sides
        leave_out("PyTorch's time tells little", ValueError(f"{name}: {rois} rois here, {found} there"))


def run_outputs(file: str) -> None:
    """The work of `minicaffe run` and `detect`, keeping only the outputs; the parent reads its peak memory."""
    net = random_net(Path(file), (1, 3, *SIZE), **KEEP)
    for _ in range(3):
        net.forward()


KEEP: dict[str, Any] = {"keep": "outputs"} if "keep" in (minicaffe.Net.__init__.__kwdefaults__ or {}) else {}
