"""Softmax by loops: exponentials by vectors, over lines that are neighbours in memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.compiled.jit import DynamicArray, loop
from minicaffe.compiled.jobs import BlobJob, Calls, Job, KeptStep
from minicaffe.compiled.vectors import exponentials
from minicaffe.kernels import step_of_layer
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.threads import get_num_threads, parts

SHORT = 128
"""Most numbers of a contiguous line for which the loop takes any number of lines."""
MOST, MOST_APART = 1 << 16, 1 << 13
"""Most numbers of x in longer lines that the loop takes, and most if a line's numbers are not adjacent. For more, NumPy's
vectorised maxima and sums save more time than the calls cost."""
BLOCK = 1 << 13
"""Numbers of adjacent lines that stay in the first cache."""

LEAST = 1 << 11
"""Least numbers that are worth a thread."""

at = np.uint64
"""An unsigned index, for which Numba does not check whether it counts from the end."""


@loop("T[::1], T[::1], UniTuple(int64, 4)", in_calls=True)
def softmax_lines(x: Array, y: Array, part: tuple[int, int, int, int]) -> None:
    """Compute some lines along C of y, exp(x - max x) / their sum, from x (N, C, inner), flat. y may be x.

    part: the first line, one past the last, C, inner.
    """
    first, last, length, inner = part
    size, step = length * inner, length if inner == 1 else 1
    while first < last:  # adjacent lines together
        together = min(last - first, inner - first % inner if inner > 1 else max(1, BLOCK // length))
        begin = first // inner * size + first % inner
        end = begin + together * step
        for start in range(begin, end, step):
            most = x[at(start)]
            for k in range(start, start + size, inner):
                most = x[at(k)] if x[at(k)] > most else most
            for k in range(start, start + size, inner):
                y[at(k)] = x[at(k)] - most
        if inner == 1:
            exponentials(y, begin, end - begin)
        else:
            for k in range(begin, begin + size, inner):
                exponentials(y, k, together)
        for start in range(begin, end, step):
            total = 0.0
            for k in range(start, start + size, inner):
                total += y[at(k)]
            for k in range(start, start + size, inner):
                y[at(k)] /= total
        first += together


@step_of_layer(Softmax, lambda layer: ((softmax_lines,), ()))
def softmax_step(layer: Softmax, bottom: Sequence[Blob], top: Sequence[Blob]) -> KeptStep | None:
    x, y = bottom[0], top[0]
    axis = layer.axis_of(layer.param.softmax_param.axis, x)
    apart = math.prod(x.shape[axis + 1 :]) > 1
    most = MOST_APART if apart else MOST if x.shape[axis] > SHORT else x.count
    if not 0 < x.count <= most or x.dtype != y.dtype:
        return None
    calls = _calls(x.shape, axis, x.dtype, get_num_threads())
    return KeptStep([BlobJob(Job(calls), (x,), y, "update" if x is y else "write")])


@lru_cache(maxsize=512)
def _calls(shape: tuple[int, ...], axis: int, dtype: np.dtype[Any], threads: int) -> Calls:
    """Return the calls of softmax_lines for arrays of this shape."""
    count, length, inner = math.prod(shape), shape[axis], math.prod(shape[axis + 1 :])
    whole = DynamicArray(0, (count,))
    some = parts(count // length, -(-LEAST // length), 1, threads)
    return Calls(softmax_lines, dtype, [(whole, whole, (part.start, part.stop, length, inner)) for part in some])
