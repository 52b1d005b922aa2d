"""The CPU test device itself: it computes, it refuses what a GPU refuses, and the sanitizers find planted errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parent / "run.py"

KERNELS = r"""
extern "C" __global__ void twice(const REAL* x, REAL* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
extern "C" __global__ void __launch_bounds__(64) sums(const REAL* x, REAL* y, int rounds) {  // of 64 numbers a block
  __shared__ REAL part[64];
  for (int round = 0; round < rounds; ++round) {
    __syncthreads();
    part[threadIdx.x] = x[blockIdx.x * 64 + threadIdx.x];
    for (int step = 32; step > 0; step /= 2) {
      __syncthreads();
      if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    }
  }
  if (threadIdx.x == 0) y[blockIdx.x] = part[0];
}
extern "C" __global__ void place(int* y) {
  int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  int i = block * blockDim.x * blockDim.y * blockDim.z + thread;
  y[i] = i;
}
extern "C" __global__ void mixed(char a, double b, short c, float d, long long e, REAL* y) { y[0] = a + b + c + d + e; }
extern "C" __global__ void words(REAL* y, int* counts) {
  REAL nan = (REAL)NAN;
  y[0] = max((REAL)1, nan);
  y[1] = min(nan, (REAL)2);
  y[2] = __fmul_rn(3.f, 0.5f);
  y[3] = rsqrt((REAL)16);
  atomicAdd(&y[4], (REAL)1);
  atomicMax(&counts[0], (int)threadIdx.x);
  atomicAdd(&counts[1], 1);
  if (threadIdx.x == 0) counts[2] = __popcll(0xFF00FFull), counts[3] = atomicCAS(&counts[4], 0, 9);
}
extern "C" __global__ void left_early(int n) {
  if (threadIdx.x < n) return;
  __syncthreads();
}
extern "C" __global__ void two_barriers(int n) {
  if (threadIdx.x < n) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
extern "C" __global__ void past_the_end(REAL* y) { y[threadIdx.x + 1] = 1; }
extern "C" __global__ void past_shared(REAL* y, int n) {
  __shared__ REAL part[64];
  REAL* p = n ? part : y;
  p[threadIdx.x + n] = 1;
  y[threadIdx.x] = p[threadIdx.x];
}
extern "C" __global__ void overflow(int* y, int n) { y[0] = 0x7FFFFFFF + n; }
extern "C" __global__ void race(REAL* y, int n) {  // n: with the barrier
  __shared__ REAL part[32];
  part[threadIdx.x] = threadIdx.x;
  if (n) __syncthreads();
  y[threadIdx.x] = part[(threadIdx.x + 1) % 32];
}
extern "C" __global__ void no_atomic(int* y) { y[0] += 1; }
"""

PRELUDE = f"""
import os, threading
import numpy as np
import pycuda.autoprimaryctx
import pycuda.driver as driver
from pycuda.compiler import SourceModule

def module(source, real="float"):
    return SourceModule(source, nvcc=os.environ["MINICAFFE_NVCC"], no_extern_c=True, options=["-DREAL=" + real])

def function(name, formats, real="float"):
    found = module(KERNELS, real).get_function(name)
    found.prepare(formats)
    return found

def fetch(address, count, dtype):
    array = np.empty(count, dtype)
    driver.memcpy_dtoh(array, address)
    return array

KERNELS = {KERNELS!r}
"""


def on_device(script: str, sanitize: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """What a Python of its own says that runs script on the test device."""
    options = ["--sanitize", sanitize] if sanitize else []
    command = [sys.executable, str(RUN), *options, "--python", "-c", PRELUDE + script]
    return subprocess.run(command, check=False, env=os.environ | variables, capture_output=True, text=True)


def output(script: str, **variables: str) -> str:
    """What script prints; it must end well."""
    done = on_device(script, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    command = [sys.executable, str(RUN), "--python", "-c", ""]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(done.stderr.strip())


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
"""
    done = on_device(script, sanitize)
    assert (done.returncode, done.stderr) == (0, "")
