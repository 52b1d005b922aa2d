"""The cost of tracing: milliseconds of a forward pass untraced, after a tracer is removed, and traced; and of an answer of
`minicaffe live` to a roi that is dragged.

They take turns in random order, so that other load affects all of them.
Ratios are medians of the turns' ratios.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import minicaffe
from benchmarks._smoke import usual
from minicaffe.detection.inputs import fill_inputs
from minicaffe.formats.prototxt import NetFile, parse_net, read_net
from minicaffe.tracing.live.session import Live
from minicaffe.tracing.tracer import Tracer

ROOT = Path(__file__).parents[1]
RFCN = ROOT / "examples/shapes/rfcn/test.prototxt"
LIVE = (
    ("shapes R-FCN", RFCN, "psroipooled_cls_rois"),
    ("shapes Faster R-CNN", ROOT / "examples/shapes/faster_rcnn/test.prototxt", "roi_pool_conv8"),
)
"""What is served: name, file, the layer whose roi is dragged."""
TURNS = usual(101, 1)


def main() -> None:
    """Print the table."""
    print(f"{'':26} {'untraced':>9} {'tracer gone':>12} {'traced':>9} {'for --text':>11}   ratios to untraced")
    report("40 small layers", lambda: made(parse_net(small_layers())))
    report("shapes R-FCN, 240 x 320", lambda: made(read_net(RFCN)))
    print(f"{'':26} {'untraced':>9} {'a roi dragged':>14}   ratio to untraced")
    for name, file, layer in LIVE:
        report_live(name, file, layer)


def made(file: NetFile) -> minicaffe.Net:
    """The net with made-up inputs."""
    minicaffe.set_random_seed(0)
    net = minicaffe.Net(file, minicaffe.TEST)
    fill_inputs(net, {})
    return net


def small_layers() -> str:
    """A net whose layers take almost no time, which shows the cost of hooks best."""
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


def report_live(name: str, file: Path, layer: str) -> None:
    """Print one line: the whole answer, with the trace's document, as it is sent to the page."""

    def make(net: NetFile, tracer: Tracer) -> minicaffe.Net:
        minicaffe.set_random_seed(0)
        return minicaffe.Net(net, minicaffe.TEST, watch=tracer.watch)

    def fill(net: minicaffe.Net, photo: bytes | None) -> None:
        fill_inputs(net, {})

    plain, live = made(read_net(file)), Live(file.read_text(), file.name, make, fill, lambda: Tracer(backward=False))

    def dragged() -> float:
        start = time.perf_counter()
        answer = json.dumps(live.answer({"layer": layer, "roi": 0, "box": [10, 20, 90, 80]}))
        assert "error" not in answer[:20]
        return (time.perf_counter() - start) * 1e3

    runs = [lambda: milliseconds(plain), dragged]
    times = [in_some_order(runs, random.Random(turn)) for turn in range(TURNS + 1)][1:]
    medians = [statistics.median(column) for column in zip(*times)]
    print(f"{name:26} {medians[0]:9.2f} {medians[1]:14.2f}   {statistics.median(b / a for a, b in times):.2f}")


def in_some_order(runs: list[Callable[[], float]], shuffler: random.Random) -> list[float]:
    """The results of each, in random order, so that none always runs with cold caches."""
    order = shuffler.sample(range(len(runs)), len(runs))
    found = {i: runs[i]() for i in order}
    return [found[i] for i in range(len(runs))]


def milliseconds(net: minicaffe.Net) -> float:
    """Of one forward pass."""
    start = time.perf_counter()
    net.forward()
    return (time.perf_counter() - start) * 1e3


def in_tracer(net: minicaffe.Net, tile_bytes: int = 8 * 2**20) -> float:
    """Of one forward pass in a tracer, including the hooks; no page is written."""
    with Tracer(net, tile_bytes=tile_bytes):
        return milliseconds(net)


if __name__ == "__main__":
    main()
