"""Convolutions compared with onnxruntime, PyTorch and OpenCV: single layers, and those of VGG16 and R-FCN's ResNet-50.

    python -m benchmarks conv --threads 1 [--rows VGG16] [--write]

float32, one image, of 600 x 1000 for the two nets. Outputs are compared before they are timed.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks._architectures import one_convolution, resnet50, vgg16
from benchmarks._contenders import NAMES, check, contenders
from benchmarks._nets import random_net
from benchmarks._report import Row, Table, options
from benchmarks._smoke import usual
from benchmarks._timing import interleaved

SIZE = usual((600, 1000), (32, 48))
LAYERS: tuple[tuple[int, int, int, int, int, dict[str, int]], ...] = (
    (3, 64, 600, 1000, 3, {}),
    (64, 64, 600, 1000, 3, {}),
    (64, 128, 300, 500, 3, {}),
    (128, 128, 300, 500, 3, {}),
    (256, 256, 150, 250, 3, {}),
    (512, 512, 75, 125, 3, {}),
    (512, 512, 38, 63, 3, {}),
    (3, 64, 600, 1000, 7, {"stride": 2}),
    (256, 256, 38, 63, 3, {}),
    (512, 512, 38, 63, 3, {"dilation": 2}),
    (1024, 256, 38, 63, 1, {}),
    (256, 1024, 38, 63, 1, {}),
    (512, 256, 75, 125, 1, {"stride": 2}),
    (96, 256, 150, 250, 5, {"stride": 2}),
    (96, 256, 75, 125, 5, {"group": 2}),
    (512, 512, 75, 125, 3, {"group": 512}),
)
"""Channels in, channels out, rows, columns, kernel, and other options."""
LAYERS = usual(LAYERS, LAYERS[-1:])


def main(arguments: Sequence[str] = ()) -> None:
    given = options("conv", __doc__ or "").parse_args(arguments)
    table = Table("conv", ("convolutions", "threads"), NAMES)
    nets = {layer_name(*layer): (one_convolution(*layer[:5], **layer[5]), (layer[0], *layer[2:4])) for layer in LAYERS}
    nets |= {"VGG16, all 13": (vgg16(), (3, *SIZE)), "ResNet-50 of R-FCN, all": (resnet50(rfcn=True), (3, *SIZE))}
    for name, (text, shape) in nets.items():
        if given.rows in name:
            add(table, name, text, (1, *shape), given.threads)
    if given.write:
        table.write()


def layer_name(channels: int, outputs: int, height: int, width: int, kernel: int, more: dict[str, int]) -> str:
    words = "".join(f", {word} {value}" for word, value in more.items())
    return f"{kernel}x{kernel}, {channels} to {outputs}, {height}x{width}{words}"


def add(table: Table, name: str, text: str, shape: tuple[int, ...], threads: int) -> None:
    """Add one row."""
    net = random_net(text, shape)
    runs = contenders(net)
    check(name, runs)
    table.add(Row((name, str(threads)), interleaved(runs, seconds=1.5)))
