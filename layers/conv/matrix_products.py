"""Products of matrices, of a fully connected layer's rows and weights: by BLAS, or as 1x1 convolutions by compiled loops.

One matrix has a filter's K weights in each row there (tiled.py), and the other is a map, of K channels. Tiles take large
weights from memory but once, and lay out nothing for few rows: 2 to 16 rows by 4096 x 9216 weights take 0.4 of the time, 128
rows 0.85, 300 rows 0.9.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np

from minicaffe import loops
from minicaffe.blob import Array
from minicaffe.blocks import kept_scratch
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

ROWS, COLUMNS = 256, 8192
"""Of a weight's gradient, which are made at a time, the rows at least and the columns at most: in whole rows, of which there
would be fewer, 4096 x 25088 weights take 1.1 times as long."""

MOST_PUT = 1 << 19
"""Numbers of a factor that is put in one piece of memory for tiles: 0.85 to 0.97 of the time; more take too long."""


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
    elif _suits_tiles(a, b, out):
        _by_tiles(np.ascontiguousarray(a), b, out)
    else:
        least = LEAST // max(1, a.size)  # columns whose products are LEAST multiplications
        run(partial(np.matmul, a, b[:, part], out=out[:, part]) for part in parts(columns, least))


def add_product(a: Array, b: Array, total: Array) -> None:
    """total (I, J) += a (I, K) @ b (K, J), a block at a time: a weight's whole gradient is not made twice. Each thread takes
    some columns, or rows if there are more of these. BLAS packs both factors of each block anew, so that none is narrow."""
    (height, width), depth = total.shape, a.shape[1]
    across = width >= height

    def add(task: slice) -> None:
        rows, columns = (slice(0, height), task) if across else (task, slice(0, width))
        with kept_scratch(total.dtype) as scratch:
            for i, j in product(_steps(rows, max(ROWS, ROWS * COLUMNS // width)), _steps(columns, COLUMNS)):
                to = total[i, j]
                to += np.matmul(a[i], b[:, j], out=scratch("product", *to.shape))

    if total.size:
        run(partial(add, task) for task in parts(max(total.shape), LEAST // max(1, min(total.shape) * depth)))


def _steps(task: slice, size: int) -> list[slice]:
    return [slice(start, min(start + size, task.stop)) for start in range(task.start, task.stop, size)]


def _suits_tiles(a: Array, b: Array, out: Array) -> bool:
    is_large = len(a) > 1 and b.shape[1] >= LANES and b.size > LEAST_TILED and a.size * b.shape[1] > LEAST
    lie_well = b.flags.c_contiguous and out.flags.c_contiguous and (a.flags.c_contiguous or a.size <= MOST_PUT)
    return is_large and lie_well and _are_tiled(a, b, out)


def _are_tiled(*arrays: Array) -> bool:
    """Whether compiled loops take arrays of these types."""
    return loops.compiled() and arrays[0].dtype in (np.float32, np.float64) and len({x.dtype for x in arrays}) == 1


def _by_tiles(a: Array, b: Array, out: Array) -> None:
    """out (I, J) = a (I, K) @ b (K, J), all C-contiguous, by compiled loops."""
    tiled.convolve(b.reshape(1, *b.shape), a.reshape(*a.shape, 1), PIXEL, 1, out.reshape(1, *out.shape))
