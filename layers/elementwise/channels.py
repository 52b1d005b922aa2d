"""Blobs (N, C, ...) as channels (N, C, P), for layers that treat every channel alike."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from minicaffe import threads
from minicaffe.blob import Array
from minicaffe.threads import Index, each_block


def channels_of(shape: tuple[int, ...]) -> int:
    """Return C of a shape (N, C, ...), or 1 if it has fewer than two axes."""
    return shape[1] if len(shape) > 1 else 1


def by_channel(x: Array) -> Array:
    """Return an array (N, C, ...) as a view (N, C, P)."""
    return x.reshape(x.shape[0] if x.ndim else 1, channels_of(x.shape), math.prod(x.shape[2:]))


def sum_products(a: Array, b: Array) -> Array:
    """Return the sum of a * b in each channel (C,), for a and b (N, C, P)."""
    total = np.empty(a.shape[1], a.dtype)
    each_channels(a.shape, lambda c: np.einsum("ncp,ncp->c", a[:, c], b[:, c], out=total[c]))  # without an array of products
    return total


def sum_channels(x: Array) -> Array:
    """Return the sum of each channel (C,) of an array (N, C, P)."""
    total = np.empty(x.shape[1], x.dtype)
    each_channels(x.shape, lambda c: np.sum(x[:, c], axis=(0, 2), out=total[c]))
    return total


def affine(
    x: Array,
    out: Array,
    *,
    minus: Array | None = None,
    times: Array | None = None,
    plus: Array | None = None,
    kept: Array | None = None,
) -> None:
    """Compute out = (x - minus) * times + plus, block by block.

    x and out (N, C, P) may be the same array; minus, times, plus (C,): at least one of them; kept (N, C, P) receives a copy of
    x.
    """
    steps = [(f, v) for f, v in ((np.subtract, minus), (np.multiply, times), (np.add, plus)) if v is not None]

    def step(index: Index) -> None:
        source, part = x[index], out[index]
        if kept is not None:
            kept[index] = source
        for operation, vector in steps:
            operation(source, vector[index[1], None], out=part)
            source = part  # later steps work in place, in out

    each_block(x.shape, step)


def each_channels(shape: tuple[int, ...], step: Callable[[slice], object]) -> None:
    """Call step(channels) for slices of an array's channels (N, C, P), about a block each, on all threads."""
    n, c, p = shape
    # Never cut a channel, because its sum is one number.
    each_block((c,), lambda index: step(index[0]), max(1, threads.BLOCK // max(1, n * p)))
