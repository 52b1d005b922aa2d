"""The ROI layers and whole detection nets on a GPU, compared with torchvision, PyTorch and the time to move the bytes.

    python -m benchmarks gpu --net "R-FCN ResNet-50=rfcn/test.prototxt" --net ... --write

Device events time kernels over many launches, which are queued while the device is busy, so that no launch waits for Python. A
floor is the bytes that must move, each once, over the bandwidth of a copy on the device, measured in the same run. Nets are
timed by the clock, with inputs and outputs in host memory. Results are compared first: with the CPU's, and with torchvision's
and PyTorch's if those compute the same. Without torch their columns are empty.

A device whose events measure no time, such as the CPU test device, gets no table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

import minicaffe
from benchmarks._contenders import same
from benchmarks._nets import random_net
from benchmarks._report import named_files, put, table
from benchmarks._roi import CASES, Case, Roi, check_against_peer, inputs
from minicaffe import DeviceError
from minicaffe.cuda import blas, cudnn
from minicaffe.cuda.device import Device, current
from minicaffe.cuda.stream import Stopwatch

Array = NDArray[Any]
Run = Callable[[], Any]
Clock = Callable[[Run], float]
"""Microseconds of one run, on the device."""

PERFORMANCE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- python -m benchmarks gpu -->", "<!-- end of the GPU table -->"
LAUNCHES, ROUNDS = 30, 7
COPIED = 2**30
"""Bytes of the copy that measures the bandwidth: far more than the caches."""
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
"""Microseconds to move the bytes for 300 and for 2000 rois on an H200, at 4.3 TB/s."""


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
    """The contents of the tables."""

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


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gpu", type=int, default=0, help="the number of the GPU")
    parser.add_argument("--rois", type=int, nargs="+", default=[300, 2000], help="numbers of rois (default 300 2000)")
    parser.add_argument("--net", action="append", default=[], metavar="NAME=FILE", help="a detection net's test prototxt")
    parser.add_argument("--write", action="store_true", help="write the tables to docs/performance.md")
    options = parser.parse_args(arguments)
    try:
        minicaffe.set_device(options.gpu)
        minicaffe.set_mode_gpu()
    except DeviceError as error:
        raise SystemExit(f"no table: {error}") from None
    device = current()
    check_clock(device)
    clock = events_clock(device)
    results = measured(device, clock, options.rois, [(name, str(file)) for name, file in named_files(options.net).items()])
    print(results.markdown())
    if options.write:
        write(PERFORMANCE, results.markdown())


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
        results.notes.append(f"Matrix products by {blas.backend()}, convolutions by {cudnn.backend()}.")
    return results


# The clock.


def events_clock(device: Device) -> Clock:
    """Times LAUNCHES runs with events. A long copy first keeps the device busy until the queue is full."""
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
    """Bytes per second of a copy on the device, read and written."""
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
    for direction, run in (("forward", ours.forward), ("backward", ours.backward)):
        peer = peers.clock(getattr(theirs, direction)) if theirs else None
        at_h200 = dict(zip((300, 2000), H200.get((case.name, direction), ()))) if size == (38, 63) else {}
        rows.append(Row(case.name, direction, count, clock(run), 1e6 * ours.nbytes / speed, peer, at_h200.get(count)))
    return rows


def check_against_cpu(case: Case, on_gpu: Roi, on_cpu: Roi) -> None:
    """Exit unless the GPU agrees with the CPU."""
    found = on_gpu.results()
    minicaffe.set_mode_cpu()
    try:
        expected = on_cpu.results()
    finally:
        minicaffe.set_mode_gpu()
    for direction, y in expected.items():
        same(f"{case.name}, {direction}: GPU and CPU", found[direction], y, 1e-5)


# Nets.


def net_row(name: str, file: str, peers: Any, size: tuple[int, int] = (600, 1000)) -> NetRow:
    """A detection net with random weights, of inputs data and im_info, beside PyTorch's run of the same layers."""
    net = random_net(Path(file), (1, 3, *size))
    ours = milliseconds(net.forward)
    rois = len(net.blobs["rois"].read_data())
    if not peers:
        return NetRow(name, rois, ours)
    graph = peers.graph(net)
    for blob, theirs in graph.comparable().items():
        same(f"{name}, blob {blob}: minicaffe and PyTorch", net.blobs[blob].read_data(), theirs, 1e-3)
    if abs((found := graph.count("rois")) - rois) > rois / 20:  # slightly different: torchvision's NMS adds no 1 to sides
        raise SystemExit(f"{name}: {rois} rois here, {found} in PyTorch: their times are not comparable")
    return NetRow(name, rois, ours, milliseconds(graph.forward))


def milliseconds(run: Run) -> float:
    """Median wall-clock time of a run, after two warm-up runs; run waits for its device."""
    taken = []
    for _ in range(ROUNDS + 2):
        begin = time.perf_counter()
        run()
        taken.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(taken[2:])


# torch and the document.


def torch_peers(results: Results) -> Any:
    """torch and torchvision on the GPU, or None and a note with the reason."""
    try:
        from benchmarks import _torch

        peers = _torch.Peers("cuda", ROUNDS, LAUNCHES)
    except Exception as error:  # an import of broken libraries may raise anything
        results.notes.append(f"Left out: torch and torchvision ({str(error).splitlines()[0] if str(error) else error!r}).")
        return None
    results.notes.append(peers.versions)
    return peers


def write(path: Path, text: str) -> None:
    """Replace the text between the markers of a document."""
    put(path, BEGIN, END, text)


if __name__ == "__main__":
    main(sys.argv[1:])
