"""Blobs (N, C, ...) seen as channels, (N, C, P): what layers that treat every channel alike share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def channels_of(shape: tuple[int, ...]) -> int:
    """(N, C, ...) -> C; one axis or none is one channel."""
    return shape[1] if len(shape) > 1 else 1


def by_channel(x: Array) -> Array:
    """(N, C, ...) -> (N, C, P), a view."""
    return x.reshape(x.shape[0] if x.ndim else 1, channels_of(x.shape), math.prod(x.shape[2:]))


def sum_products(a: Array, b: Array) -> Array:
    """(N, C, P), (N, C, P) -> (C,): the sum of a * b in each channel."""
    return np.einsum("ncp,ncp->c", a, b)  # type: ignore[no-any-return]
