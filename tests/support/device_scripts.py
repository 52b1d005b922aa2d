"""Scripts for the CPU test device, each in a process of its own, and kernels for them."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "cpu_device" / "run.py"

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
extern "C" __global__ void turns(int* y) { y[1 + atomicAdd(&y[0], 1)] = blockIdx.x; }
extern "C" __global__ void times(const int* x, int factor, int* y) { y[0] = x[0] * factor; }
extern "C" __global__ void large(int* y) {
  __shared__ int most[12289];
  most[threadIdx.x] = y[0];
  y[1] = most[y[0]];
}
extern "C" __global__ void warps(int* y) {  // each warp takes another number of turns; y: (blocks, threads)
  __shared__ int part[1024];
  int i = threadIdx.y * blockDim.x + threadIdx.x, count = blockDim.x * blockDim.y, first = i / 32 * 32;
  int next = i + 1 < min(first + 32, count) ? i + 1 : first;
  part[i] = i;
  for (int turn = 0; turn <= i / 32; ++turn) {
    __syncwarp();
    int other = part[next];
    __syncwarp();
    part[i] = other;
  }
  __syncthreads();
  y[blockIdx.x * count + i] = part[count - 1 - i];
  if (i < 32) __syncwarp();
}
extern "C" __global__ void left_warp(int n) {
  if (threadIdx.x < n) return;
  __syncwarp();
}
extern "C" __global__ void two_in_a_warp(int n) {
  if (threadIdx.x < n) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}
extern "C" __global__ void warp_race(int* y, int n) {  // n: with the barrier
  __shared__ int part[64];
  part[threadIdx.x] = threadIdx.x;
  if (n) __syncwarp();
  y[threadIdx.x] = part[threadIdx.x ^ 1];
}
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
    """Return the result of a separate Python that runs script on the test device."""
    options = ["--sanitize", sanitize] if sanitize else []
    command = [sys.executable, str(RUN), *options, "--python", "-c", PRELUDE + script]
    return subprocess.run(command, check=False, env=os.environ | variables, capture_output=True, text=True)


def output(script: str, **variables: str) -> str:
    """Return the output of script, which must succeed."""
    done = on_device(script, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def skip_unless_built() -> None:
    """Skip where the device cannot be built; without PyCUDA nobody needs it: building it takes 6 s."""
    if not find_spec("pycuda"):
        pytest.skip(f"PyCUDA is not installed ({RUN.parent / 'install_pycuda.sh'} installs it)")
    command = [sys.executable, str(RUN), "--python", "-c", ""]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(done.stderr.strip())
