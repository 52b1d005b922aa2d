"""The functions of cuBLAS for blas.py, from the library that a wheel or the CUDA toolkit installs.

Source: NVIDIA's cublas_api.h.
"""

from __future__ import annotations

import ctypes
import enum
import importlib.util
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from minicaffe.errors import DeviceError

VERSIONS = (13, 12)
"""Versions of CUDA, the newest first; libcublas has the same interface in both."""


class Operation(enum.IntEnum):
    """cublasOperation_t."""

    N, T = 0, 1


class Math(enum.IntEnum):
    """cublasMath_t."""

    DEFAULT_MATH, TF32_TENSOR_OP_MATH = 0, 3


_HANDLE = _ADDRESS = ctypes.c_void_p
_INT, _STRIDE = ctypes.c_int, ctypes.c_longlong
_SIZES = (_HANDLE, _INT, _INT, _INT, _INT, _INT)  # the operations, then m, n, k
_GEMM = (*_SIZES, _ADDRESS, _ADDRESS, _INT, _ADDRESS, _INT, _ADDRESS, _ADDRESS, _INT)
_MATRIX = (_ADDRESS, _INT, _STRIDE)
_BATCHED = (*_SIZES, _ADDRESS, *_MATRIX, *_MATRIX, _ADDRESS, *_MATRIX, _INT)
_FUNCTIONS = {
    "set_stream": ("cublasSetStream_v2", (_HANDLE, _ADDRESS)),
    "set_workspace": ("cublasSetWorkspace_v2", (_HANDLE, _ADDRESS, ctypes.c_size_t)),
    "set_math_mode": ("cublasSetMathMode", (_HANDLE, _INT)),
    "sgemm": ("cublasSgemm_v2", _GEMM),
    "dgemm": ("cublasDgemm_v2", _GEMM),
    "sgemm_strided_batched": ("cublasSgemmStridedBatched", _BATCHED),
    "dgemm_strided_batched": ("cublasDgemmStridedBatched", _BATCHED),
}


class Library:
    """libcublas. Each function raises DeviceError unless it succeeds; arrays and factors are addresses."""

    Operation, Math = Operation, Math
    set_stream: Any
    set_workspace: Any
    set_math_mode: Any
    sgemm: Any
    dgemm: Any
    sgemm_strided_batched: Any
    dgemm_strided_batched: Any

    def __init__(self, path: str) -> None:
        self.path = path
        with suppress(OSError):  # cuBLAS needs this library; in wheels it is in the same folder, where the system does not look
            ctypes.CDLL(path.replace("libcublas.", "libcublasLt."), ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(path)
        self._library.cublasGetStatusString.restype = ctypes.c_char_p
        for name, (symbol, types) in _FUNCTIONS.items():
            setattr(self, name, self._function(symbol, types))

    def create(self) -> int:
        """Return a new handle, for the current context."""
        handle = ctypes.c_void_p()
        self._function("cublasCreate_v2", (ctypes.POINTER(ctypes.c_void_p),))(ctypes.byref(handle))
        return handle.value or 0

    def _function(self, symbol: str, types: tuple[Any, ...]) -> Any:
        function = getattr(self._library, symbol)
        function.argtypes, function.restype, function.errcheck = types, ctypes.c_int, self._check
        return function

    def _check(self, status: int, function: Any, arguments: tuple[Any, ...]) -> None:
        if status:
            raise DeviceError(f"{function.__name__}: {self._library.cublasGetStatusString(status).decode()}")


def load() -> Library:
    """Return libcublas: a wheel's, or the one that the system finds.

    Raises DeviceError with the last one's message if none loads.
    """
    said = "libcublas is not installed"
    for path in candidates("libcublas"):
        try:
            return Library(path)
        except (OSError, AttributeError) as error:  # AttributeError: the library lacks a function
            said = str(error)
    raise DeviceError(said)


def candidates(stem: str) -> Iterator[str]:
    """Yield where a CUDA library may be: in a wheel, or where the system looks."""
    spec = importlib.util.find_spec("nvidia")  # the wheels' common package, with nvidia/cu13/lib or nvidia/cublas/lib
    for version in VERSIONS:
        for folder in (spec.submodule_search_locations if spec else None) or ():
            yield from map(str, sorted(Path(folder).glob(f"*/lib/{stem}.so.{version}")))
    yield from (f"{stem}.so.{version}" for version in VERSIONS)
