"""Pooling's forward by loops, whose calls are split across the threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from minicaffe.blob import Blob
from minicaffe.compiled.jit import DynamicArray, Loop, ScratchArray
from minicaffe.compiled.jobs import LEAST, BlobJob, Calls, Job, KeptStep
from minicaffe.compiled.pooling_methods import ave_pool, ave_pool_one, line_length, max_pool, windows_of
from minicaffe.kernels import Loops, step_of_layer
from minicaffe.layers.pool.pooling import AVE, MAX, STOCHASTIC, Pooling
from minicaffe.layers.pool.pooling_methods import divisors
from minicaffe.layers.pool.pooling_windows import PoolAxis
from minicaffe.threads import cut, get_num_threads


def loops_of(layer: Pooling) -> Loops:
    """Return the loops of a forward with one top, and none for backward."""
    is_one = layer.param.pooling_param.global_pooling
    by_method: dict[int, Loop[Any]] = {MAX: max_pool, AVE: ave_pool_one if is_one else ave_pool}
    return [by_method[layer.method]] if layer.method in by_method else (), ()


@step_of_layer(Pooling, loops_of)
def pooling_step(layer: Pooling, bottom: Sequence[Blob], top: Sequence[Blob]) -> KeptStep | None:
    x, y = bottom[0], top[0]
    if layer.method == STOCHASTIC or len(top) > 1 or not x.count or x.dtype != y.dtype:
        return None
    planes = math.prod(x.shape[:2])
    calls = pooling_calls(layer.method == MAX, planes, layer.rows, layer.columns, x.dtype, get_num_threads())
    return KeptStep([BlobJob(Job(calls), (x,), y)])


@lru_cache(maxsize=512)
def pooling_calls(
    by_maximum: bool, planes: int, rows: PoolAxis, columns: PoolAxis, dtype: np.dtype[Any], threads: int
) -> Calls:
    """Return the calls for the maxima or the averages of x (planes, H, W) in y (planes, PH, PW)."""
    pixels, pooled = (rows.size, columns.size), (rows.pooled, columns.pooled)
    windows, sizes = windows_of(rows, columns), divisors(rows, columns, dtype)
    lines = ScratchArray(0, (2, line_length(columns)))
    calls: list[tuple[Any, ...]] = []
    for part in cut(planes, max(1, min(2 * threads, planes * rows.size * columns.size // LEAST))):
        x, y = (DynamicArray(part.start * shape[0] * shape[1], (part.stop - part.start, *shape)) for shape in (pixels, pooled))
        if by_maximum:
            calls.append((x, windows, y, lines))
        else:
            calls.append((x, sizes, y) if rows.one and columns.one else (x, windows, sizes, y, lines))
    return Calls(max_pool if by_maximum else ave_pool_one if rows.one and columns.one else ave_pool, dtype, calls)
