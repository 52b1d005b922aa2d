"""A stand-in for cublas.py's Library that computes in host memory, which is the test device's memory.

It computes at once, so it first waits for the stream of its handle: what the test device was sent before has not run yet.
"""

from __future__ import annotations

import ctypes
import enum
from typing import Any

import numpy as np
import pytest
from which_device import skip_on_gpu

from minicaffe.cuda import blas, cublas


class Operation(enum.IntEnum):
    N, T, C = 0, 1, 2


class Math(enum.IntEnum):
    DEFAULT_MATH, TF32_TENSOR_OP_MATH = 0, 3


class StandIn:
    """cuBLAS on the host's memory: column-major products as the BLAS defines them, and what was asked."""

    Operation, Math, path = Operation, Math, "stand-in"

    def __init__(self) -> None:
        self.made, self.streams, self.workspaces, self.modes, self.calls = 0, [], [], [], []

    def create(self) -> int:
        self.made += 1
        return 1000 + self.made

    def set_stream(self, handle: int, stream: int) -> None:
        self.streams.append((handle, stream))

    def set_workspace(self, handle: int, address: int, nbytes: int) -> None:
        self.workspaces.append((handle, address, nbytes))

    def set_math_mode(self, handle: int, mode: int) -> None:
        self.modes.append((handle, Math(mode)))

    def sgemm(self, *arguments: int) -> None:
        self._one("sgemm", ctypes.c_float, arguments)

    def dgemm(self, *arguments: int) -> None:
        self._one("dgemm", ctypes.c_double, arguments)

    def sgemm_strided_batched(self, *arguments: int) -> None:
        self._batch("sgemm_strided_batched", ctypes.c_float, arguments)

    def dgemm_strided_batched(self, *arguments: int) -> None:
        self._batch("dgemm_strided_batched", ctypes.c_double, arguments)

    def _begin(self, name: str, handle: int) -> None:
        self.calls.append((name, handle))
        stream = dict(self.streams)[handle]  # the last one that was set
        assert ctypes.CDLL("libcuda.so.1").cuStreamSynchronize(ctypes.c_void_p(stream)) == 0

    def _one(self, name: str, kind: Any, arguments: tuple[int, ...]) -> None:
        handle, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc = arguments
        self._begin(name, handle)
        column_major(kind, (ta, tb), (m, n, k), (alpha, beta), ((a, lda), (b, ldb), (c, ldc)))

    def _batch(self, name: str, kind: Any, arguments: tuple[int, ...]) -> None:
        handle, ta, tb, m, n, k, alpha, a, lda, sa, b, ldb, sb, beta, c, ldc, sc, count = arguments
        self._begin(name, handle)
        size = ctypes.sizeof(kind)
        for i in range(count):
            places = ((a + i * sa * size, lda), (b + i * sb * size, ldb), (c + i * sc * size, ldc))
            column_major(kind, (ta, tb), (m, n, k), (alpha, beta), places)


def column_major(kind: Any, ops: Any, sizes: tuple[int, int, int], factors: tuple[int, int], places: Any) -> None:
    """Compute BLAS's xGEMM: element (i, j) is at address + i + j * ld; op(A) is (m, k), op(B) (k, n), C (m, n)."""
    (m, n, k), (alpha, beta) = sizes, (kind.from_address(p).value for p in factors)

    def view(place: tuple[int, int], rows: int, columns: int) -> Any:
        address, ld = place
        assert ld >= max(1, rows), "cuBLAS refuses such a leading dimension"
        flat = np.ctypeslib.as_array((kind * max(ld * (columns - 1) + rows, 0)).from_address(address))
        return np.lib.stride_tricks.as_strided(flat, (rows, columns), (flat.itemsize, ld * flat.itemsize))

    a = view(places[0], k, m).T if ops[0] else view(places[0], m, k)
    b = view(places[1], n, k).T if ops[1] else view(places[1], k, n)
    c = view(places[2], m, n)
    product = alpha * (a @ b)
    c[...] = product if beta == 0 else product + beta * c


def installed(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Install the stand-in. Skips on a GPU, whose memory it cannot read."""
    skip_on_gpu("the stand-in needs a device whose memory is the host's")
    stand_in = StandIn()
    monkeypatch.setattr(cublas, "load", lambda: stand_in)
    monkeypatch.setattr(blas, "_state", blas._State())
    return stand_in
