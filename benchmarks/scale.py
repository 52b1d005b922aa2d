"""The speed-up from threads and batches: minicaffe, onnxruntime, PyTorch and OpenCV, each relative to one thread.

    python -m benchmarks scale [--threads 2] [--rows VGG16] [--write]

The convolutions of VGG16 and of R-FCN's ResNet-50: one image of 600 x 1000, and 1 and 4 images of 224 x 224. In brackets:
the speed-up over one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

import minicaffe
from benchmarks._architectures import resnet50, vgg16
from benchmarks._contenders import Run, check, contenders
from benchmarks._nets import random_net
from benchmarks._report import OURS, Row, Table, options
from benchmarks._smoke import usual
from benchmarks._timing import interleaved

SHAPES = usual(((1, 3, 600, 1000), (1, 3, 224, 224), (4, 3, 224, 224)), ((1, 3, 32, 48),))


def main(arguments: Sequence[str] = ()) -> None:
    parser = options("scale", __doc__ or "")
    parser.set_defaults(threads=2)
    given = parser.parse_args(arguments)
    many = f"{given.threads} threads"
    table = Table("scale", ("convolutions", "images", ""), ("1 thread", many), speedup=True)
    for name, text in (("VGG16", vgg16()), ("ResNet-50 of R-FCN", resnet50(rfcn=True))):
        for shape in SHAPES:
            if given.rows in name:
                add(table, name, text, shape, {"1 thread": 1, many: given.threads})
    if given.write:
        table.write()


def add(table: Table, name: str, text: str, shape: tuple[int, ...], counts: dict[str, int]) -> None:
    """Add a row per contender."""
    net = random_net(text, shape)
    runs: dict[str, Run] = {}
    for label, count in counts.items():
        minicaffe.set_num_threads(count)
        mine = contenders(net)
        mine |= {contender: on_threads(mine[contender], count) for contender in OURS if contender in mine}
        check(name, mine)
        runs |= {f"{contender}, {label}": run for contender, run in mine.items()}
    times = interleaved(runs, seconds=1)
    images = f"{shape[0]} x {shape[2]} x {shape[3]}"
    for contender in mine:
        row = {label: times[f"{contender}, {label}"] for label in counts}
        table.add(Row((name, images, contender), row))


def on_threads(run: Run, count: int) -> Run:
    def set_and_run() -> dict[str, object]:
        minicaffe.set_num_threads(count)
        return run()

    return set_and_run
