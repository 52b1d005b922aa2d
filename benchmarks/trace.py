"""The cost of tracing: milliseconds of a forward pass untraced, after a tracer is removed, and traced.

They take turns in random order, so that other load affects all of them.
Ratios are medians of the turns' ratios.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import minicaffe
from benchmarks._smoke import usual
from minicaffe.detection.inputs import fill_inputs
from minicaffe.formats.prototxt import NetFile, parse_net, read_net
from minicaffe.tracing.tracer import Tracer

ROOT = Path(__file__).parents[1]
RFCN = ROOT / "examples/shapes/rfcn/test.prototxt"
TURNS = usual(101, 1)


def main() -> None:
    """Print the table."""
    print(f"{'':26} {'untraced':>9} {'tracer gone':>12} {'traced':>9} {'for --text':>11}   ratios to untraced")
    report("40 small layers", lambda: made(parse_net(small_layers())))
    report("shapes R-FCN, 240 x 320", lambda: made(read_net(RFCN)))


def made(file: NetFile) -> minicaffe.Net:
    """Return the net with made-up inputs."""
    minicaffe.set_random_seed(0)
    net = minicaffe.Net(file, minicaffe.TEST)
    fill_inputs(net, {})
    return net


def small_layers() -> str:
    """Return a net whose layers take almost no time, which shows the cost of hooks best."""
    layers = ['layer { name: "x0" type: "Input" top: "x0" input_param { shape { dim: 2 dim: 3 } } }']
    layers += [f'layer {{ name: "x{i + 1}" type: "Power" bottom: "x{i}" top: "x{i + 1}" }}' for i in range(40)]
    return "\n".join(layers)


def report(name: str, make: Callable[[], minicaffe.Net]) -> None:
    """Print one line."""
    plain, after, traced, table = make(), make(), make(), make()
    with Tracer(after):
        after.forward()
    assert not any(after._hooks.values())
    runs = [lambda: milliseconds(plain), lambda: milliseconds(after), lambda: in_tracer(traced), lambda: in_tracer(table, 0)]
    times = [in_some_order(runs, random.Random(turn)) for turn in range(TURNS + 1)][1:]
    medians = [statistics.median(column) for column in zip(*times)]
    ratios = [statistics.median(row[i] / row[0] for row in times) for i in range(1, len(runs))]
    print(f"{name:26} {medians[0]:9.2f} {medians[1]:12.2f} {medians[2]:9.2f} {medians[3]:11.2f}", end="   ")
    print("  ".join(f"{ratio:.3f}" for ratio in ratios))


def in_some_order(runs: list[Callable[[], float]], shuffler: random.Random) -> list[float]:
    """Return the results of each, in random order, so that none always runs with cold caches."""
    order = shuffler.sample(range(len(runs)), len(runs))
    found = {i: runs[i]() for i in order}
    return [found[i] for i in range(len(runs))]


def milliseconds(net: minicaffe.Net) -> float:
    """Return the milliseconds of one forward pass."""
    start = time.perf_counter()
    net.forward()
    return (time.perf_counter() - start) * 1e3


def in_tracer(net: minicaffe.Net, tile_bytes: int = 8 * 2**20) -> float:
    """Return the milliseconds of one forward pass in a tracer, with the hooks. No page is written."""
    with Tracer(net, tile_bytes=tile_bytes):
        return milliseconds(net)


if __name__ == "__main__":
    main()
