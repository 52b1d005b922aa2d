"""Products of matrices, of a fully connected layer's rows and weights: by BLAS, or as 1x1 convolutions by compiled loops.

A row of outputs is a filter there (tiled.py), and the other matrix a map, of K channels. Tiles take large weights from memory
but once, and lay out nothing for few rows: 2 to 16 rows by 4096 x 9216 weights take 0.4 of the time, 128 rows 0.85, 300 0.9.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from minicaffe import loops
from minicaffe.blob import Array
from minicaffe.threads import parts, run

from . import tiled
from .tiled import PIXEL

LEAST = 1 << 20
"""Multiplications that are worth a thread."""

FEW = 4
"""How many times as many columns as rows make the rows few."""

LEAST_TILED = 1 << 18
"""Numbers of weights from which on tiles are faster; of weights that have to be turned LEAST."""

BLOCK = 1 << 21
"""About how many numbers of a weight's gradient are made at a time."""


def multiply(a: Array, b: Array, out: Array) -> None:
    """out (I, J) = a (I, K) @ b (K, J); each thread takes some columns, and so reads its part of the weights alone.

    Of a b whose columns lie one after the other BLAS turns each part, whatever the rows of a. Where these are few it is faster
    to compute b^T a^T, and to turn that: 2 to 16 rows by 4096 x 4096 weights take 0.7 of the time, 300 rows 0.98.
    """
    columns = out.shape[1]
    if b.T.flags.c_contiguous and 1 < len(a) <= columns // FEW and a.size * columns > LEAST:
        made = np.empty(out.shape[::-1], out.dtype)
        if b.size <= LEAST or not _by_tiles(b.T, np.ascontiguousarray(a.T), made):
            run(partial(np.matmul, b[:, part].T, a.T, out=made[part]) for part in parts(columns, LEAST // a.size))
        out[...] = made.T
    elif len(a) == 1 or b.size <= LEAST_TILED or a.size * columns <= LEAST or not _by_tiles(a, b, out):
        least = LEAST // max(1, a.size)  # columns whose products are LEAST multiplications
        run(partial(np.matmul, a, b[:, part], out=out[:, part]) for part in parts(columns, least))


def add_product(a: Array, b: Array, total: Array) -> None:
    """total (I, J) += a (I, K) @ b (K, J), some of it at a time: a weight's whole gradient is not made twice."""

    def add(task: slice) -> None:
        rows = max(1, min(task.stop - task.start, BLOCK // max(1, b.shape[1])))
        product = np.empty((rows, b.shape[1]), total.dtype)  # one for the task, not one for each part
        for start in range(task.start, task.stop, rows):
            part = slice(start, min(start + rows, task.stop))
            total[part] += np.matmul(a[part], b, out=product[: part.stop - start])

    run(partial(add, task) for task in parts(len(a), LEAST // max(1, b.size)))


def _by_tiles(a: Array, b: Array, out: Array) -> bool:
    """out (I, J) = a (I, K) @ b (K, J) by compiled loops; False, and nothing is done, if these do not take the arrays."""
    arrays = a, b, out
    alike = a.dtype in (np.float32, np.float64) and all(x.dtype == a.dtype and x.flags.c_contiguous for x in arrays)
    if not alike or not loops.compiled():
        return False
    tiled.convolve(b.reshape(1, *b.shape), a.reshape(*a.shape, 1), PIXEL, 1, out.reshape(1, *out.shape))
    return True
