"""doctor and device-query: what is found here, and what to do about missing parts."""

from __future__ import annotations

import ctypes.util
import os
import platform
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.metadata import PackageNotFoundError, distribution, version
from typing import Any

import numpy as np

from minicaffe.blob import Blob
from minicaffe.compiled import jit
from minicaffe.cuda import blas, cudnn, device, graph
from minicaffe.cuda.compilers import compilers
from minicaffe.cuda.device import installed_gpus
from minicaffe.errors import DeviceError, install
from minicaffe.threads import available_cores
from minicaffe.version import __version__

from .groups import use_device
from .options import option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    report: bool = option("--report", "Print a block for a bug report, with versions and without names of folders.")


@with_options(DoctorOptions)
def doctor_command(options: DoctorOptions) -> None:
    """Check processor, BLAS, compiled loops and GPU; print how to install missing parts.

    Example:  minicaffe doctor
    """
    if not options.report:
        for finding in examine():
            echo(str(finding))
        return
    for line in report():
        echo(line)


def report() -> Iterator[str]:
    """Yield the lines of a bug report, a block of Markdown."""
    yield "```text"
    yield f"minicaffe {__version__}, Python {platform.python_version()} ({platform.python_implementation()})"
    yield f"{platform.system()} {platform.release()}, {platform.machine()}"
    yield ", ".join(f"{name} {known}" for name, known in packages())
    for finding in examine():
        yield without_folders(str(finding))
    yield "```"


def packages() -> Iterator[tuple[str, str]]:
    """Yield the packages that minicaffe and its extras need, and their installed versions, sorted by name."""
    try:
        needed = distribution("minicaffe").requires or []
    except PackageNotFoundError:
        needed = ["numpy", "protobuf", "click", "rich", "pillow", "pyyaml", "threadpoolctl"]
    names = {re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in needed} - {"minicaffe"}
    for name in sorted(names, key=str.lower):
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


PATH = re.compile(r"(?<![\w.])(?:[A-Za-z]:)?(?:[/\\][^/\\\s,;:()\"']+)+")


def without_folders(text: str) -> str:
    """Return text in which only the last name of each absolute path is left."""
    return PATH.sub(lambda path: ".../" + re.split(r"[/\\]", path[0])[-1], text)


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
    """Yield a Finding for each part, from Python to a running kernel. Without a GPU, kernels and libraries are not checked."""
    yield Finding("minicaffe", True, f"{__version__}, Python {platform.python_version()}, NumPy {np.__version__}")
    yield Finding("processor", True, f"{cpu_name()}, {cores()} cores for this process")
    yield Finding("BLAS", True, f"{blas_name(numpy_config())}, threads: {thread_variables()}")
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
        warnings.simplefilter("ignore")  # the finding reports it
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
    """Find the library that multiplies matrices; needs a GPU."""
    used = blas.backend()
    if used.startswith("cuBLAS"):
        return Finding("matrix products", True, used)
    advice = f"minicaffe's kernel is used, which is slower; {install('gpu-cu13')} for cuBLAS"
    return Finding("matrix products", False, used, advice)


def _convolutions() -> Finding:
    """Find the library that computes convolutions; needs a GPU."""
    used = cudnn.backend()
    return Finding("convolutions", used.startswith("cuDNN"), used)


def _graphs() -> Finding:
    """Find out whether nets run as CUDA graphs."""
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


PACKAGES = ("numpy", "protobuf", "pillow", "h5py", "lmdb")
VARIABLES = ("MINICAFFE_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class DeviceQueryOptions:
    gpu: str | None = option("--gpu", "Fail if this GPU is missing: its number, or all.", metavar="ID")


@with_options(DeviceQueryOptions)
def device_query_command(options: DeviceQueryOptions) -> None:
    """Print GPUs, CPU, cores, NumPy's BLAS and versions.

    If no GPU is found, `minicaffe doctor` says what is missing.

    Example:  minicaffe device-query
    """
    use_device(None, options.gpu)
    facts = {
        "GPU": "; ".join(gpu_facts()),
        "CPU": cpu_name(),
        "cores": f"{cores()} for this process",
        "BLAS": blas_name(numpy_config()),
        "threads": thread_variables(),
        "system": platform.platform(),
        "Python": platform.python_version(),
        "minicaffe": __version__,
        **{name: package_version(name) for name in PACKAGES},
    }
    for name, fact in facts.items():
        echo(f"{name + ':':<11}{fact}")


def cores() -> str:
    """Return the number of cores for this process, of how many."""
    return f"{available_cores()} of {os.cpu_count()}"


def thread_variables() -> str:
    """Return the environment's variables for numbers of threads."""
    return ", ".join(f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ) or "BLAS's own choice"


def gpu_facts() -> list[str]:
    """Return a line per GPU, or the reason why there is none."""
    try:
        return [str(gpu) for gpu in installed_gpus()]
    except DeviceError as error:
        return [str(error)]


def cpu_name() -> str:
    """Return the processor's name, from /proc/cpuinfo if it exists."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return next(iter(names), "") or platform.processor() or platform.machine()


def numpy_config() -> Mapping[str, Any]:
    """Return NumPy's build configuration; {} if this NumPy cannot give it as a dictionary (before 1.26)."""
    try:
        return np.show_config(mode="dicts") or {}
    except TypeError:
        return {}


def blas_name(config: Mapping[str, Any]) -> str:
    """Return the BLAS that NumPy was built with: "scipy-openblas 0.3.27"."""
    blas = (config.get("Build Dependencies") or {}).get("blas") or {}
    return f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()


def package_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
