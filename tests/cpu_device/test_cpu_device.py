"""The CPU test device itself: it computes, it refuses what a GPU refuses, and the sanitizers find planted errors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from device_scripts import on_device, output, skip_unless_built


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    skip_unless_built()


def test_its_name_says_what_it_is_and_it_measures_no_time() -> None:
    said = output("""
start, end = driver.Event(), driver.Event()
start.record(); end.record(); end.synchronize()
print(driver.Device(0).name(), start.time_till(end))
""")
    assert said == "CPU test device (not a GPU) nan\n"


@pytest.mark.parametrize("real, dtype", [("float", "float32"), ("double", "float64")])
def test_kernels_with_and_without_barriers(real: str, dtype: str) -> None:
    output(f"""
x = np.arange(5 * 64, dtype="{dtype}") / 8
on_device, y = driver.to_device(x), driver.mem_alloc(x.nbytes)
function("twice", "PPi", "{real}").prepared_call((6, 1), (60, 1, 1), on_device, y, x.size)
np.testing.assert_array_equal(fetch(y, x.size, x.dtype), 2 * x)
for _ in range(2):
    function("sums", "PPi", "{real}").prepared_call((5, 1), (64, 1, 1), on_device, y, 3)
    np.testing.assert_array_equal(fetch(y, 5, x.dtype), x.reshape(5, 64).sum(1))
""")


def test_every_thread_of_a_grid_of_three_axes_runs_once() -> None:
    output("""
y = driver.mem_alloc(4 * 2 * 3 * 5 * 4 * 3 * 2)
function("place", "P").prepared_call((2, 3, 5), (4, 3, 2), y)
np.testing.assert_array_equal(fetch(y, 720, np.int32), np.arange(720))
""")


@pytest.mark.parametrize("width, height", [(100, 1), (32, 1), (7, 1), (10, 9)])
def test_warps_wait_for_themselves(width: int, height: int) -> None:
    output(f"""
count = {width * height}
y = driver.mem_alloc(8 * count)
function("warps", "P").prepared_call((2, 1), ({width}, {height}, 1), y)
expected = []
for first in range(0, count, 32):
    warp = range(first, min(first + 32, count))
    expected += np.roll(warp, -(first // 32 + 1)).tolist()
assert fetch(y, 2 * count, np.int32).tolist() == 2 * expected[::-1]
""")


def test_threads_without_the_warps_barrier_run_one_after_the_other() -> None:
    """So what a later thread writes is missing."""
    output("""
y = driver.mem_alloc(64 * 4)
for barrier in 0, 1:
    function("warp_race", "Pi").prepared_call((1, 1), (64, 1, 1), y, barrier)
    assert (fetch(y, 64, np.int32) == np.arange(64) ^ 1).all() == barrier
""")


def test_a_warp_may_end_while_another_waits() -> None:
    output('function("left_warp", "i").prepared_call((2, 1), (70, 1, 1), 32)\ndriver.Context.synchronize()')


def test_arguments_stand_at_their_own_alignment() -> None:
    output("""
y = driver.mem_alloc(4)
function("mixed", "bdhfqP").prepared_call((1, 1), (1, 1, 1), 1, 2.5, 30, 400.25, 5000, y)
assert fetch(y, 1, np.float32) == 5433.75
""")


def test_words_of_the_language() -> None:
    output("""
y, counts = driver.to_device(np.zeros(5, np.float64)), driver.to_device(np.zeros(5, np.int32))
function("words", "PP", "double").prepared_call((3, 1), (7, 1, 1), y, counts)
assert fetch(y, 5, np.float64).tolist() == [1, 2, 1.5, 0.25, 21]
assert fetch(counts, 5, np.int32).tolist() == [6, 21, 16, 9, 9]
""")


def test_fresh_memory_is_nan() -> None:
    output("assert np.isnan(fetch(driver.mem_alloc(40), 10, np.float32)).all()")


REFUSED = {
    "1025 threads a block": ('function("place", "P").prepared_call((1, 1), (1025, 1, 1), 0)', "invalid argument"),
    "65536 blocks of the second axis": ('function("place", "P").prepared_call((1, 65536), (1, 1, 1), 0)', "invalid argument"),
    "no block at all": ('function("place", "P").prepared_call((0, 1), (1, 1, 1), 0)', "invalid argument"),
    "over the launch bounds": ('function("sums", "PPi").prepared_call((1, 1), (65, 1, 1), 0, 0, 1)', "too many resources"),
    "an argument too few": (
        'function("place", "Pi").prepared_call((1, 1), (1, 1, 1), 0, 1)',
        "takes 8 bytes of arguments, not 12",
    ),
    "more shared memory than a block has": (
        'function("large", "P").prepared_call((1, 1), (1, 1, 1), 0)',
        "large needs 49156 bytes of shared memory, over 49152",
    ),
    "dynamic shared memory besides": (
        'function("sums", "PPi").prepared_call((1, 1), (64, 1, 1), 0, 0, 1, shared_size=49000)',
        "sums needs 49256 bytes of shared memory, over 49152",
    ),
    "memory that is freed while a kernel waits": (
        """x, y = driver.mem_alloc(4), driver.mem_alloc(4)
times = function("times", "PiP")
times.prepared_call((1, 1), (1, 1, 1), x, 3, y)
x.free()
driver.Context.synchronize()""",
        "times: its memory was freed before it ran (seed 0)",
    ),
    "memory that is freed while a copy waits": (
        """x, y = driver.mem_alloc(4), driver.mem_alloc(4)
driver.memcpy_dtod_async(x, y, 4, driver.Stream())
y.free()
driver.Context.synchronize()""",
        "a copy: its memory was freed before it ran (seed 0)",
    ),
    "an unknown kernel": ('function("third", "P")', "named symbol not found"),
    "a copy beyond the memory": ("fetch(driver.mem_alloc(36), 10, np.float32)", "invalid argument"),
    "a fill beyond the memory": ("driver.memset_d32(driver.mem_alloc(36), 0, 10)", "invalid argument"),
    "threads that leave before a barrier": (
        'function("left_early", "i").prepared_call((1, 1), (9, 1, 1), 4)\ndriver.Context.synchronize()',
        "left_early: threads of one block ended while others wait at __syncthreads (line 38)",
    ),
    "threads at different barriers": (
        'function("two_barriers", "i").prepared_call((1, 1), (9, 1, 1), 4)\ndriver.Context.synchronize()',
        "two_barriers: threads of one block wait at different __syncthreads (lines 42 and 44)",
    ),
    "threads that leave before their warp's barrier": (
        'function("left_warp", "i").prepared_call((1, 1), (70, 1, 1), 36)\ndriver.Context.synchronize()',
        "left_warp: threads of one warp ended while others wait at __syncwarp (line 86)",
    ),
    "threads of a warp at different barriers": (
        'function("two_in_a_warp", "i").prepared_call((1, 1), (64, 1, 1), 36)\ndriver.Context.synchronize()',
        "two_in_a_warp: threads of one warp wait at __syncwarp and at another barrier (lines 90 and 92)",
    ),
    "a warp that ends before the block's barrier": (
        'function("two_in_a_warp", "i").prepared_call((1, 1), (64, 1, 1), 32)\ndriver.Context.synchronize()',
        "two_in_a_warp: threads of one block ended while others wait at __syncthreads (line 92)",
    ),
    "a thread without a context": (
        "pycuda.autoprimaryctx.context.pop()\ntry: driver.mem_alloc(1)\nfinally: pycuda.autoprimaryctx.context.push()",
        "invalid device context",
    ),
    "a GPU that is not there": ("driver.Device(1)", "invalid device ordinal"),
}


@pytest.mark.parametrize("script, words", REFUSED.values(), ids=REFUSED)
def test_refused(script: str, words: str) -> None:
    done = on_device(script)
    assert done.returncode != 0
    assert words in done.stderr


def test_goes_on_after_a_failed_launch() -> None:
    output("""
x = driver.to_device(np.ones(64, np.float32))
for _ in range(3):
    try:
        function("left_early", "i").prepared_call((1, 1), (9, 1, 1), 4)
        driver.Context.synchronize()
        raise SystemExit("nothing was said")
    except driver.LaunchError:
        pass
    function("sums", "PPi").prepared_call((1, 1), (64, 1, 1), x, x, 1)
    assert fetch(x, 1, np.float32) == 64
    driver.memcpy_htod(x, np.ones(64, np.float32))
""")


def test_blocks_run_in_an_order_that_the_seed_draws() -> None:
    script = """
y = driver.to_device(np.zeros(51, np.int32))
function("turns", "P").prepared_call((50, 1), (1, 1, 1), y)
print(fetch(y, 51, np.int32)[1:].tolist())
"""
    orders = [output(script, MINICAFFE_TEST_DEVICE_SEED=seed) for seed in ("1", "2", "2")]
    assert orders[0] != orders[1] == orders[2]
    for order in orders:
        numbers = [int(word) for word in order.strip("[]\n").split(",")]
        assert numbers != list(range(50))
        assert sorted(numbers) == list(range(50))


STREAMS = """
from pycuda.driver import Event, Stream
times = function("times", "PiP")
number = 0

def of(value):  # a number on the device: another one each time
    return driver.to_device(np.array([value], np.int32))

def found(case):  # what some orders give; case(number) returns the address of the result
    results = set()
    for number in range(1, 25):
        results.add(int(fetch(case(number), 1, np.int32)[0]) // number)
    return results

def twice(stream, x, y):
    times.prepared_async_call((1, 1), (1, 1, 1), stream, x, 2, y)

NON_BLOCKING = 1
kept = []  # memory stays until the end: freed too early is another error
"""


def test_nothing_runs_before_a_wait() -> None:
    output(
        STREAMS
        + """
stream, event = Stream(), Event()
x, y = of(21), of(0)
twice(stream, x, y)
event.record(stream)
assert not event.query()
while not event.query(): pass  # it makes progress all the same
assert stream.is_done() and fetch(y, 1, np.int32) == 42
"""
    )


def test_asynchronous_copies_read_the_host_when_they_run_and_others_at_once() -> None:
    output(
        STREAMS
        + """
stream, to = Stream(), [of(0) for _ in range(4)]
pinned, plain = driver.pagelocked_empty(1, np.int32), np.empty(1, np.int32)
for i, array in enumerate((pinned, plain)):
    array[:] = 1
    driver.memcpy_htod(to[i], array)
    driver.memcpy_htod_async(to[2 + i], array, stream)
    array[:] = 2
stream.synchronize()
assert [int(fetch(each, 1, np.int32)[0]) for each in to] == [1, 1, 2, 2]
"""
    )


ORDERS = {  # what runs on two streams; the results that are possible, as multiples
    "no event": ("twice(a, x, y); twice(b, y, z); b.synchronize(); return z", "{0, 4}"),
    "an event": ("twice(a, x, y); event.record(a); b.wait_for_event(event); twice(b, y, z); b.synchronize(); return z", "{4}"),
    "an event recorded too early": (
        "event.record(a); twice(a, x, y); b.wait_for_event(event); twice(b, y, z); b.synchronize(); return z",
        "{0, 4}",
    ),
    "an event recorded anew": (
        "event.record(a); twice(a, x, y); event.record(a); b.wait_for_event(event); event.record(b); twice(b, y, z);"
        "b.synchronize(); return z",
        "{4}",
    ),
    "the default stream, after a blocking one": ("twice(a, x, y); twice(None, y, z); return z", "{4}"),
    "a blocking stream, after the default one": ("twice(None, x, y); twice(b, y, z); b.synchronize(); return z", "{4}"),
    "by way of the default stream": (
        "twice(a, x, y); driver.memset_d32(w, 0, 1); twice(b, y, z); b.synchronize(); return z",
        "{4}",
    ),
    "a non-blocking stream": ("twice(free, x, y); twice(None, y, z); return z", "{0, 4}"),
    "a copy from ordinary memory, and a non-blocking stream": (
        "driver.memcpy_htod(y, np.array([2 * number], np.int32)); twice(free, y, z); free.synchronize(); return z",
        "{0, 4}",
    ),
    "a copy from page-locked memory": (
        "pinned[:] = 2 * number; driver.memcpy_htod(y, pinned); twice(free, y, z); free.synchronize(); return z",
        "{4}",
    ),
}


@pytest.mark.parametrize("case, possible", ORDERS.values(), ids=ORDERS)
def test_every_order_that_the_streams_allow(case: str, possible: str) -> None:
    output(
        f"""{STREAMS}
a, b, free, event = Stream(), Stream(), Stream(NON_BLOCKING), Event()
pinned = driver.pagelocked_empty(1, np.int32)

def case(number):
    x, y, z, w = of(number), of(0), of(0), of(0)
    driver.Context.synchronize()
    kept.extend([x, y, z, w])
    {case}

assert found(case) == {possible}, found(case)
"""
    )


NVCC = """#!/bin/sh
case "$*" in
*--version*) echo "an nvcc that is none" ;;
*) cat >&2 << 'END'
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'place' for 'sm_90'
ptxas info    : Function properties for place
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 72 registers, used 0 barriers
ptxas info    : Compiling entry function 'twice' for 'sm_90'
ptxas info    : Used 24 registers, used 1 barriers, 49184 bytes smem
END
esac
"""


@pytest.mark.parametrize(
    "kernel, formats, threads, words",
    [
        ("place", "P", 1024, "place needs 73728 registers of a block, over 65536"),
        ("place", "P", 896, ""),
        ("twice", "PPi", 1, "twice needs 49184 bytes of shared memory, over 49152"),
    ],
)
def test_what_ptxas_says_is_a_limit(tmp_path: Path, kernel: str, formats: str, threads: int, words: str) -> None:
    (tmp_path / "nvcc").write_text(NVCC)
    (tmp_path / "nvcc").chmod(0o755)
    arguments = ", 0, 0"[: 3 * (len(formats) - 1)]
    done = on_device(
        f"y = driver.mem_alloc(4096)\nfunction('{kernel}', '{formats}').prepared_call((1, 1), ({threads}, 1, 1), y{arguments})",
        PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
    )
    assert (done.returncode != 0) == bool(words), done.stderr
    assert words in done.stderr


def test_out_of_memory() -> None:
    said = output(
        """
held = driver.mem_alloc(600)
try:
    driver.mem_alloc(500)
except driver.MemoryError as error:
    print(error)
del held
driver.mem_alloc(1000)
print(driver.mem_get_info())
""",
        MINICAFFE_TEST_DEVICE_BYTES="1000",
    )
    assert said == "cuMemAlloc failed: out of memory\n(1000, 1000)\n"


def test_no_device() -> None:
    done = on_device("", MINICAFFE_TEST_DEVICE_COUNT="0")
    assert "cuInit failed: no CUDA-capable device is detected" in done.stderr


def test_a_compile_error_names_file_and_line() -> None:
    said = output("""
try:
    module('#line 1 "cuda/broken.cu"\\nextern "C" __global__ void f() {\\n  int i = unknown;\\n}\\n')
except driver.CompileError as error:
    print(error.stderr)
""")
    assert "cuda/broken.cu:2:11: error: 'unknown' was not declared in this scope" in said.replace("‘", "'").replace("’", "'")


def test_two_threads() -> None:
    output("""
kernel = function("sums", "PPi")
wrong = []

def work(seed):
    context = driver.Device(0).retain_primary_context()
    context.push()
    x = np.random.RandomState(seed).randint(0, 9, (3, 64)).astype(np.float32)
    on_device, y = driver.to_device(x), driver.mem_alloc(12)
    for _ in range(200):
        kernel.prepared_call((3, 1), (64, 1, 1), on_device, y, 1)
        if (fetch(y, 3, np.float32) != x.sum(1)).any():
            wrong.append(seed)
    del on_device, y
    context.pop()

threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not wrong, wrong
""")


PLANTED = {
    "past the memory": (
        "address,undefined",
        'function("past_the_end", "P").prepared_call((1, 1), (64, 1, 1), y)',
        "heap-buffer-overflow",
    ),
    "past a shared array": (
        "address,undefined",
        'function("past_shared", "Pi").prepared_call((1, 1), (64, 1, 1), y, 1)',
        "global-buffer-overflow",
    ),
    "integer overflow": (
        "address,undefined",
        'function("overflow", "Pi").prepared_call((1, 1), (1, 1, 1), y, 1)',
        "signed integer overflow",
    ),
    "no barrier": ("thread", 'function("race", "Pi").prepared_call((1, 1), (32, 1, 1), y, 0)', "data race"),
    "no barrier of the warp": ("thread", 'function("warp_race", "Pi").prepared_call((1, 1), (64, 1, 1), y, 0)', "data race"),
    "no atomicAdd": ("thread", 'function("no_atomic", "P").prepared_call((1, 1), (32, 1, 1), y)', "data race"),
}


@pytest.mark.parametrize("sanitize, script, words", PLANTED.values(), ids=PLANTED)
def test_a_sanitizer_finds_a_planted_error(sanitize: str, script: str, words: str) -> None:
    done = on_device("y = driver.mem_alloc(64 * 4)\n" + script, sanitize)
    assert done.returncode != 0
    assert words in done.stderr
    assert "kernel.cu:" in done.stderr


@pytest.mark.parametrize("sanitize", ["address,undefined", "thread"])
def test_a_sanitizer_is_content_with_sound_kernels(sanitize: str) -> None:
    script = """
x = driver.to_device(np.ones(128, np.float32))
function("race", "Pi").prepared_call((2, 1), (32, 1, 1), x, 1)
function("sums", "PPi").prepared_call((2, 1), (64, 1, 1), x, x, 2)
function("warp_race", "Pi").prepared_call((2, 1), (40, 1, 1), x, 1)
function("warps", "P").prepared_call((1, 1), (70, 1, 1), x)
"""
    done = on_device(script, sanitize)
    assert (done.returncode, done.stderr) == (0, "")
