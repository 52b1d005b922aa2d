"""What Python adds to a launch and to a layer of a forward in GPU mode, beside PyCUDA's bare prepared_async_call.

    python -m benchmarks launches                                                       on a GPU
    python tests/cpu_device/run.py --python -m benchmarks launches                      on the CPU test device

The driver's launch does nothing here, so that only Python's time is measured: CPU time, the least of many turns. The GPU's
times are in the table gpu. "beyond" is a layer's time less one bare call for each of its launches. "as a graph": the net's ten
blocks are one CUDA graph, where cuda.bindings is installed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import minicaffe
from benchmarks._smoke import usual
from minicaffe import Net
from minicaffe.blob import Blob
from minicaffe.cuda import graph
from minicaffe.cuda.device import Device, current, launch
from minicaffe.formats.prototxt import parse_net

TURNS, CALLS = usual(40, 3), 100
INPUT = 'input: "b0" input_shape { dim: 1 dim: 8 dim: 6 dim: 6 }\n'
RELU = 'layer {{ name: "r{0}" type: "ReLU" bottom: "b{0}" top: "b{1}" }}\n'
BLOCK = """
layer {{ name: "c{0}" type: "Convolution" bottom: "b{0}" top: "b{1}"
  convolution_param {{ num_output: 8 kernel_size: 3 pad: 1 }} }}
layer {{ name: "n{0}" type: "BatchNorm" bottom: "b{1}" top: "b{1}" }}
layer {{ name: "s{0}" type: "Scale" bottom: "b{1}" top: "b{1}" scale_param {{ bias_term: true }} }}
layer {{ name: "r{0}" type: "ReLU" bottom: "b{1}" top: "b{1}" }}
"""
NETS = {"ReLU": RELU, "convolution, BatchNorm, Scale, ReLU": BLOCK}


@dataclass
class Row:
    """Microseconds of CPU time. calls: launches, or layers."""

    name: str
    launches: float
    taken: float
    bare: float

    @property
    def beyond(self) -> float:
        """In bare calls: what Python adds to them."""
        return self.taken / self.bare - self.launches

    def __str__(self) -> str:
        return f"{self.name:57} {self.launches:9.2f} {self.taken:8.2f} {self.taken / self.bare:8.2f} {self.beyond:8.2f}"


def main() -> None:
    """Print the table."""
    minicaffe.set_mode_gpu()
    try:
        print(f"on {current().name}\n{'':57} launches       us    x bare   beyond")
        for row in measured():
            print(row)
    finally:
        minicaffe.set_mode_cpu()


def measured() -> list[Row]:
    """Return the rows: a bare call, a launch outside and within a pass, a layer of each net. In GPU mode."""
    gpu = current()
    nets = {name: Net(parse_net(INPUT + "".join(text.format(i, i + 1) for i in range(10)))) for name, text in NETS.items()}
    graphs = graph.available()
    for net in nets.values():
        for _ in range(3):  # compiles the kernels, allocates the memory, captures the graph
            net.forward_from_to(0, len(net.layers) - 1)
    x = Blob((288,))
    arguments = 288, x.device_data("update"), 0.0, x.device_data("update"), 0
    launch("relu.relu", np.float32, 288, *arguments)
    function, handle = gpu.kernels.bound["relu.relu", np.float32], gpu.stream.handle
    with gpu.active(), counted_launches(gpu) as count:
        bare = least(lambda: [function((2, 1), (256, 1, 1), handle, *arguments) for _ in range(CALLS)]) / CALLS
        rows = [Row("PyCUDA's prepared_async_call", 1, bare, bare)]
        outside = least(lambda: [launch("relu.relu", np.float32, 288, *arguments) for _ in range(CALLS)]) / CALLS
        rows.append(Row("a launch", 1, outside, bare))
        with gpu.running(gpu.stream):
            within = least(lambda: [launch("relu.relu", np.float32, 288, *arguments) for _ in range(CALLS)]) / CALLS
        rows.append(Row("a launch within a pass", 1, within, bare))
        for allowed in (False, True)[: 1 + graphs]:
            graph.allow_graphs(allowed)
            for name, net in nets.items():
                layers = len(net.layers) - 1  # without the input
                forward = partial(net.forward_from_to, 0, layers)
                count.clear()
                forward()
                kind = f"a layer{', as a graph' * allowed}: {name}"
                rows.append(Row(kind, len(count) / layers, least(forward) / layers, bare))
    return rows


@contextmanager
def counted_launches(gpu: Device) -> Iterator[list[None]]:
    """Replace the driver's launches in the block. Yield a list that grows by an item for each."""
    function, count = gpu.driver.Function, []
    real = function._launch_kernel
    function._launch_kernel = lambda *arguments: count.append(None)
    bindings = graph.driver() if graph.available() else None
    of_graph = bindings and bindings.cuGraphLaunch
    if bindings:
        bindings.cuGraphLaunch = lambda *arguments: count.append(None) or (bindings.CUresult.CUDA_SUCCESS,)
    try:
        yield count
    finally:
        function._launch_kernel = real
        if bindings:
            bindings.cuGraphLaunch = of_graph


def least(run: Callable[[], Any]) -> float:
    """Return the least microseconds of CPU time of a run."""
    taken = []
    for _ in range(TURNS):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return 1e6 * min(taken)


if __name__ == "__main__":
    main()
