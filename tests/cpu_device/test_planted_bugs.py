"""The test device finds bugs of the order of things, planted in minicaffe's GPU mode, and none where none is planted."""

from __future__ import annotations

import subprocess
import sys

import pytest
from device_scripts import RUN, skip_unless_built

SEEDS = 8
ORDERS = 30
"""How many seeds are tried for a bug, and how many runs each is given."""

PRELUDE = """
import ctypes, gc
import numpy as np
import minicaffe
from minicaffe import Net
from minicaffe.blob import Blob
from minicaffe.cuda import device as cuda
from minicaffe.cuda.stream import Stream
from minicaffe.errors import DeviceError
from minicaffe.formats.prototxt import parse_net

minicaffe.set_mode_gpu()
gpu = cuda.current()
first, second = Stream(gpu), Stream(gpu)
N = 1000

def scaled(x, factor, y):
    cuda.launch("eltwise.scaled", np.float32, N, N, x, factor, y)

def twos():
    blob = Blob((N,))
    blob.data[...] = 2
    blob.device_data("read")
    return blob

def sound():
    try:
        return case()
    except DeviceError as error:
        assert "freed before it ran" in str(error), error
        return False
"""

LOOP = """
found = 0
for seed in range({seeds}):
    ctypes.CDLL("libcuda.so.1").cpu_device_seed(ctypes.c_ulonglong(seed))
    found += not all(sound() for _ in range({orders}))
print(found)
"""

EARLY_BLOCK = """
def case():  # the second stream writes to the block that the first one still reads
    with gpu.running(first):
        x, y = twos(), Blob((N,))
        scaled(x.device_data("read"), 3.0, y.device_data("write"))
        del x
        with gpu.running(second):
            z = Blob((N,))
            gpu.zero(z.device_data("write"), 4 * N)
    return (y.data == 6).all()
"""
NETS = """
from minicaffe.cuda import graph
graph.allow_graphs(False)  # a graph's blocks are its own
RELUS = 'input: "r0" input_shape { dim: 1000 }' + "".join(
    f'layer {{ name: "r{i}" type: "Power" bottom: "r{i - 1}" top: "r{i}" power_param {{ scale: 2 }} }}' for i in range(1, 7)
)
one, other = (Net(parse_net(RELUS), keep="outputs") for _ in range(2))
one.before_forward(lambda i: other.forward(r0=np.full(N, 5.0)) if i == 4 else None)
def case():  # one net in the middle of the other: what the outer one no longer needs, the inner one gets
    return (one.forward(r0=np.ones(N))["r6"] == 64).all()
"""
EARLY_PINNED = """
def case():  # the second array is the first one's memory
    with gpu.running(first):
        array = gpu.pinned(N, np.float32)
        array[...] = 2
        memory = gpu.allocate(4 * N)
        gpu.to_device(memory.address, array)
        del array
        other = gpu.pinned(N, np.float32)
        other[...] = 7
        found = gpu.fetch(memory.address, N, np.float32)
    return (found == 2).all()
"""
NO_EVENT = """
factor = 1.0
def case():  # the second stream reads what the first one writes: each time another number, as memory is used again
    global factor
    factor += 1
    with gpu.running(first):
        x, y, z = twos(), Blob((N,)), Blob((N,))
        with gpu.running(second):
            to = z.device_data("write")  # before: for another block the pool would make the stream wait
        scaled(x.device_data("read"), factor, y.device_data("write"))
        with gpu.running(second):
            scaled(y.device_data("read"), 3.0, to)
        return (z.data == 6 * factor).all()
"""
EARLY_FREE = """
def case():  # the driver gets back what a kernel in a queue reads
    with gpu.running(first):
        x, y = twos(), Blob((N,))
        scaled(x.device_data("read"), 3.0, y.device_data("write"))
        del x
        gpu.release_memory()
    return (y.data == 6).all()
"""
GRAPH = """
from minicaffe.cuda import graph
RELUS = 'input: "r0" input_shape { dim: 1000 }' + "".join(
    f'layer {{ name: "r{i}" type: "Power" bottom: "r{i - 1}" top: "r{i}" power_param {{ scale: 2 }} }}' for i in range(1, 7)
)
"""
GRAPHS_MEMORY = """
net = Net(parse_net(RELUS), keep="outputs")
for number in range(2):
    net.forward(r0=np.ones(N))
gc.collect()
others = [Blob((N,)) for _ in range(4)]
for blob in others:
    gpu.zero(blob.device_data("write"), 4 * N)
def case():  # the graph's inner memory is another blob's by now
    right = (net.forward(r0=np.ones(N))["r6"] == 64).all()
    return right and not any(blob.read_data().any() for blob in others)
"""
GRAPHS_READER = """
net, number = Net(parse_net(RELUS)), 0.0
for _ in range(3):
    net.forward(r0=np.ones(N))
def case():  # a replay overwrites what another stream still reads
    global number
    number += 1
    net.forward(r0=np.full(N, number))
    with gpu.running(second):
        y = Blob((N,))
        scaled(net.blobs["r6"].device_data("read"), 3.0, y.device_data("write"))
        net.forward(r0=np.zeros(N))
    return (y.data == 192 * number).all()
"""
GRAPHS_INPUT = """
net, number = Net(parse_net(RELUS)), 0.0
for _ in range(3):
    net.forward(r0=np.ones(N))
x = twos()
def case():  # a replay reads what another stream still writes
    global number
    number += 1
    with gpu.running(second):
        scaled(x.device_data("read"), number, net.blobs["r0"].device_data("write"))
        net.forward_from_to(0, len(net.layers) - 1)
    return (net.blobs["r6"].read_data() == 128 * number).all()
"""
HOLDS_NOTHING = """
made = graph.Graph.__init__
def without(self, capture, handle):
    made(self, capture, handle)
    self._held = None
graph.Graph.__init__ = without
"""
WITHOUT_READERS = """
from minicaffe.blob import SyncedMemory
from minicaffe.cuda.replay import Replay
run, wait = Replay.run, SyncedMemory.wait_for_readers
def without(self, stream):
    SyncedMemory.wait_for_readers = lambda self, stream: None
    run(self, stream)
    SyncedMemory.wait_for_readers = wait
Replay.run = without
"""
WITHOUT_WRITER = """
from minicaffe.blob import SyncedMemory
SyncedMemory.is_in = lambda self, block, count, stream: self._device is block
"""
WITHOUT_WAIT = """
def to_device(self, to, array):
    with self.active():
        self.driver.memcpy_htod_async(to, array, self.current_stream.handle)
cuda.Device.to_device = to_device
"""
NO_POOL_ORDER = "gpu._pool._order = lambda *streams: None\n"
NO_ORDER = "cuda.Device.order = lambda *arguments: None\n"
NO_SETTLE = "gpu._pool._settle = lambda: None\n"
BUGS = {
    "a block freed too early across streams": (NO_POOL_ORDER, EARLY_BLOCK),
    "a net's blocks freed too early, in another net's forward": (NO_POOL_ORDER, NETS),
    "a pinned array used again too early": (WITHOUT_WAIT, EARLY_PINNED),
    "a missing event": (NO_ORDER, NO_EVENT),
    "memory given back to the driver too early": (NO_SETTLE, EARLY_FREE),
    "a graph that does not keep its memory": (GRAPH + HOLDS_NOTHING, GRAPHS_MEMORY),
    "a graph that does not wait for readers": (GRAPH + WITHOUT_READERS, GRAPHS_READER),
    "a graph that does not wait for a writer": (GRAPH + WITHOUT_WRITER, GRAPHS_INPUT),
}


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    skip_unless_built()


def found(script: str) -> int:
    """In how many of SEEDS the device finds something in script's case()."""
    command = [sys.executable, str(RUN), "--python", "-c", PRELUDE + script + LOOP.format(seeds=SEEDS, orders=ORDERS)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("bug, case", BUGS.values(), ids=BUGS)
def test_a_planted_bug_is_found_with_each_seed(bug: str, case: str) -> None:
    if bug.startswith(GRAPH):
        pytest.importorskip("cuda.bindings.driver", reason="cuda.bindings makes the graphs")
    assert found(bug + case) == SEEDS


@pytest.mark.parametrize("case", [case for _, case in BUGS.values()], ids=BUGS)
def test_nothing_is_found_without_it(case: str) -> None:
    assert found(GRAPH + case) == 0
