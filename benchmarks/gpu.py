"""The ROI layers and whole detection nets on a GPU, beside torchvision, PyTorch and the time that moving the bytes takes.

    python -m benchmarks gpu --net "R-FCN ResNet-50=rfcn/test.prototxt" --net ... --write

Kernels are timed by the device's own events over many launches, queued while the device is kept busy, so that no launch
waits for Python. A floor is the bytes that must move, each once, over the bandwidth of a copy within the device, measured
in the same run. Nets are timed by the clock, inputs and outputs in the host's memory. Results are compared first: with the
CPU's, and with torchvision's and PyTorch's where those compute the same. Without torch their columns stay empty.

A device whose events measure no time, as the CPU test device, gets no table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import minicaffe
from minicaffe import TEST, TRAIN, Blob, DeviceError, Net, rng
from minicaffe.cuda import blas
from minicaffe.cuda.device import Device, Stopwatch, current
from minicaffe.layers import create
from minicaffe.prototxt import parse_net

Array = NDArray[Any]
Run = Callable[[], Any]
Clock = Callable[[Run], float]
"""Microseconds of one run, on the device."""

PERFORMANCE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- python -m benchmarks gpu -->", "<!-- end of the GPU table -->"
LAUNCHES, ROUNDS = 30, 7
COPIED = 2**30
"""Bytes of the copy that bandwidth is measured with: far more than a cache holds."""
POOLED, SCALE = 7, 1 / 16
H200 = {
    ("ROIPooling", "forward"): (15, 95),
    ("ROIPooling", "backward"): (16, 96),
    ("ROIAlign AVE, 2 samples", "forward"): (8, 48),
    ("ROIAlign AVE, 2 samples", "backward"): (9, 49),
    ("PSROIPooling, 1029 channels", "forward"): (2.6, 4.2),
    ("PSROIPooling, 1029 channels", "backward"): (2.6, 4.2),
    ("PSROIPooling, 3969 channels", "forward"): (9.9, 16),
    ("PSROIPooling, 3969 channels", "backward"): (9.9, 16),
}
"""Microseconds for 300 and for 2000 rois that the bytes take on an H200, at 4.3 TB/s."""


@dataclass(frozen=True)
class Case:
    """An ROI layer: its prototxt's part, the channels of its map, whether its forward keeps an argmax, and torchvision's
    function of (torchvision.ops, x, rois), with whether it computes the same."""

    name: str
    layer: str
    channels: int = 512
    argmax: bool = False
    peer: Callable[[Any, Any, Any], Any] | None = None
    same: bool = True


CASES = [
    Case(
        "ROIPooling",
        f'type: "ROIPooling" roi_pooling_param {{ pooled_h: {POOLED} pooled_w: {POOLED} spatial_scale: {SCALE} }}',
        argmax=True,
        peer=lambda ops, x, rois: ops.roi_pool(x, rois, POOLED, SCALE),
    ),
    Case(
        "ROIAlign AVE, 2 samples",
        f'type: "ROIAlign" roi_align_param {{ pooled_h: {POOLED} pooled_w: {POOLED} spatial_scale: {SCALE} '
        "pool: AVE sampling_ratio: 2 }",
        peer=lambda ops, x, rois: ops.roi_align(x, rois, POOLED, SCALE, sampling_ratio=2, aligned=False),
    ),
    Case(
        "ROIAlign MAX",
        f'type: "ROIAlign" roi_align_param {{ pooled_h: {POOLED} pooled_w: {POOLED} spatial_scale: {SCALE} pool: MAX }}',
        argmax=True,
    ),
    *(
        Case(
            f"PSROIPooling, {dim * POOLED**2} channels",
            f'type: "PSROIPooling" psroi_pooling_param {{ output_dim: {dim} group_size: {POOLED} spatial_scale: {SCALE} }}',
            channels=dim * POOLED**2,
            peer=lambda ops, x, rois: ops.ps_roi_pool(x, rois, POOLED, SCALE),
            same=False,
        )
        for dim in (21, 81)
    ),
    Case(
        "PSROIAlign, 1029 channels",
        f'type: "PSROIAlign" psroi_align_param {{ output_dim: 21 group_size: {POOLED} spatial_scale: {SCALE} }}',
        channels=21 * POOLED**2,
        peer=lambda ops, x, rois: ops.ps_roi_align(x, rois, POOLED, SCALE, 2),
        same=False,
    ),
]


@dataclass
class Row:
    """Microseconds of one kernel, forward or backward."""

    name: str
    direction: str
    rois: int
    ours: float
    floor: float
    peer: float | None = None
    h200: float | None = None

    def cells(self) -> list[str]:
        peer = ["", ""] if self.peer is None else [f"{self.peer:.1f}", f"{self.peer / self.ours:.2f}"]
        h200 = "" if self.h200 is None else f"{self.h200:g}"
        times = [f"{self.ours:.1f}", f"{self.floor:.1f}", f"{self.ours / self.floor:.2f}", h200]
        return [self.name, self.direction, str(self.rois), *times, *peer]


@dataclass
class NetRow:
    """Milliseconds of a whole net's forward."""

    name: str
    rois: int
    ours: float
    peer: float | None = None

    def cells(self) -> list[str]:
        peer = ["", ""] if self.peer is None else [f"{self.peer:.1f}", f"{self.peer / self.ours:.2f}"]
        return [self.name, str(self.rois), f"{self.ours:.1f}", *peer]


@dataclass
class Results:
    """All that the tables show."""

    device: str
    bandwidth: float
    notes: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    nets: list[NetRow] = field(default_factory=list)

    def markdown(self) -> str:
        heads = "layer", "", "rois", "us", "floor us", "times the floor", "H200 floor us", "torchvision us", "its ratio"
        parts = [
            f"Taken on {self.device}; a copy within it moves {self.bandwidth / 1e12:.2f} TB/s. " + " ".join(self.notes),
            table(heads, (row.cells() for row in self.rows)),
        ]
        if self.nets:
            parts.append(
                table(["net, 600 x 1000", "rois", "ms", "PyTorch ms", "its ratio"], (row.cells() for row in self.nets))
            )
        return "\n\n".join(parts)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gpu", type=int, default=0, help="the number of the GPU")
    parser.add_argument("--rois", type=int, nargs="+", default=[300, 2000], help="how many rois (default 300 2000)")
    parser.add_argument("--net", action="append", default=[], metavar="NAME=FILE", help="a detection net's test prototxt")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    options = parser.parse_args(arguments)
    try:
        minicaffe.set_device(options.gpu)
        minicaffe.set_mode_gpu()
    except DeviceError as error:
        raise SystemExit(f"no table: {error}") from None
    device = current()
    check_clock(device)
    clock = events_clock(device)
    results = measured(device, clock, options.rois, [pair(text) for text in options.net])
    print(results.markdown())
    if options.write:
        write(PERFORMANCE, results.markdown())


def pair(text: str) -> tuple[str, str]:
    """NAME=FILE."""
    name, equals, file = text.partition("=")
    if not equals or not Path(file).is_file():
        raise SystemExit(f"--net {text}: write it as NAME=FILE, with a file that there is")
    return name, file


def check_clock(device: Device) -> None:
    """Exit unless the device's events measure time."""
    with device.active():
        memory = device.allocate(2**20)
        watch = Stopwatch(device)
        device.zero(memory.address, 2**20)
        watch.stop()
        if not watch.milliseconds() > 0:
            raise SystemExit(f"no table: the events of {device.name} measure no time, so there is nothing to report from it")


def measured(
    device: Device, clock: Clock, rois: Sequence[int], nets: Sequence[tuple[str, str]], size: tuple[int, int] = (38, 63)
) -> Results:
    """All rows, kernels first."""
    results = Results(device.name, bandwidth(device, clock))
    peers = torch_peers(results)
    for case in CASES:
        for count in rois:
            results.rows += kernel_rows(case, count, size, results.bandwidth, clock, peers)
            print(*results.rows[-2:], sep="\n", file=sys.stderr)
    for name, file in nets:
        results.nets.append(net_row(name, file, peers))
        print(results.nets[-1], file=sys.stderr)
    if nets:
        results.notes.append(f"Matrix products by {blas.backend()}.")
    return results


# The clock.


def events_clock(device: Device) -> Clock:
    """Times LAUNCHES runs by events. The device first gets so long a copy to do that the queue is full before it begins."""
    source, target = device.allocate(COPIED // 4), device.allocate(COPIED // 4)

    def copies(count: int) -> None:
        for _ in range(count):
            device.copy(target.address, source.address, COPIED // 4)

    def clock(run: Run) -> float:
        with device.running(device.stream):
            run()
        with device.running(device.stream):
            begin = time.perf_counter()
            for _ in range(LAUNCHES):
                run()
            queueing = time.perf_counter() - begin
        with device.running(device.stream):
            watch = Stopwatch(device)
            copies(8)
            watch.stop()
            of_one = watch.milliseconds() / 8e3
        taken = []
        for _ in range(ROUNDS):
            with device.running(device.stream):
                copies(int(2 * queueing / of_one) + 1)
                watch = Stopwatch(device)
                for _ in range(LAUNCHES):
                    run()
                watch.stop()
                taken.append(watch.milliseconds() * 1e3 / LAUNCHES)
        return statistics.median(taken)

    return clock


def bandwidth(device: Device, clock: Clock, nbytes: int = COPIED) -> float:
    """Bytes a second of a copy within the device: read and written."""
    source, target = device.allocate(nbytes), device.allocate(nbytes)
    return 2e6 * nbytes / clock(lambda: device.copy(target.address, source.address, nbytes))


# Kernels.


def kernel_rows(case: Case, count: int, size: tuple[int, int], speed: float, clock: Clock, peers: Any) -> list[Row]:
    """Forward and backward of one layer over count rois."""
    x, rois = inputs(case.channels, count, size)
    ours = Roi(case, x, rois)
    check_against_cpu(case, ours, Roi(case, x, rois))
    theirs = peers.roi(case, x, rois) if peers and case.peer else None
    if theirs and case.same:
        check_against_peer(case, ours, theirs)
    rows = []
    for direction, (run, nbytes) in {"forward": (ours.forward, ours.read), "backward": (ours.backward, ours.spread)}.items():
        peer = peers.clock(getattr(theirs, direction)) if theirs else None
        at_h200 = dict(zip((300, 2000), H200.get((case.name, direction), ()))) if size == (38, 63) else {}
        rows.append(Row(case.name, direction, count, clock(run), 1e6 * nbytes / speed, peer, at_h200.get(count)))
    return rows


def inputs(channels: int, count: int, size: tuple[int, int]) -> tuple[Array, Array]:
    """A map, and boxes of 32 to half an image's pixels in the image that it is 1/16 of."""
    random = np.random.default_rng(0)
    x = random.standard_normal((1, channels, *size), dtype=np.float32)
    sides = [random.uniform(32, max(33, 8 * extent), count) for extent in size]
    firsts = [random.uniform(0, 1, count) * np.maximum(16 * extent - side, 1) for extent, side in zip(size, sides)]
    (height, width), (top, left) = sides, firsts
    return x, np.stack([0 * left, left, top, left + width, top + height], axis=1).astype(np.float32)


class Roi:
    """One of our ROI layers on blobs of its own. read, spread: bytes that forward and backward must move, each once."""

    def __init__(self, case: Case, x: Array, rois: Array) -> None:
        param = parse_net(f'layer {{ name: "roi" bottom: "x" bottom: "rois" top: "y" {case.layer} }}').param.layer[0]
        self.bottom, self.top = [Blob(x.shape), Blob(rois.shape)], [Blob()]
        self.layer = create(param, phase=TRAIN)
        self.bottom[0].data[...], self.bottom[1].data[...] = x, rois
        self.layer.connect(self.bottom, self.top)
        out = self.top[0].count
        self.top[0].diff[...] = np.random.default_rng(1).standard_normal(self.top[0].shape, dtype=np.float32)
        self.read = self.spread = 4 * (x.size + rois.size + out * (2 if case.argmax else 1))

    def forward(self) -> None:
        self.layer.forward_pass(self.bottom, self.top)

    def backward(self) -> None:
        self.layer.backward_pass(self.top, [True, False], self.bottom)

    def results(self) -> dict[str, Array]:
        """Copies of y and dx, after a forward and a backward in the present mode."""
        self.forward()
        self.backward()
        return {"forward": self.top[0].read_data().copy(), "backward": self.bottom[0].read_diff().copy()}


def check_against_cpu(case: Case, on_gpu: Roi, on_cpu: Roi) -> None:
    """Exit unless the GPU gives the CPU's numbers."""
    found = on_gpu.results()
    minicaffe.set_mode_cpu()
    try:
        expected = on_cpu.results()
    finally:
        minicaffe.set_mode_gpu()
    for direction, y in expected.items():
        same(f"{case.name}, {direction}: GPU and CPU", found[direction], y, 1e-5)


def check_against_peer(case: Case, ours: Roi, theirs: Any) -> None:
    """Exit unless torchvision gives our numbers; a bin's edge may round the other way here and there."""
    found, expected = ours.results(), theirs.results()
    for direction, y in expected.items():
        agree = float(np.mean(np.isclose(found[direction], y, rtol=1e-4, atol=1e-4)))
        print(f"{case.name}, {direction}: {agree:.3%} of the numbers agree with torchvision's", file=sys.stderr)
        if agree < 0.99:
            raise SystemExit(f"{case.name}, {direction}: torchvision computes something else")


def same(what: str, found: Array, expected: Array, tolerance: float) -> None:
    """Exit where the largest difference is more than tolerance times the largest number."""
    if found.shape != expected.shape:
        raise SystemExit(f"{what} have shapes {found.shape} and {expected.shape}")
    difference = float(np.abs(found - expected).max(initial=0)) / max(float(np.abs(expected).max(initial=0)), 1e-30)
    if not difference <= tolerance:
        raise SystemExit(f"{what} differ by {difference:g} of the largest number")


# Nets.


def net_row(name: str, file: str, peers: Any, size: tuple[int, int] = (600, 1000)) -> NetRow:
    """A detection net with random weights, of inputs data and im_info, beside PyTorch's run of the same layers."""
    net = random_net(file, size)
    ours = milliseconds(net.forward)
    rois = len(net.blobs["rois"].read_data())
    if not peers:
        return NetRow(name, rois, ours)
    graph = peers.graph(net)
    for blob, theirs in graph.comparable().items():
        same(f"{name}, blob {blob}: minicaffe and PyTorch", net.blobs[blob].read_data(), theirs, 1e-3)
    if abs((found := graph.count("rois")) - rois) > rois / 20:  # some more or less: torchvision's NMS adds no 1 to sides
        raise SystemExit(f"{name}: {rois} rois here, {found} in PyTorch: their times tell nothing")
    return NetRow(name, rois, ours, milliseconds(graph.forward))


def random_net(file: str, size: tuple[int, int]) -> Net:
    """The net, its inputs filled, with random weights that give each product a spread of 1, and 0.1 where it moves boxes:
    with larger ones all rois would be the whole image."""
    rng.set_random_seed(0)
    net, random = Net(file, TEST), np.random.default_rng(0)
    for layer in net.layers:
        for i, blob in enumerate(layer.blobs):
            blob.data[...] = weights(layer.param.type, i, blob.shape, random)
    net.blobs["data"].reshape(1, 3, *size)
    net.blobs["data"].data[...] = random.standard_normal((1, 3, *size), dtype=np.float32)
    if "im_info" in net.blobs:
        net.blobs["im_info"].data[...] = [*size, 1]

    def spread(i: int) -> None:
        layer = net.layers[i]
        if layer.param.type in ("Convolution", "InnerProduct"):
            y = net.blobs[layer.param.top[0]].data
            factor = (0.1 if "bbox" in layer.name else 1) / max(float(y.std()), 1e-30)
            y *= factor
            layer.blobs[0].data[...] *= factor

    net.after_forward(spread)
    net.forward()
    net.remove_hook(spread)
    return net


def weights(kind: str, i: int, shape: tuple[int, ...], random: np.random.Generator) -> Array | float:
    """Of a layer's blob i: a mean 0 and variance 1, a scale 1, biases 0, factors that keep the size of what they get."""
    if kind == "BatchNorm":
        return float(i > 0)
    if kind in ("Scale", "PReLU") or len(shape) < 2:
        return float(kind in ("Scale", "PReLU") and i == 0)
    spread = np.sqrt(2 / np.prod(shape[1:]))
    return np.asarray(random.standard_normal(shape, dtype=np.float32) * np.float32(spread))


def milliseconds(run: Run) -> float:
    """Median time of a run by the clock, after two that are not counted; run waits for its device itself."""
    taken = []
    for _ in range(ROUNDS + 2):
        begin = time.perf_counter()
        run()
        taken.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(taken[2:])


# torch and the document.


def torch_peers(results: Results) -> Any:
    """torch and torchvision on the GPU, or None and a note that says why not."""
    try:
        from benchmarks import _torch

        peers = _torch.Peers("cuda", ROUNDS, LAUNCHES)
    except Exception as error:  # an import of broken libraries may raise anything
        results.notes.append(f"Left out: torch and torchvision ({str(error).splitlines()[0] if str(error) else error!r}).")
        return None
    results.notes.append(peers.versions)
    return peers


def write(path: Path, text: str) -> None:
    """Put text between the markers of a document."""
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{path}: the lines {BEGIN} and {END} are not in it")
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
