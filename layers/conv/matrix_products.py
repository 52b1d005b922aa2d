"""Products of a fully connected layer's rows and weights, divided among the threads."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np

from minicaffe.blob import Array
from minicaffe.kernels import kernel
from minicaffe.threads import kept_scratch, parts, run

LEAST = 1 << 20
"""Least multiplications that are worth a thread."""

FEW = 8
"""The rows are few if there are at least FEW times as many columns."""

LARGE = 1 << 18
"""Numbers of weights from which on compiled loops may be faster than BLAS."""

ROWS, COLUMNS = 256, 8192
"""The block of a weight's gradient that is made at a time: least rows, most columns. Whole rows would be slower, because a
block would have fewer of them."""


@kernel
def multiply(a: Array, b: Array, out: Array) -> None:
    """Compute out (I, J) = a (I, K) @ b (K, J). Each thread computes some columns, so it reads only its part of b.

    If b is column-major, BLAS transposes each part. For few rows of a it is faster to compute b^T a^T and transpose that.
    """
    columns = out.shape[1]
    if has_few_rows(a, b, out):
        made = np.empty(out.shape[::-1], out.dtype)
        run(partial(np.matmul, b[:, part].T, a.T, out=made[part]) for part in parts(columns, LEAST // a.size))
        out[...] = made.T
    else:
        least = LEAST // max(1, a.size)  # the number of columns that need LEAST multiplications
        run(partial(np.matmul, a, b[:, part], out=out[:, part]) for part in parts(columns, least))


def has_few_rows(a: Array, b: Array, out: Array) -> bool:
    """Return whether to compute b^T a^T instead."""
    columns = out.shape[1]
    return bool(b.T.flags.c_contiguous) and 1 < len(a) <= columns // FEW and a.size * columns > LEAST


def add_product(a: Array, b: Array, total: Array) -> None:
    """Compute total (I, J) += a (I, K) @ b (K, J) block by block, without a second array of total's size.

    Each thread takes some columns, or rows if there are more of them. BLAS packs both factors of each block anew, so no block
    is narrow.
    """
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
