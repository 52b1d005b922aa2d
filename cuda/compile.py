"""From cuda/<stem>.cu to kernels that can be launched: the compilers, the modules they make, the types of the arguments.

    Kernels.get("relu", "relu", float32) -> compiled(...): nvcc, or NVRTC where there is no nvcc -> loaded -> prepared

With device.py, the only module that imports PyCUDA. Both compilers work without fused multiply-add: another rounding moves a
bin's edge.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from minicaffe.errors import DeviceError
from minicaffe.files import replacing

from . import source


class Kernels:
    """The kernels of one device, compiled and loaded at their first use. Its context must be current."""

    def __init__(self, driver: Any, name: str, capability: tuple[int, int]) -> None:
        self._driver, self._device, self._capability = driver, name, capability
        self._functions: dict[tuple[str, str, np.dtype[Any]], Any] = {}
        self._modules: dict[tuple[str, np.dtype[Any]], Any] = {}
        self._lock = threading.Lock()

    def get(self, stem: str, name: str, dtype: np.dtype[Any]) -> Any:
        """The kernel `name` of cuda/<stem>.cu for REAL = dtype, prepared for a launch."""
        key = stem, name, dtype
        if key not in self._functions:
            kinds = source.signatures(stem)
            if name not in kinds:
                raise DeviceError(f"cuda/{stem}.cu has no kernel {name}; it has {', '.join(kinds)}")
            function = self._module(stem, dtype).get_function(name)
            real = "f" if dtype == np.float32 else "d"
            function.prepare("".join(real if kind == "REAL" else kind for kind in kinds[name]))
            self._functions[key] = function
        return self._functions[key]

    def _module(self, stem: str, dtype: np.dtype[Any]) -> Any:
        with self._lock:
            if (stem, dtype) not in self._modules:
                image = compiled(stem, dtype, self._capability)
                try:
                    self._modules[stem, dtype] = self._driver.module_from_buffer(image)
                except self._driver.Error as error:
                    raise DeviceError(f"loading cuda/{stem}.cu on {self._device}: {error}") from error
            return self._modules[stem, dtype]


def compiled(stem: str, dtype: np.dtype[Any], capability: tuple[int, int]) -> bytes:
    """cuda/<stem>.cu as machine code for REAL = dtype. DeviceError with the compiler's message, which names file and line."""
    real = "float" if dtype == np.float32 else "double"
    arch = "sm_{}{}".format(*capability)
    nvcc = find_nvcc()
    return _by_nvrtc(stem, real, arch) if nvcc is None else _by_nvcc(nvcc, stem, real, arch)


def find_nvcc() -> str | None:
    """The nvcc to use: the environment's MINICAFFE_NVCC, the one on the PATH, or the toolkit's."""
    given = os.environ.get("MINICAFFE_NVCC") or shutil.which("nvcc")
    if given:
        return given
    for variable in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        path = Path(os.environ.get(variable) or "/usr/local/cuda") / "bin" / "nvcc"
        if path.is_file():
            return str(path)
    return None


def nvrtc_version() -> str:
    """NVRTC's version. DeviceError where NVRTC, or cuda.core, which calls it, is missing."""
    advice = 'pip install "minicaffe[gpu-cu13]", or cuda-core, cuda-bindings and nvidia-cuda-nvrtc'
    try:
        importlib.import_module("cuda.core")
        _, major, minor = importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    except ImportError as error:
        raise DeviceError(f"no compiler for the kernels: neither nvcc (the CUDA toolkit) nor NVRTC ({advice})") from error
    except RuntimeError as error:  # cuda.bindings finds no libnvrtc
        raise DeviceError(f"no compiler for the kernels: no nvcc, and NVRTC does not load ({advice}): {error}") from error
    return f"{major}.{minor}"


def _by_nvcc(nvcc: str, stem: str, real: str, arch: str) -> bytes:
    """PyCUDA runs nvcc and caches its output."""
    compiler = importlib.import_module("pycuda.compiler")
    failed = importlib.import_module("pycuda.driver").CompileError
    try:  # no_extern_c: the kernels themselves say extern "C"; some helpers are overloaded, which that forbids
        code: bytes = compiler.compile(
            source.text(stem), nvcc=nvcc, options=[f"-DREAL={real}", "-fmad=false"], arch=arch, no_extern_c=True
        )
    except failed as error:
        raise _refused(stem, real, arch, error.stderr.strip()) from error
    return code


def _by_nvrtc(stem: str, real: str, arch: str) -> bytes:
    """cuda.core calls NVRTC; the user's cache folder keeps its output."""
    version, text = nvrtc_version(), source.text(stem)
    folder: Path = importlib.import_module("platformdirs").user_cache_path("minicaffe")  # PyCUDA installs platformdirs
    # named after all that the code depends on
    kept = folder / f"{hashlib.sha256(repr((version, real, arch, text)).encode()).hexdigest()}.cubin"
    with suppress(OSError):
        return kept.read_bytes()
    core = importlib.import_module("cuda.core")
    options = core.ProgramOptions(std="c++17", arch=arch, define_macro=("REAL", real), fma=False)
    try:
        code: bytes = core.Program(text, "c++", options).compile("cubin").code
    except Exception as error:  # cuda.core's errors have no common class
        raise _refused(stem, real, arch, str(error).rstrip("\0\n ")) from error
    with suppress(OSError):  # a cache that cannot be written costs time only
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(kept) as path:  # other processes see all of it or none
            path.write_bytes(code)
    return code


def _refused(stem: str, real: str, arch: str, message: str) -> DeviceError:
    return DeviceError(f"cuda/{stem}.cu does not compile for REAL = {real}, {arch}:\n{message}")
