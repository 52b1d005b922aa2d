"""The compilers of the kernels: NVRTC, called through cuda.core, and the CUDA toolkit's nvcc, which also needs g++.

NVRTC takes a third of nvcc's time. Both work without fused multiply-add: another rounding moves a bin's edge.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import io
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicaffe.errors import DeviceError, install

logger = logging.getLogger("minicaffe.cuda")


class RefusedError(Exception):
    """An error: the compiler's message on a text that it does not compile."""


@dataclass(frozen=True)
class Compiler:
    """A compiler.

    version: its name and version, which machine code depends on. compile(text, real, arch): machine code for REAL = real, or
    RefusedError.
    """

    version: str
    compile: Callable[[str, str, str], bytes]


def compilers() -> list[Compiler]:
    """Return the compilers found here, the preferred one first.

    It is NVRTC, or nvcc if MINICAFFE_NVCC names one. Raises DeviceError if there is none.
    """
    found, missing = [], []
    for look in (_nvcc, _nvrtc) if os.environ.get("MINICAFFE_NVCC") else (_nvrtc, _nvcc):
        try:
            found.append(look())
        except DeviceError as error:
            missing.append(str(error))
    if not found:
        raise DeviceError(f"no compiler for the kernels: {'; '.join(sorted(missing))}")
    return found


def find_nvcc() -> str | None:
    """Return the nvcc to use: the environment's MINICAFFE_NVCC, the one on the PATH, or the toolkit's."""
    given = os.environ.get("MINICAFFE_NVCC") or shutil.which("nvcc")
    if given:
        return given
    for variable in ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"):
        path = Path(os.environ.get(variable) or "/usr/local/cuda") / "bin" / "nvcc"
        if path.is_file():
            return str(path)
    return None


@functools.cache
def nvcc_version(nvcc: str) -> str:
    """Return this nvcc's version. Raises DeviceError if it does not run."""
    try:
        said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise DeviceError(f"{nvcc} does not run: {error}") from error
    lines = said.splitlines()
    return next((line for line in lines if "release" in line), lines[0] if lines else "")


def nvrtc_version() -> str:
    """Return NVRTC's version. Raises DeviceError if NVRTC, or cuda.core, which calls it, is missing."""
    try:
        if importlib.util.find_spec("cuda.core") is None:  # import it only to compile, because the import is slow
            raise ModuleNotFoundError("No module named 'cuda.core'")
        _, major, minor = importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    except ImportError as error:
        raise DeviceError(f"NVRTC is not installed ({_advice()})") from error
    except RuntimeError as error:  # cuda.bindings raises this without libnvrtc
        raise DeviceError(f"NVRTC does not load ({_advice()}): {error}") from error
    return f"{major}.{minor}"


def _advice() -> str:
    return f"{install('gpu-cu13')}, or cuda-core, cuda-bindings and nvidia-cuda-nvrtc"


def _nvrtc() -> Compiler:
    return Compiler(f"NVRTC {nvrtc_version()}", _by_nvrtc)


def _nvcc() -> Compiler:
    nvcc = find_nvcc()
    if nvcc is None:
        raise DeviceError("nvcc (the CUDA toolkit) is not found")
    return Compiler(f"{nvcc}: {nvcc_version(nvcc)}", functools.partial(_by_nvcc, nvcc))


def _by_nvrtc(text: str, real: str, arch: str) -> bytes:
    core: Any = importlib.import_module("cuda.core")
    said = io.StringIO()
    options = core.ProgramOptions(std="c++17", arch=arch, define_macro=("REAL", real), fma=False)
    try:
        code: bytes = core.Program(text, "c++", options).compile("cubin", logs=said).code
    except Exception as error:  # cuda.core's errors have no common base
        raise RefusedError(str(error).rstrip("\0\n ")) from error
    _log(said.getvalue())
    return code


def _by_nvcc(nvcc: str, text: str, real: str, arch: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernel.cu").write_text(text)
        command = [nvcc, "--cubin", "-std=c++17", f"-arch={arch}", f"-DREAL={real}", "-fmad=false", "kernel.cu"]
        try:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
            code = Path(folder, "kernel.cubin").read_bytes()
        except subprocess.CalledProcessError as error:
            raise RefusedError((error.stderr + error.stdout).strip()) from error
        except OSError as error:
            raise RefusedError(str(error)) from error
    _log(done.stdout + done.stderr)
    return code


def _log(warnings: str) -> None:
    """Log the compiler's messages when it succeeds. Tests allow none."""
    if said := warnings.strip("\0\n "):
        logger.info("%s", said)
