"""The ROI layers and whole detection nets on a GPU, compared with torchvision, PyTorch and the time to move the bytes.

    python -m benchmarks gpu --net "R-FCN ResNet-50=test.prototxt" --train "R-FCN ResNet-50=train.prototxt" --net ... --write

Device events time kernels over many launches, which are queued while the device is busy, so that no launch waits for Python. A
floor is the bytes that must move, each once, over the bandwidth of a copy on the device, measured in the same run. Nets are
timed by the clock, with inputs and outputs in host memory: forward, forward and backward to all weights, and with --train a
whole training step, with and without TF32. Memory is what a library took from the driver. Results are compared first: with the
CPU's, and with torchvision's and PyTorch's if those compute the same. Without torch their columns are empty.

A device whose events measure no time, such as the CPU test device, gets no table.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import text_format
from numpy.typing import NDArray

import minicaffe
from benchmarks._contenders import same
from benchmarks._nets import random_net
from benchmarks._report import named_files, put, table
from benchmarks._roi import CASES, Case, Roi, check_against_peer, inputs
from benchmarks.train import random_solver
from minicaffe import TEST, DeviceError, Net, SGDSolver
from minicaffe.cuda import blas, cudnn
from minicaffe.cuda.device import Device, current
from minicaffe.cuda.stream import Stopwatch

Array = NDArray[Any]
Files = Mapping[str, Path]
Run = Callable[[], Any]
Clock = Callable[[Run], float]
"""Microseconds of one run, on the device."""

PERFORMANCE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- python -m benchmarks gpu -->", "<!-- end of the GPU table -->"
LAUNCHES, ROUNDS = 30, 7
PRECISIONS = "float32", "TF32"
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
    """Milliseconds of a pass of a whole net, and the gigabytes of device memory that it took."""

    name: str
    work: str
    precision: str
    rois: int
    ours: float
    memory: float
    peer: float | None = None
    peer_memory: float | None = None

    def cells(self) -> list[str]:
        peer = ["", "", ""]
        if self.peer is not None:
            peer = [f"{self.peer:.1f}", f"{self.peer / self.ours:.2f}", f"{self.peer_memory:.2f}"]
        return [self.name, self.work, self.precision, str(self.rois), f"{self.ours:.1f}", f"{self.memory:.2f}", *peer]


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
            heads = "net, 600 x 1000", "", "", "rois", "ms", "GB", "PyTorch ms", "its ratio", "PyTorch GB"
            parts.append(table(heads, (row.cells() for row in self.nets)))
        return "\n\n".join(parts)


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--gpu", type=int, default=0, help="the number of the GPU")
    parser.add_argument("--rois", type=int, nargs="*", default=[300, 2000], help="numbers of rois (default 300 2000)")
    parser.add_argument("--net", action="append", default=[], metavar="NAME=FILE", help="a detection net's test prototxt")
    parser.add_argument("--train", action="append", default=[], metavar="NAME=FILE", help="a detection net's train prototxt")
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
    results = measured(device, clock, options.rois, named_files(options.net), named_files(options.train))
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


def measured(device: Device, clock: Clock, rois: Sequence[int], nets: Files, trained: Files) -> Results:
    """Return all rows, kernels first."""
    results = Results(device.name, bandwidth(device, clock))
    peers = torch_peers(results)
    for case in CASES:
        for count in rois:
            results.rows += kernel_rows(case, count, (38, 63), results.bandwidth, clock, peers)
            print(*results.rows[-2:], sep="\n", file=sys.stderr)
    for rows in (*(net_rows(name, file, peers) for name, file in nets.items()), *starmap(step_rows, trained.items())):
        for row in rows:
            print(row, file=sys.stderr)
            results.nets.append(row)
    if nets or trained:
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


def net_rows(name: str, file: Path, peers: Any, size: tuple[int, int] = (600, 1000)) -> Iterator[NetRow]:
    """Yield the rows of a detection net with random weights and inputs data and im_info, next to PyTorch's."""
    for work, source in (("forward", file), ("forward, backward", with_losses(file))):
        for precision in PRECISIONS:
            with using(precision, peers):
                yield net_row(name, work, precision, random_net(source, (1, 3, *size)), peers)


def net_row(name: str, work: str, precision: str, net: Net, peers: Any) -> NetRow:
    """Return both libraries' times of this work and, from another run, their memory."""
    ours = milliseconds(net.forward if work == "forward" else passes(net))
    row = NetRow(name, work, precision, len(net.blobs["rois"].read_data()), ours, reserved())
    if peers:
        graph = peers.graph(net)
        check_against_graph(row, net, graph)
        run = graph.forward if work == "forward" else graph.forward_backward
        row.peer = milliseconds(run)
        peers.forget_memory()  # the trials of cudnn.benchmark take far more
        run()
        row.peer_memory = peers.reserved()
    return row


def step_rows(name: str, file: Path) -> Iterator[NetRow]:
    """Yield the rows of a training step: reading an image, forward, backward, update. The host computes the targets."""
    for precision in PRECISIONS:
        with using(precision, None):
            yield step_row(name, precision, random_solver(str(file)))


def step_row(name: str, precision: str, solver: SGDSolver) -> NetRow:
    """Return the row of a detection net's solver."""
    ours = milliseconds(partial(solver.step, 1))
    return NetRow(name, "training step", precision, len(solver.net.blobs["rois"].read_data()), ours, reserved())


@contextmanager
def using(precision: str, peers: Any) -> Iterator[None]:
    """Let both libraries round factors to TF32, or not, and give back the memory of what ran before."""
    blas.allow_tf32(precision == "TF32")
    if peers:
        peers.allow_tf32(precision == "TF32")
    gc.collect()
    current().release_memory()
    try:
        yield
    finally:
        blas.allow_tf32(False)
        if peers:
            peers.allow_tf32(False)


def with_losses(file: Path) -> str:
    """Return the net with outputs that count as losses, so that all weights need gradients."""
    net = Net(str(file), TEST)
    param = net.param
    for layer in param.layer:
        if set(layer.top) & set(net.outputs):
            layer.loss_weight.extend(float(top in net.outputs) for top in layer.top)
    return text_format.MessageToString(param)


def passes(net: Net) -> Run:
    """Forward and backward from random gradients of the outputs, and a wait for the device."""
    random = np.random.default_rng(1)
    for name in net.outputs:
        net.blobs[name].diff[...] = random.standard_normal(net.blobs[name].shape)

    def run() -> None:
        net.forward()
        net.backward()

    return run


def reserved() -> float:
    """Gigabytes."""
    return current().reserved / 1e9


def check_against_graph(row: NetRow, net: Net, graph: Any) -> None:
    """Exit unless PyTorch agrees. TF32's results depend on the order of sums too much."""
    if row.precision == "float32":
        for blob, theirs in graph.comparable().items():
            same(f"{row.name}, blob {blob}: minicaffe and PyTorch", net.blobs[blob].read_data(), theirs, 1e-3)
    if (
        abs((found := graph.count("rois")) - row.rois) > row.rois / 20
    ):  # slightly different: torchvision's NMS adds no 1 to sides
        raise SystemExit(f"{row.name}: {row.rois} rois here, {found} in PyTorch: their times are not comparable")


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
