"""Captures and graphs on the test device: it refuses what a driver refuses then, and a graph does what was captured."""

from __future__ import annotations

import pytest
from device_scripts import output, skip_unless_built

PRELUDE = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cpu_device_calls.restype = ctypes.c_ulonglong
GLOBAL, THREAD_LOCAL, RELAXED = range(3)

def begin(stream, mode=THREAD_LOCAL):
    return cuda.cuStreamBeginCapture_v2(ctypes.c_void_p(stream.handle), mode)

def end(stream):
    graph = ctypes.c_void_p()
    status = cuda.cuStreamEndCapture(ctypes.c_void_p(stream.handle), ctypes.byref(graph))
    return status, graph

def instance(graph):
    made = ctypes.c_void_p()
    assert cuda.cuGraphInstantiateWithFlags(ctypes.byref(made), graph, ctypes.c_ulonglong(0)) == 0
    assert cuda.cuGraphDestroy(graph) == 0
    return made

def launch(made, stream):
    return cuda.cuGraphLaunch(made, ctypes.c_void_p(stream.handle))

def exchange(mode):
    old = ctypes.c_int(mode)
    assert cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(old)) == 0
    return old.value

def status(run):
    try:
        found = run()
        return found if type(found) is int else 0
    except driver.Error as error:
        return str(error).partition(" failed: ")[2].partition(" - ")[0]

def in_thread(run):
    found = []
    thread = threading.Thread(target=lambda: found.append(on_context(run)))
    thread.start()
    thread.join()
    return found[0]

def on_context(run):
    context = driver.Device(0).retain_primary_context()
    context.push()
    try:
        return status(run)
    finally:
        context.pop()

stream, other = driver.Stream(), driver.Stream()
x, y = driver.mem_alloc(256), driver.mem_alloc(256)
ordinary, pinned = np.ones(64, np.float32), driver.pagelocked_empty(64, np.float32)
event, before, module_image = driver.Event(), driver.Event(), b""
"""


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    skip_unless_built()


UNSUPPORTED = "operation not permitted when stream is capturing"
IMPLICIT = "operation would make the legacy stream depend on a capturing blocking stream"
CAPTURED = "operation not permitted on an event last recorded in a capturing stream"
REFUSED = {
    "stream.synchronize()": UNSUPPORTED,
    "stream.is_done()": UNSUPPORTED,
    "driver.Context.synchronize()": UNSUPPORTED,
    "driver.mem_alloc(100)": UNSUPPORTED,
    "assert cuda.cuMemFree_v2(ctypes.c_ulonglong(int(x))) == 900": "",
    "driver.pagelocked_empty(4, np.float32)": UNSUPPORTED,
    "module(KERNELS)": UNSUPPORTED,
    "before.query()": UNSUPPORTED,
    "driver.memcpy_htod_async(x, ordinary, stream)": UNSUPPORTED,
    "driver.memcpy_dtoh_async(ordinary, x, stream)": UNSUPPORTED,
    "driver.memcpy_htod(x, ordinary)": IMPLICIT,
    "driver.memcpy_dtoh(ordinary, x)": IMPLICIT,
    "driver.memset_d8(x, 0, 8)": IMPLICIT,
    "twice.prepared_call((1, 1), (64, 1, 1), x, y, 64)": IMPLICIT,
    "stream.wait_for_event(before)": "dependency created on uncaptured work in another stream",
    "event.record(stream); event.synchronize()": CAPTURED,
    "event.record(stream); event.query()": CAPTURED,
    "event.record(stream); other.wait_for_event(event)": CAPTURED,
    "assert cuda.cuStreamDestroy_v2(ctypes.c_void_p(stream.handle)) == 401": "",
}


def test_what_a_capture_refuses_makes_it_invalid_and_the_stream_goes_on() -> None:
    said = output(
        PRELUDE
        + f"""
before.record(other)
twice = function("twice", "PPi")
for words in {list(REFUSED)!r}:
    def run(words=words):
        exec(words, globals())
    assert begin(stream) == 0
    found = status(run)
    again = status(lambda: driver.memset_d8_async(x, 0, 8, stream))
    print(words, "|", found or "", "|", again, "|", end(stream)[0])
    driver.memset_d8_async(x, 0, 8, stream)
    stream.synchronize()
"""
    )
    lines = [line.split(" | ") for line in said.splitlines()]
    assert [line[:2] for line in lines] == [[words, why] for words, why in REFUSED.items()]
    assert {line[2] for line in lines} == {"operation failed due to a previous error during capture"}
    assert {line[3] for line in lines} == {"901"}


ALLOWED = """
captured = driver.Stream(1) if FLAGS else stream
assert begin(captured, MODE) == 0
print({run}, end(captured)[0])
"""


@pytest.mark.parametrize(
    "setting, run, said",
    [
        # what no stream orders: the thread's own captures, and others' global ones
        ("MODE, FLAGS = RELAXED, 0", "status(lambda: driver.mem_alloc(8))", "0 0"),
        ("MODE, FLAGS = THREAD_LOCAL, 0", "in_thread(lambda: driver.mem_alloc(8))", "0 0"),
        ("MODE, FLAGS = GLOBAL, 0", "in_thread(lambda: driver.mem_alloc(8))", f"{UNSUPPORTED} 901"),
        ("MODE, FLAGS = GLOBAL, 0", "in_thread(lambda: (exchange(THREAD_LOCAL), driver.mem_alloc(8)))", "0 0"),
        ("MODE, FLAGS = THREAD_LOCAL, 0", "status(lambda: (exchange(RELAXED), driver.mem_alloc(8)))", "0 0"),
        # the whole device, and the legacy stream, in any thread and mode
        ("MODE, FLAGS = RELAXED, 0", "in_thread(driver.Context.synchronize)", f"{UNSUPPORTED} 901"),
        ("MODE, FLAGS = RELAXED, 0", "in_thread(lambda: driver.memset_d8(x, 0, 8))", f"{IMPLICIT} 901"),
        ("MODE, FLAGS = THREAD_LOCAL, 1", "in_thread(lambda: driver.memset_d8(x, 0, 8))", "0 0"),
        # another stream
        ("MODE, FLAGS = THREAD_LOCAL, 0", "status(lambda: driver.memcpy_htod_async(x, ordinary, other))", "0 0"),
        ("MODE, FLAGS = THREAD_LOCAL, 0", "status(lambda: driver.memcpy_htod_async(x, pinned, stream))", "0 0"),
        ("MODE, FLAGS = THREAD_LOCAL, 0", "begin(stream)", "401 0"),
        ("MODE, FLAGS = THREAD_LOCAL, 0", "in_thread(lambda: end(stream)[0])", "908 901"),
    ],
)
def test_whose_calls_disturb_a_capture(setting: str, run: str, said: str) -> None:
    assert output(PRELUDE + setting + ALLOWED.replace("{run}", run)) == f"{said}\n"


def test_a_graph_does_what_was_captured_each_time_it_is_launched() -> None:
    said = output(
        PRELUDE
        + """
twice = function("twice", "PPi")
pinned[...] = np.arange(64)
result = driver.pagelocked_empty(64, np.float32)
result[...] = 0
launches = cuda.cpu_device_calls(b"launch")
assert begin(stream) == 0
driver.memcpy_htod_async(x, pinned, stream)
twice.prepared_async_call((1, 1), (64, 1, 1), stream, x, y, 64)
arguments = x, y, 32
twice.prepared_async_call((1, 1), (64, 1, 1), stream, y, x, 32)
driver.memset_d32_async(int(y) + 4, 0, 1, stream)
driver.memcpy_dtod_async(y, x, 4, stream)
driver.memcpy_dtoh_async(result, x, stream)
code, graph = end(stream)
count = ctypes.c_size_t()
assert cuda.cuGraphGetNodes(graph, None, ctypes.byref(count)) == 0
print(code, count.value, result.any())
made = instance(graph)
for start in (0, 100):
    pinned[...] = np.arange(start, start + 64)
    assert launch(made, stream) == 0
    stream.synchronize()
    print(result[:3], result[31:34], cuda.cpu_device_calls(b"launch") - launches)
print(cuda.cpu_device_calls(b"graph"), cuda.cuGraphExecDestroy(made))
"""
    )
    assert said == ("0 6 False\n[0. 4. 8.] [124.  32.  33.] 2\n[400. 404. 408.] [524. 132. 133.] 2\n2 0\n")


def test_a_graph_launched_in_two_streams_runs_one_after_the_other() -> None:
    said = output(
        PRELUDE
        + """
one = driver.mem_alloc(4)
driver.memset_d32(one, 1, 1)
add = module('extern "C" __global__ void add(int* y) { int was = y[0]; y[0] = was + 1; }').get_function("add")
add.prepare("P")
assert begin(stream) == 0
for i in range(3):
    add.prepared_async_call((1, 1), (1, 1, 1), stream, one)
made = instance(end(stream)[1])
driver.Context.synchronize()
for i in range(5):
    assert launch(made, (stream, other)[i % 2]) == 0
assert cuda.cuGraphExecDestroy(made) == 0
driver.Context.synchronize()
print(fetch(one, 1, np.int32))
"""
    )
    assert said == "[16]\n"


@pytest.mark.parametrize("memory", ["x", "y"])
def test_a_graph_that_uses_freed_memory_is_found(memory: str) -> None:
    """Also where another allocation has the same address by then."""
    said = output(
        PRELUDE
        + f"""
twice = function("twice", "PPi")
assert begin(stream) == 0
twice.prepared_async_call((1, 1), (64, 1, 1), stream, x, y, 64)
made = instance(end(stream)[1])
{memory}.free()
again = [driver.mem_alloc(256) for _ in range(20)]
assert launch(made, stream) == 0
print(status(stream.synchronize))
"""
    )
    assert said == "unspecified launch failure: twice: its memory was freed before it ran (seed 0)\n"


def test_a_lost_device_fails_every_call() -> None:
    said = output(
        PRELUDE
        + """
cuda.cpu_device_lose()
for run in (stream.synchronize, lambda: driver.mem_alloc(8), lambda: driver.memset_d8_async(x, 0, 8, stream)):
    print(status(run))
sys.stdout.flush()
os._exit(0)
"""
    )
    assert set(said.splitlines()) == {"an illegal memory access was encountered"}
