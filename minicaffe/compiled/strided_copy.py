"""Copies between arrays with other strides, as a job that threads split: the work of layers that only rearrange."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled.jit import DynamicArray, loop
from minicaffe.compiled.jobs import LEAST, Calls
from minicaffe.threads import get_num_threads, parts

from .vectors import turn

AXES = 4
"""Axes of the loop. Adjacent axes that are contiguous in memory count as one."""

at = np.uint64
"""An unsigned index, for which Numba does not check whether it counts from the end."""


@loop("T[::1], T[::1], UniTuple(int64, 13)", in_calls=True)
def copy_strided(x: Array, y: Array, part: tuple[int, ...]) -> None:
    """Set y[i * Y0 + j * Y1 + k * Y2 + n * Y3] to x[i * X0 + j * X1 + k * X2 + n * X3] for some rows.

    part: the first row and one past the last, in the order of i, j, k; the numbers of j, k, n; X0 ... X3; Y0 ... Y3, of which
    Y3 is 1.
    """
    row, last, js, ks, length = part[0], part[1], part[2], part[3], part[4]
    while row < last:
        i, j, k = row // (js * ks), row // ks % js, row % ks
        from_, to = i * part[5] + j * part[6] + k * part[7], i * part[9] + j * part[10] + k * part[11]
        together = 1
        if part[8] == 1:
            for n in range(length):
                y[at(to + n)] = x[at(from_ + n)]
        elif part[7] == 1:
            together = min(ks - k, last - row)
            turn(x, from_, part[8], y, to, part[11], together, length)
        else:
            for n in range(length):
                y[at(to + n)] = x[at(from_ + n * part[8])]
        row += together


def copy_calls(shape: Sequence[int], x: Sequence[int], y: Sequence[int], dtype: np.dtype[Any], start: int = 0) -> Calls | None:
    """Return the calls of copy_strided that copy an array of this shape.

    x, y: the distance between neighbours on each axis, in numbers. start: the first place in y. None if the loop cannot copy
    it: too many axes, negative steps, no numbers.
    """
    merged = _merged([(length, a, b) for length, a, b in zip(shape, x, y, strict=True) if length != 1])
    if not merged or merged[-1][2] != 1:
        merged.append((1, 1, 1))
    if not math.prod(shape) or len(merged) > AXES or min([*x, *y], default=0) < 0:
        return None
    merged[:-1] = sorted(merged[:-1], key=lambda axis: axis[1] == 1)  # the axis that is contiguous in x comes second to last
    return _calls((*[(1, 0, 1)] * (AXES - len(merged)), *merged), start, dtype, get_num_threads())


def _merged(axes: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the lengths and steps of as few axes as possible."""
    merged: list[tuple[int, int, int]] = []
    for length, a, b in axes:
        if merged and merged[-1][1] == length * a and merged[-1][2] == length * b:
            merged[-1] = merged[-1][0] * length, a, b
        else:
            merged.append((length, a, b))
    return merged


@lru_cache(maxsize=512)
def _calls(axes: tuple[tuple[int, int, int], ...], start: int, dtype: np.dtype[Any], threads: int) -> Calls:
    lengths, from_, to = zip(*axes, strict=True)
    rows, each, calls = math.prod(lengths[:-1]), lengths[-1], []
    for piece in parts(each, LEAST, 2, threads) if rows == 1 else [slice(0, each)]:  # cut a single long row
        cut, begins = (*lengths[:-1], piece.stop - piece.start), (piece.start * from_[-1], start + piece.start)
        sizes = [1 + sum((length - 1) * step for length, step in zip(cut, steps)) for steps in (from_, to)]
        x, y = (DynamicArray(begin, (size,)) for begin, size in zip(begins, sizes))
        some = parts(rows, -(-LEAST // each), 2, threads)
        calls += [(x, y, (part.start, part.stop, *cut[1:], *from_, *to)) for part in some]
    return Calls(copy_strided, dtype, calls)
