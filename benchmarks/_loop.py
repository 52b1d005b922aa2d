"""The plain loops of roi.cpp and lattice.cpp, compiled with g++ -O2 on first use."""

from __future__ import annotations

import atexit
import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._contenders import leave_out
from benchmarks._roi import POOLED, SCALE, Array


def cpp_loop(x: Array, rois: Array, *, argmax: bool) -> dict[str, Callable[[], Any]]:
    """Return the loop on one thread, with argmax or without, by its name; empty without g++."""
    try:
        function = ctypes.CDLL(str(library())).roi_pool
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        leave_out("C++ loop", error)
        return {}
    y = np.empty((len(rois), x.shape[1], POOLED, POOLED), np.float32)
    where = np.empty(y.shape, np.int32) if argmax else None
    sizes = [ctypes.c_int(v) for v in x.shape[1:]]
    ends = [ctypes.c_int(len(rois)), ctypes.c_int(POOLED), ctypes.c_int(POOLED), ctypes.c_float(SCALE)]

    def run() -> Array:
        function(_pointer(x), *sizes, _pointer(rois), *ends, _pointer(y), None if where is None else _pointer(where))
        return y

    return {"C++ loop": run}


@functools.cache
def library(source: str = "roi.cpp") -> Path:
    """Return the shared library of a file beside this one; it goes when this process ends."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = Path(folder.name) / "loops.so"
    file = Path(__file__).with_name(source)
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", str(path), str(file)], check=True)
    return path


def _pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
