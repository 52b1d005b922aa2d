"""Whole nets in TEST: PyTorch runs the same layers, onnxruntime our export, OpenCV 4 the prototxt.

    python -m benchmarks nets --threads 1 [--net "Faster R-CNN ZF=FILE" --net ...] [--rows MobileNet] [--write]

float32, one image, random weights. Detection nets are those of --net, else of examples/shapes: test prototxts with the inputs
data and im_info, on 600 x 1000. The others are small nets on images of their own sizes, written by _architectures.py. Results
are compared first: PyTorch's blobs with the same rois, and the outputs, whose rows may swap where scores are nearly equal. With
compiled loops the nets keep the outputs alone, as onnxruntime's do, with NumPy alone every blob, which takes no longer. The
peak is that of a separate process that makes the net and runs it three times, like `minicaffe run` and `detect`: with NumPy
alone / with compiled loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._architectures import densenet121, mobilenet, mobilenet_ssd, resnet50, segnet, shufflenet, squeezenet
from benchmarks._child import gigabytes, in_child
from benchmarks._contenders import NAMES, PEERS, check, contenders, leave_out, nearly_all, same, same_rows, ways
from benchmarks._nets import random_net
from benchmarks._report import Row, Table, named_files, options
from benchmarks._smoke import usual
from benchmarks._timing import interleaved
from minicaffe import kernels

SHAPES = Path(__file__).parents[1] / "examples" / "shapes"
DEFAULT = {"shapes R-FCN": SHAPES / "rfcn/test.prototxt", "shapes Faster R-CNN": SHAPES / "faster_rcnn/test.prototxt"}
SIZE = usual((600, 1000), (96, 128))
SMALL = {
    "MobileNet v1 (224)": (mobilenet, (224, 224)),
    "MobileNet-SSD (300)": (mobilenet_ssd, (300, 300)),
    "ShuffleNet (224)": (shufflenet, (224, 224)),
    "DenseNet-121 (224)": (densenet121, (224, 224)),
    "SqueezeNet (227)": (squeezenet, (227, 227)),
    "ResNet-50 (224)": (resnet50, (224, 224)),
    "SegNet (360 x 480)": (segnet, (360, 480)),
}
"""Nets without rois: their prototxts and the sizes of their images."""
DETECTORS_PEERS = tuple(name for name in PEERS if name != "OpenCV")
"""OpenCV imports no Python layer."""


def main(arguments: Sequence[str] = ()) -> None:
    parser = options("nets", __doc__ or "")
    parser.add_argument("--net", action="append", default=[], metavar="NAME=FILE", help="a detection net's test prototxt")
    given = parser.parse_args(arguments)
    table = Table("nets", ("net", "threads"), NAMES, ("rois", "peak GB"))
    for name, file in (named_files(given.net) or DEFAULT).items():
        if given.rows in name:
            add(table, name, file, SIZE, given.threads)
    for name, (text, size) in usual(SMALL, {"ShuffleNet (224)": SMALL["ShuffleNet (224)"]}).items():
        if given.rows in name:
            add(table, name, text(), size, given.threads)
    if given.write:
        table.write()


def add(table: Table, name: str, source: Path | str, size: tuple[int, int], threads: int) -> None:
    """Add one net's row."""
    peaks = [in_child(run_outputs, source, size, way)[1] for way in ways().values()]
    net = random_net(source, (1, 3, *size))
    net.forward()
    detects = "rois" in net.blobs
    runs = contenders(net, DETECTORS_PEERS if detects else PEERS)
    if detects and "PyTorch" in runs:
        check_torch(name, net)
    compared = {peer: run for peer, run in runs.items() if not (detects and peer == "PyTorch")}
    compare = same_rows if detects or "detection_out" in net.outputs else nearly_all if name.startswith("SegNet") else same
    check(name, compared, compare)
    rois = str(len(net.blobs["rois"].read_data())) if detects else ""
    table.add(Row((name, str(threads)), interleaved(runs, seconds=3), (rois, " / ".join(map(gigabytes, peaks)))))


def check_torch(name: str, net: Any) -> None:
    """Exit unless PyTorch agrees in every blob (with our rois), and makes about as many rois itself."""
    from benchmarks._torch import Graph

    graph, rois = Graph(net, "cpu"), len(net.blobs["rois"].read_data())
    for blob, theirs in graph.comparable().items():
        same(f"{name}, blob {blob}: minicaffe and PyTorch", net.blobs[blob].read_data(), theirs, 1e-3)
    if abs((found := graph.count("rois")) - rois) > rois / 20:  # slightly different: torchvision's NMS adds no 1 to sides
        leave_out("PyTorch's time tells little", ValueError(f"{name}: {rois} rois here, {found} there"))


def run_outputs(source: Path | str, size: tuple[int, int], way: str) -> None:
    """Do the work of `minicaffe run` and `detect`, keeping only the outputs. The parent reads the peak memory."""
    with kernels.using(way):
        net = random_net(source, (1, 3, *size), keep="outputs")
        for _ in range(3):
            net.forward()
