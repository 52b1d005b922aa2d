"""What compiles loops, and what a GPU requires: what is found here, and what to do about missing parts."""

from __future__ import annotations

import ctypes.util
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

import numpy as np

from minicaffe.blob import Blob
from minicaffe.compiled import jit
from minicaffe.cuda import blas, cudnn, device, graph
from minicaffe.cuda.compilers import compilers
from minicaffe.errors import DeviceError, install
from minicaffe.version import __version__


@dataclass(frozen=True)
class Finding:
    """One requirement: its name, whether it is met, what was found, and advice if it is not met."""

    what: str
    good: bool
    found: str
    advice: str = ""

    def __str__(self) -> str:
        text = f"{'ok ' if self.good else '-- '} {self.what}: {self.found}"
        return f"{text}\n      {self.advice}" if self.advice else text


def examine() -> Iterator[Finding]:
    """Check everything from Python to a running kernel; without a GPU, kernels and libraries are not checked."""
    yield Finding("minicaffe", True, f"{__version__}, Python {platform.python_version()}, NumPy {np.__version__}")
    yield _loops()
    yield _driver_library()
    yield _pycuda()
    yield _compiler()
    try:
        gpus = device.installed_gpus()
    except DeviceError as error:
        advice = "nets run on the CPU: set_mode_cpu(), --device cpu (the default)"
        yield Finding("GPU", False, str(error).partition(";")[0], advice)
        return
    for gpu in gpus:
        yield Finding("GPU", True, str(gpu))
    yield _kernel()
    yield _products()
    yield _convolutions()
    yield _graphs()


def _loops() -> Finding:
    what, version = "compiled loops", jit.installed()
    if version is None:
        return Finding(what, False, "Numba is not installed: NumPy computes all layers", f"{install('fast')}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the finding says it
        good = jit.compiled()
    if jit.problem():
        return Finding(what, False, jit.problem(), f"{install('fast')} --upgrade")
    off = f"{jit.VARIABLE}=numpy" if os.environ.get(jit.VARIABLE) == "numpy" else f"{jit.DISABLED} is set"
    return Finding(what, good, f"Numba {version}" if good else f"Numba {version} is here, but {off}")


def _driver_library() -> Finding:
    name = "nvcuda" if sys.platform == "win32" else "cuda"
    found = ctypes.util.find_library(name)
    if found is None:
        try:
            ctypes.CDLL("libcuda.so.1")  # find_library needs ldconfig or a compiler
            found = "libcuda.so.1"
        except OSError:
            advice = "install NVIDIA's driver for the card; in a container, start it with --gpus all"
            return Finding("NVIDIA driver", False, "its library (libcuda) is not on this machine", advice)
    return Finding("NVIDIA driver", True, found)


def _pycuda() -> Finding:
    try:
        return Finding("PyCUDA", True, metadata.version("pycuda"))
    except metadata.PackageNotFoundError:
        advice = f"{install('gpu')}; pip builds its wheel, which needs the CUDA toolkit, g++ and NumPy"
        return Finding("PyCUDA", False, "not installed", advice)


def _compiler() -> Finding:
    try:
        return Finding("kernel compiler", True, "; then ".join(compiler.version for compiler in compilers()))
    except DeviceError as error:
        advice = f"install the CUDA toolkit, or {install('gpu-cu13')}"
        return Finding("kernel compiler", False, str(error).partition(": ")[2], advice)


def _products() -> Finding:
    """The library that multiplies matrices; needs a GPU."""
    used = blas.backend()
    if used.startswith("cuBLAS"):
        return Finding("matrix products", True, used)
    advice = f"minicaffe's kernel is used, which is slower; {install('gpu-cu13')} for cuBLAS"
    return Finding("matrix products", False, used, advice)


def _convolutions() -> Finding:
    """The library that computes convolutions; needs a GPU."""
    used = cudnn.backend()
    return Finding("convolutions", used.startswith("cuDNN"), used)


def _graphs() -> Finding:
    """Whether nets run as CUDA graphs."""
    if not graph.allowed():
        return Finding(
            "CUDA graphs", False, f"switched off ({graph.VARIABLE}=0, or allow_graphs): each kernel is launched by itself"
        )
    if graph.driver() is None:
        found = "cuda.bindings is not installed: each kernel is launched by itself"
        return Finding("CUDA graphs", False, found, install("gpu-cu13"))
    return Finding("CUDA graphs", True, f"cuda.bindings {metadata.version('cuda-bindings')}")


def _kernel() -> Finding:
    """Compile a kernel, run it and check its result."""
    try:
        gpu = device.current()
        x, y = Blob((5,)), Blob((5,))
        x.data[...] = [-2, -1, 0, 1, 2]
        device.launch("relu.relu", np.float32, 5, 5, x.device_data("read"), 0.0, y.device_data("write"), 0)
        right = np.array_equal(y.read_data(), [0, 0, 0, 1, 2])
    except DeviceError as error:
        return Finding("a kernel", False, str(error))
    found = f"compiled and run on {gpu.name}" if right else f"{gpu.name} computed {y.read_data()} for [0, 0, 0, 1, 2]"
    return Finding("a kernel", right, found, "" if right else "the driver and the compiler may not fit together")
