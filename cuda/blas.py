"""Matrix products on the GPU: cuBLAS, through nvmath-python or cublas.py, or without it the slower kernel gemm.cu.

    C = alpha op(A) op(B) + beta C, row-major; `batch` such products, each matrix a stride further on

cuBLAS takes column-major matrices only. There a row-major matrix is its transpose, so the call is for C^T = op(B)^T op(A)^T.
float32 is computed in float32, not in TF32 (10 bits of mantissa), unless allow_tf32 allows it.
"""

from __future__ import annotations

import importlib
import logging
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.errors import DeviceError, install

from . import cublas, graph
from .device import current, launch_blocks
from .pool import DeviceMemory
from .stream import Stream

logger = logging.getLogger("minicaffe.cuda")

TILE = 64
"""TILE of gemm.cu."""

WORKSPACE = 32 << 20
"""Bytes of a handle's workspace, as NVIDIA recommends for Hopper. Without one cuBLAS may allocate during a product, which a
CUDA graph cannot hold."""

MOST_ROWS = 65535
"""Most blocks on a grid's second axis."""


class Matrix(NamedTuple):
    """A matrix on the device. ld: elements from row to row in memory; transposed: whether its transpose is meant;
    stride: elements from matrix to matrix of a batch (0: all use the same one)."""

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
    """c (m, n) = alpha a (m, k) b (k, n) + beta c, sizes = (m, n, k); with beta = 0 c is not read."""
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
    letter, op = "s" if dtype == np.float32 else "d", library.cublas.Operation
    factors = np.array([alpha, beta], dtype)  # cuBLAS reads them before it returns
    ops = (int(op.T if b.transposed else op.N), int(op.T if a.transposed else op.N))
    first, at_beta = (*ops, n, m, k, factors.ctypes.data), factors.ctypes.data + dtype.itemsize
    device = current()
    with device.active():
        try:
            handle = library.handle(device.current_stream)
            if batch == 1:
                product = getattr(library.cublas, f"{letter}gemm")
                product(handle, *first, b.address, b.ld, a.address, a.ld, at_beta, c.address, c.ld)
            else:
                product = getattr(library.cublas, f"{letter}gemm_strided_batched")
                strided_b, strided_a, strided_c = ((x.address, x.ld, x.stride) for x in (b, a, c))
                product(handle, *first, *strided_b, *strided_a, at_beta, *strided_c, batch)
        except Exception as error:  # nvmath's errors have no name before its import
            raise DeviceError(f"cuBLAS, a product of {m} x {k} and {k} x {n}: {error}") from error


def backend() -> str:
    """What multiplies matrices on the GPU: "cuBLAS (...)" with its source, or "gemm.cu (...)" with the reason for it."""
    library = _library()
    return f"gemm.cu ({_state.reason})" if library is None else f"cuBLAS ({library.source})"


def allow_tf32(allowed: bool = True) -> None:
    """Whether cuBLAS may round float32 factors to TF32: several times as fast, 3 decimal digits. Off by default."""
    _state.tf32 = allowed
    graph.settings_changed()


class CuBLAS:
    """cuBLAS: a handle for each stream, made at its first product; the handle of a freed stream is used again."""

    def __init__(self) -> None:
        self.cublas, self.source = _bindings()
        self._handles: weakref.WeakKeyDictionary[Stream, tuple[list[int], DeviceMemory]] = weakref.WeakKeyDictionary()
        self._left: list[tuple[int, list[int]]] = []
        self.handle(current().current_stream)

    def handle(self, stream: Stream) -> int:
        """The stream's handle, in the math mode that allow_tf32 chose."""
        math = self.cublas.Math
        mode = int(math.TF32_TENSOR_OP_MATH if _state.tf32 else math.DEFAULT_MATH)
        if stream not in self._handles:
            self._handles[stream] = self._new(stream)
        pair, workspace = self._handles[stream]
        stream.hold(workspace)
        if pair[1] != mode:
            self.cublas.set_math_mode(pair[0], mode)  # allow_tf32 may come between two products
            pair[1] = mode
        return pair[0]

    def _new(self, stream: Stream) -> tuple[list[int], DeviceMemory]:
        """[a handle that sends to stream, its math mode: not yet known], and its workspace."""
        ordinal, device = stream.device.ordinal, stream.device
        workspace = device.allocate(WORKSPACE, stream)  # before the lock: a capture holds the device's until it is done
        with _state.lock, device.active():
            place = next((i for i, (of, _) in enumerate(self._left) if of == ordinal), None)
            pair = [self.cublas.create(), -1] if place is None else self._left.pop(place)[1]
            self.cublas.set_stream(pair[0], stream.handle.handle)
            self.cublas.set_workspace(pair[0], workspace.address, workspace.nbytes)  # after the stream, which resets it
        # a handle is not destroyed: that would wait for the device
        weakref.finalize(stream, self._left.append, (ordinal, pair)).atexit = False
        return pair, workspace


def _bindings() -> tuple[Any, str]:
    """The module, or object, with cuBLAS's functions, and where it comes from."""
    try:
        return importlib.import_module("nvmath.bindings.cublas"), "nvmath-python"
    except ModuleNotFoundError:
        library = cublas.load()
        return library, library.path


@dataclass
class _State:
    lock: Any = field(default_factory=threading.RLock)  # RLock: _library holds it where CuBLAS makes a handle
    tried: bool = False
    library: CuBLAS | None = None
    reason: str = ""
    tf32: bool = False


_state = _State()


def _library() -> CuBLAS | None:
    """cuBLAS, looked for once; None, and a warning in the log, where it is missing."""
    if not _state.tried:
        with _state.lock:
            if not _state.tried:
                try:
                    with current().active():
                        _state.library = CuBLAS()
                except Exception as error:  # also nvmath's: libcublas is missing, or does not support the device
                    _state.reason = f"cuBLAS does not load: {error}; {install('gpu-cu13')}"
                if _state.library is None:
                    logger.warning("matrix products use minicaffe's kernel, which is slower than cuBLAS: %s", _state.reason)
                _state.tried = True
    return _state.library
