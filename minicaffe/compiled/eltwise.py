"""Eltwise's sum of two bottoms and the ReLU after it, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.compiled.jit import DynamicArray, loop
from minicaffe.compiled.jobs import LEAST, BlobJob, Calls, Job, KeptStep
from minicaffe.kernels import step_of_layer
from minicaffe.layers.elementwise.eltwise import SUM, Eltwise
from minicaffe.layers.elementwise.epilogue import NOTHING, Epilogue
from minicaffe.threads import get_num_threads, parts


@loop("T[::1], T[::1], T[::1], T[::1]", in_calls=True)
def add_two(a: Array, b: Array, factors: Array, y: Array) -> None:
    """Compute y = factors[0] * a + factors[1] * b; values below 0 are multiplied by factors[2]."""
    of_a, of_b, slope = factors[0], factors[1], factors[2]
    zero = y.dtype.type(0)
    for i in range(len(y)):
        value = of_a * a[i] + of_b * b[i]
        below = zero if slope == zero else value * slope  # -inf * 0 would be NaN
        y[i] = below if value < zero else value


def adds_two(layer: Eltwise) -> bool:
    """Return whether the layer is a sum of two bottoms."""
    return layer.operation == SUM and len(layer.coeff) == 2


@step_of_layer(Eltwise, lambda layer: ((add_two,) if adds_two(layer) else (), ()))
def sum_step(layer: Eltwise, bottom: Sequence[Blob], top: Sequence[Blob], epilogue: Epilogue = NOTHING) -> KeptStep | None:
    if not adds_two(layer) or any(blob.dtype != layer.dtype for blob in (*bottom, *top)):
        return None
    job = Job(_calls(top[0].count, layer.dtype, get_num_threads()))
    factors: Array = np.array([*layer.coeff, 1 if epilogue.negative_slope is None else epilogue.negative_slope], layer.dtype)
    return KeptStep([BlobJob(job, (*bottom, factors), top[0])])


@lru_cache(maxsize=512)
def _calls(count: int, dtype: np.dtype[Any], threads: int) -> Calls:
    """Return the calls of add_two for arrays of `count` numbers, for this number of threads."""
    some = [DynamicArray(part.start, (part.stop - part.start,)) for part in parts(count, LEAST, 2, threads)]
    return Calls(add_two, dtype, [(part, part, DynamicArray(0, (3,)), part) for part in some])
