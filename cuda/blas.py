"""Matrix products on the GPU: cuBLAS (cublas.py), or without it the slower kernel gemm.cu.

    C = alpha op(A) op(B) + beta C, row-major; `batch` such products, each matrix a stride further on

cuBLAS takes column-major matrices only. There a row-major matrix is its transpose, so the call is for C^T = op(B)^T op(A)^T.
float32 is computed in float32, not in TF32 (10 bits of mantissa), unless allow_tf32 allows it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.cuda.stream import PerStream
from minicaffe.errors import DeviceError, install
from minicaffe.process_fork import renewed

from . import cublas, graph
from .device import current, launch_blocks
from .pool import DeviceMemory
from .stream import Stream

logger = logging.getLogger("minicaffe.cuda")

TILE = 64
"""TILE of gemm.cu."""

WORKSPACE = 32 << 20
"""Bytes of a handle's workspace, as NVIDIA recommends for Hopper. Without a workspace, cuBLAS may allocate memory during a
product, which a CUDA graph cannot contain."""

MOST_ROWS = 65535
"""Most blocks on a grid's second axis."""


class Matrix(NamedTuple):
    """A matrix on the device.

    ld: elements from row to row in memory; transposed: whether its transpose is meant; stride: elements from matrix to matrix
    of a batch (0: all use the same one).
    """

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
    """Compute c (m, n) = alpha a (m, k) b (k, n) + beta c. sizes: (m, n, k). With beta = 0 c is not read."""
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
    factors = np.array([alpha, beta], dtype)  # cuBLAS reads them before the call returns
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
        except DeviceError as error:
            raise DeviceError(f"cuBLAS, a product of {m} x {k} and {k} x {n}: {error}") from error


def backend() -> str:
    """Return the library for matrix products on the GPU: "cuBLAS (...)" with its source, or "gemm.cu (...)" with the reason."""
    library = _library()
    return f"gemm.cu ({_state.reason})" if library is None else f"cuBLAS ({library.cublas.path})"


def allow_tf32(allowed: bool = True) -> None:
    """Allow or forbid cuBLAS and cuDNN to round float32 factors to TF32: several times as fast, 3 decimal digits.

    Off by default.
    """
    _state.tf32 = allowed
    graph.settings_changed()


def tf32_allowed() -> bool:
    """Return allow_tf32's last argument."""
    return _state.tf32


class CuBLAS:
    """cuBLAS, with a handle for each stream, made at its first product. A freed stream's handle is reused."""

    def __init__(self) -> None:
        self.cublas = cublas.load()
        # A handle, its math mode and its workspace's address. The last two are still unknown.
        self._handles = PerStream(lambda: [self.cublas.create(), -1, 0], self._bind)
        self._workspaces: weakref.WeakKeyDictionary[Stream, DeviceMemory] = weakref.WeakKeyDictionary()
        self.handle(current().current_stream)

    def handle(self, stream: Stream) -> int:
        """Return the stream's handle, in the math mode that allow_tf32 chose."""
        math = self.cublas.Math
        mode = int(math.TF32_TENSOR_OP_MATH if _state.tf32 else math.DEFAULT_MATH)
        if stream not in self._workspaces:
            self._workspaces[stream] = stream.device.allocate(WORKSPACE, stream)
        workspace = self._workspaces[stream]
        state: list[int] = self._handles.of(stream)
        stream.hold(workspace)
        if state[1] != mode:
            self.cublas.set_math_mode(state[0], mode)  # allow_tf32 may change between two products
            state[1] = mode
        if state[2] != workspace.address:
            self.cublas.set_workspace(state[0], workspace.address, workspace.nbytes)
            state[2] = workspace.address
        return state[0]

    def _bind(self, state: list[int], stream: int) -> None:
        self.cublas.set_stream(state[0], stream)
        state[2] = 0  # setting the stream resets the workspace


@dataclass
class _State:
    lock: Any = field(default_factory=lambda: renewed(threading.Lock()))
    tried: bool = False
    library: CuBLAS | None = None
    reason: str = ""
    tf32: bool = False


_state = _State()


def _library() -> CuBLAS | None:
    """Return cuBLAS, looked up once; None, with a warning in the log, if it is missing."""
    if not _state.tried:
        with _state.lock:
            if not _state.tried:
                try:
                    with current().active():
                        _state.library = CuBLAS()
                except DeviceError as error:  # libcublas is missing, or it does not support the device
                    _state.reason = f"cuBLAS does not load: {error}; {install('gpu-cu13')}"
                if _state.library is None:
                    logger.warning("matrix products use minicaffe's kernel, which is slower than cuBLAS: %s", _state.reason)
                _state.tried = True
    return _state.library
