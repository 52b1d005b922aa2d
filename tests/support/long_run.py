"""Memory over a long run: 10,000 iterations of training, 10,000 detections whose images change size. A figure and a plot.

    python tests/support/long_run.py [--training 10000] [--detections 10000] [--plot docs/images/memory.svg]

Prints the process's memory (resident set) at points of the run, and fails where the last half grows by more than GROWTH.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from minicaffe import TEST, Net, get_solver
from minicaffe.data.settings import read_settings
from minicaffe.detection.detect import detect

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
GROWTH = 4.0
"""MiB that the second half of a run may add: the allocator's own waves."""
POINTS = 100

NET = """
layer { name: "x" type: "DummyData" top: "x" top: "t" dummy_data_param {
  shape { dim: 16 dim: 1 dim: 12 dim: 14 } shape { dim: 16 }
  data_filler { type: "gaussian" } data_filler { type: "constant" } } }
layer { name: "c" type: "Convolution" bottom: "x" top: "c" convolution_param { num_output: 8 kernel_size: 3
  weight_filler { type: "xavier" } } }
layer { name: "p" type: "Pooling" bottom: "c" top: "p" pooling_param { kernel_size: 2 stride: 2 } }
layer { name: "r" type: "ReLU" bottom: "p" top: "p" }
layer { name: "f" type: "InnerProduct" bottom: "p" top: "f" inner_product_param { num_output: 5
  weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "f" bottom: "t" }
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" momentum: 0.9 max_iter: 100000000 test_interval: 500 test_iter: 2
snapshot_prefix: "snap"
"""


def resident() -> float:
    """Return the process's memory, MiB."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def training() -> Callable[[], object]:
    """Return a function that runs one iteration."""
    Path("net.prototxt").write_text(NET)
    Path("solver.prototxt").write_text(SOLVER)
    solver = get_solver("solver.prototxt")
    return lambda: solver.step(1)


def detections() -> Callable[[], object]:
    """Return a function that runs one detection, on an image of another size each time."""
    settings = read_settings(SHAPES / "shapes.yml")
    net = Net(SHAPES / "rfcn" / "test.prototxt", TEST, weights=SHAPES / "rfcn" / "shapes_rfcn.caffemodel")
    sizes = np.random.default_rng(0)

    def once() -> object:
        height, width = sizes.integers(60, 160, 2)
        return detect(net, sizes.integers(0, 255, (height, width, 3)).astype(np.uint8), settings=settings)

    return once


def measure(what: str, once: Callable[[], object], count: int) -> list[float]:
    """Return the memory after each POINTS-th part of count runs. Raises SystemExit if it grows."""
    marks = []
    for i in range(count):
        once()
        if (i + 1) % max(1, count // POINTS) == 0:
            marks.append(resident())
    middle, last = marks[len(marks) // 2], marks[-1]
    print(f"{count:,} {what}: {marks[0]:.1f} MiB at first, {middle:.1f} half-way, {last:.1f} at the end", flush=True)
    if last - middle > GROWTH:
        raise SystemExit(f"memory grows: {last - middle:.1f} MiB in the second half of {count} {what}")
    return marks


def plot(path: Path, series: dict[str, list[float]], runs: str) -> None:
    """Write the curves as SVG."""
    wide, high, left, top = 560, 200, 60, 20
    most = max(map(max, series.values())) * 1.15
    parts = []
    for (name, marks), colour in zip(series.items(), ("#2e6f95", "#d1495b")):
        points = " ".join(
            f"{left + wide * (i + 1) / len(marks):.1f},{top + high * (1 - mark / most):.1f}" for i, mark in enumerate(marks)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        y = top + high * (1 - marks[-1] / most) - 6
        parts.append(
            f'<text x="{left + wide}" y="{y:.1f}" text-anchor="end" fill="{colour}">{name}, {marks[-1]:.0f} MiB</text>'
        )
    axes = f"M{left} {top}V{top + high}H{left + wide}"
    labels = [(left - 6, top + high + 4, "0"), (left - 6, top + high * (1 - 100 / most) + 4, "100 MiB")]
    texts = "".join(f'<text x="{x}" y="{y:.1f}" text-anchor="end">{text}</text>' for x, y, text in labels)
    texts += f'<text x="{left + wide}" y="{top + high + 18}" text-anchor="end">{runs}</text>'
    size = f'width="{left + wide + 20}" height="{top + high + 30}"'
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="#ffffff"/><path d="{axes}" fill="none" stroke="#5b6b7b"/>'
        f"{texts}{''.join(parts)}</svg>\n",
        encoding="utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--training", type=int, default=10_000, help="iterations")
    parser.add_argument("--detections", type=int, default=10_000)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    target = options.plot and options.plot.resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        series = {
            "training": measure("iterations of training", training(), options.training),
            "detection": measure("detections of changing sizes", detections(), options.detections),
        }
        os.chdir("/")
    if target:
        plot(target, series, f"{options.training:,} iterations, {options.detections:,} detections")


if __name__ == "__main__":
    main()
