"""Pooling as calls of its compiled loops, which threads share."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from minicaffe.blocks import LEAST, Calls
from minicaffe.loops import Later, Room
from minicaffe.threads import cut

from .pooling_loops import ave_pool, ave_pool_one, line_length, max_pool, windows_of
from .pooling_methods import divisors
from .pooling_windows import PoolAxis


@lru_cache(maxsize=512)
def pooling_calls(
    by_maximum: bool, planes: int, rows: PoolAxis, columns: PoolAxis, dtype: np.dtype[Any], threads: int
) -> Calls:
    """Of x (planes, H, W) and y (planes, PH, PW): the maxima, or the averages."""
    pixels, pooled = (rows.size, columns.size), (rows.pooled, columns.pooled)
    windows, sizes = windows_of(rows, columns), divisors(rows, columns, dtype)
    lines = Room(0, (2, line_length(columns)))
    calls: list[tuple[Any, ...]] = []
    for part in cut(planes, max(1, min(2 * threads, planes * rows.size * columns.size // LEAST))):
        x, y = (Later(part.start * shape[0] * shape[1], (part.stop - part.start, *shape)) for shape in (pixels, pooled))
        if by_maximum:
            calls.append((x, windows, y, lines))
        else:
            calls.append((x, sizes, y) if rows.one and columns.one else (x, windows, sizes, y, lines))
    return Calls(max_pool if by_maximum else ave_pool_one if rows.one and columns.one else ave_pool, dtype, calls)
