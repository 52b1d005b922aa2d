"""Products of matrices, of a fully connected layer's rows and weights: by BLAS, or as 1x1 convolutions by compiled loops.

One matrix has a filter's K weights in each row there (tiled.py), and the other is a map, of K channels. Tiles take large
weights from memory but once, and lay out nothing for few rows: 2 to 16 rows by 4096 x 9216 weights take 0.4 of the time, 128
rows 0.85, 300 rows 0.9.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from minicaffe import loops
from minicaffe.blob import Array
from minicaffe.threads import parts, run

from . import tiled
from .tiled import PIXEL
from .tiles import LANES

LEAST = 1 << 20
"""Multiplications that are worth a thread."""

FEW = 8
"""How many times as many columns as rows make the rows few."""

LEAST_TILED, LEAST_TURNED = 1 << 18, 1 << 20
"""Numbers of weights from which on tiles are faster, and of those whose columns lie one after the other."""

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
        if b.size > LEAST_TURNED and _are_tiled(a, b, out):
            _by_tiles(b.T, np.ascontiguousarray(a.T), made)
        else:
            run(partial(np.matmul, b[:, part].T, a.T, out=made[part]) for part in parts(columns, LEAST // a.size))
        out[...] = made.T
    elif _is_large(a, b, columns) and _are_tiled(a, b, out) and all(x.flags.c_contiguous for x in (a, b, out)):
        _by_tiles(a, b, out)
    else:
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


def _is_large(a: Array, b: Array, columns: int) -> bool:
    return len(a) > 1 and columns >= LANES and b.size > LEAST_TILED and a.size * columns > LEAST


def _are_tiled(*arrays: Array) -> bool:
    """Whether compiled loops take arrays of these types."""
    return loops.compiled() and arrays[0].dtype in (np.float32, np.float64) and len({x.dtype for x in arrays}) == 1


def _by_tiles(a: Array, b: Array, out: Array) -> None:
    """out (I, J) = a (I, K) @ b (K, J), all C-contiguous, by compiled loops."""
    tiled.convolve(b.reshape(1, *b.shape), a.reshape(*a.shape, 1), PIXEL, 1, out.reshape(1, *out.shape))
