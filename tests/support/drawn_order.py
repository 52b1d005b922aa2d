"""The order in which the CPU test device runs what waits in its queues: drawn anew for each test, by its name."""

from __future__ import annotations

import ctypes
import os
import zlib

from which_device import is_test_device


def draw(test: str) -> None:
    """Let the order depend on the seed and the test's name alone, so that it is the same when the test runs by itself. On a GPU
    nothing happens."""
    if is_test_device():
        seed = int(os.environ.get("MINICAFFE_TEST_DEVICE_SEED") or 0)
        ctypes.CDLL("libcuda.so.1").cpu_device_seed(ctypes.c_ulonglong(zlib.crc32(f"{seed} {test}".encode())))
