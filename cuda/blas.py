"""Matrix products on the GPU: cuBLAS by way of nvmath-python, or where that is missing a kernel of ours (gemm.cu), slower.

    C = alpha op(A) op(B) + beta C, row-major; `batch` such products, each matrix a stride further on

cuBLAS knows column-major matrices only: a row-major matrix is its transpose there, so that it is asked for
C^T = op(B)^T op(A)^T. In float32 it computes in float32, not in TF32 (10 bits of mantissa), unless allow_tf32 says so.
"""

from __future__ import annotations

import importlib
import logging
import threading
import weakref
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.errors import DeviceError

from .device import current, launch_blocks
from .stream import Stream

logger = logging.getLogger("minicaffe.cuda")

TILE = 64
"""TILE of gemm.cu."""

MOST_ROWS = 65535
"""Most blocks on a grid's second axis."""


class Matrix(NamedTuple):
    """A matrix of the device: its address, how many elements its rows (as they lie in memory) are apart, whether its
    transpose is meant, how many elements the matrices of a batch are apart (0: the same one for all)."""

    address: int
    ld: int
    transposed: bool = False
    stride: int = 0


def gemm(
    dtype: DTypeLike,
    sizes: tuple[int, int, int],
    a: Matrix,
    b: Matrix,
    c: Matrix,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    batch: int = 1,
) -> None:
    """c (m, n) = alpha a (m, k) b (k, n) + beta c, sizes = (m, n, k); with beta = 0 c is only written to."""
    (m, n, k), dtype = sizes, np.dtype(dtype)
    if not m or not n or not batch:
        return
    library = _library() if k else None
    if library is None:
        blocks = -(-m // TILE) * -(-n // TILE), min(batch, MOST_ROWS)
        of_a, of_b = ((x.address, x.ld, int(x.transposed), x.stride) for x in (a, b))
        last = (beta, c.address, c.ld, c.stride, batch)
        launch_blocks("gemm.gemm", dtype, blocks, (16, 16, 1), m, n, k, alpha, *of_a, *of_b, *last)
        return
    device = current()
    with device.active():
        try:
            library.gemm(device.current_stream, dtype, sizes, a, b, c, np.array([alpha, beta], dtype), batch)
        except Exception as error:  # nvmath's own, which cannot be named before its import
            raise DeviceError(f"cuBLAS, a product of {m} x {k} and {k} x {n}: {error}") from error


def backend() -> str:
    """What multiplies matrices on the GPU: "cuBLAS", or "gemm.cu (...)" with the reason why not cuBLAS."""
    return "cuBLAS" if _library() is not None else f"gemm.cu ({_state.reason})"


def allow_tf32(allowed: bool = True) -> None:
    """Whether cuBLAS may round float32 factors to TF32: several times as fast, 3 decimal digits. Not allowed at the start."""
    _state.tf32 = allowed


class CuBLAS:
    """cuBLAS: a handle for each stream, made at its first product; a stream that is gone leaves its handle to another."""

    def __init__(self) -> None:
        self._cublas = importlib.import_module("nvmath.bindings.cublas")
        self._handles: weakref.WeakKeyDictionary[Stream, list[int]] = weakref.WeakKeyDictionary()
        self._left: list[tuple[int, list[int]]] = []
        self.handle(current().current_stream)

    def handle(self, stream: Stream) -> int:
        """The stream's handle, in the math mode that allow_tf32 chose."""
        cublas = self._cublas
        mode = int(cublas.Math.TF32_TENSOR_OP_MATH if _state.tf32 else cublas.Math.DEFAULT_MATH)
        if stream not in self._handles:
            self._handles[stream] = self._new(stream)
        pair = self._handles[stream]
        if pair[1] != mode:
            cublas.set_math_mode(pair[0], mode)
            pair[1] = mode
        return pair[0]

    def _new(self, stream: Stream) -> list[int]:
        """[a handle that sends to stream, its math mode: not known yet]."""
        ordinal, device = stream.device.ordinal, stream.device
        with _state.lock, device.active():
            place = next((i for i, (of, _) in enumerate(self._left) if of == ordinal), None)
            pair = [self._cublas.create(), -1] if place is None else self._left.pop(place)[1]
            self._cublas.set_stream(pair[0], stream.handle.handle)
        weakref.finalize(stream, self._left.append, (ordinal, pair)).atexit = False
        return pair

    def gemm(
        self,
        stream: Stream,
        dtype: np.dtype[Any],
        sizes: tuple[int, int, int],
        a: Matrix,
        b: Matrix,
        c: Matrix,
        factors: np.ndarray[Any, Any],
        batch: int,
    ) -> None:
        """gemm's product; factors: alpha and beta, which cuBLAS reads before it returns."""
        (m, n, k), handle = sizes, self.handle(stream)
        alpha = factors.ctypes.data
        beta = alpha + dtype.itemsize
        op = self._cublas.Operation
        ops = (int(op.T if b.transposed else op.N), int(op.T if a.transposed else op.N))
        letter = "s" if dtype == np.float32 else "d"
        if batch == 1:
            product = getattr(self._cublas, f"{letter}gemm")
            product(handle, *ops, n, m, k, alpha, b.address, b.ld, a.address, a.ld, beta, c.address, c.ld)
        else:
            product = getattr(self._cublas, f"{letter}gemm_strided_batched")
            of_b, of_a, of_c = ((x.address, x.ld, x.stride) for x in (b, a, c))
            product(handle, *ops, n, m, k, alpha, *of_b, *of_a, beta, *of_c, batch)


class _State:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.tried = False
        self.library: CuBLAS | None = None
        self.reason = ""
        self.tf32 = False


_state = _State()


def _library() -> CuBLAS | None:
    """cuBLAS, tried once; None where it is missing, which is logged."""
    if not _state.tried:
        with _state.lock:
            if not _state.tried:
                try:
                    with current().active():
                        _state.library = CuBLAS()
                except ModuleNotFoundError as error:
                    _state.reason = f'{error.name} is not installed: pip install "nvmath-python[cu13]", or [cu12]'
                except Exception as error:  # nvmath's own errors: libcublas is missing, or does not take the device
                    _state.reason = f"cuBLAS does not load: {error}"
                if _state.library is None:
                    logger.warning("matrix products run on our own kernel, which is slower than cuBLAS: %s", _state.reason)
                _state.tried = True
    return _state.library
