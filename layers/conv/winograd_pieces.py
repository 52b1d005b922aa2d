"""Convolutions of larger kernels or strides as 3x3 ones of stride 1, which Winograd's transforms are for.

    y[o] = sum over i of w[i] x[o s - p + i]
         = sum over pieces of [ sum over t < 3 of w[first + t s] x[(o + t) s - p + first] ]

On each axis, the taps that a stride of s takes together are those s apart; three of them, or what is left, are a piece: of
5 taps with stride 1 those from 0 and from 3 on, with stride 2 those from 0 and from 1 on. Each piece is a 3x3 convolution of
the pixels s apart, and y their sum: one convolution, of as many times the channels as there are pieces. 5x5 has four
pieces, so 9 products for each output instead of 25.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product

import numpy as np

from minicaffe.blob import Array

from .window import Window

TAPS = 3
"""Of a piece, on each axis."""


@lru_cache(maxsize=512)
def pieces(window: Window) -> tuple[tuple[int, ...], ...]:
    """The first tap of each piece, on each axis."""
    return tuple(product(*map(_first_taps, window.kernel, window.stride)))


def count_of_pieces(window: Window) -> int:
    """How many pieces there are, counted without making them."""
    count = 1
    for kernel, stride in zip(window.kernel, window.stride, strict=True):
        each, more = divmod(kernel, stride)  # taps of a phase, and how many phases have one more
        count *= more * -(-(each + 1) // TAPS) + (stride - more) * -(-each // TAPS)
    return count


def offsets(window: Window) -> Sequence[tuple[int, ...]]:
    """How far on the map each piece's first tap lies from the window's."""
    return [tuple(f * d for f, d in zip(first, window.dilation)) for first in pieces(window)]


def each_piece(weight: Array, window: Window) -> Iterator[Array]:
    """Views of the pieces of weight (M, C, *kernel), each (M, C, up to 3, up to 3)."""
    for first in pieces(window):
        rows, columns = map(_slice, first, window.stride)
        yield weight[:, :, rows, columns]


def to_pieces(weight: Array, window: Window) -> Array:
    """weight (M, C, *kernel) as (M, pieces * C, 3, 3), 0 where a piece has fewer taps."""
    if window.kernel == (TAPS, TAPS):
        return weight
    (m, c), all_ = weight.shape[:2], pieces(window)
    made = np.zeros((m, len(all_), c, TAPS, TAPS), weight.dtype)
    for number, taps in enumerate(each_piece(weight, window)):
        made[:, number, :, : taps.shape[2], : taps.shape[3]] = taps
    return made.reshape(m, len(all_) * c, TAPS, TAPS)


def add_pieces(gradient: Array, window: Window, dweight: Array) -> None:
    """Add gradient (M, pieces, C, 3, 3) of to_pieces(weight) to that of weight, dweight (M, C, *kernel)."""
    for number, to in enumerate(each_piece(dweight, window)):
        np.add(to, gradient[:, number, :, : to.shape[2], : to.shape[3]], out=to)


def phases(weight: Array, window: Window, group: int) -> Array:
    """The weights of the convolution of stride 1 that makes of dy the data gradient, of each phase (row and column modulo the
    stride) a map: of weight (M, C / group, *kernel) those (group * phases * C / group, M / group, *taps). Padded by
    dilation * (taps - 1) it makes whole maps."""
    m, c = weight.shape[:2]
    (down, across), (rows, columns) = window.stride, taps_of_phases(window)
    padded = weight
    if window.kernel != (rows * down, columns * across):
        padded = np.zeros((m, c, rows * down, columns * across), weight.dtype)
        padded[:, :, : window.kernel[0], : window.kernel[1]] = weight
    # a correlation's gradient correlates with kernels turned by 180 degrees, filters and channels exchanged
    turned = padded.reshape(group, m // group, c, rows, down, columns, across)[:, :, :, ::-1, :, ::-1]
    filters: Array = turned.transpose(0, 4, 6, 2, 1, 3, 5).reshape(group * down * across * c, m // group, rows, columns)
    return filters


def taps_of_phases(window: Window) -> tuple[int, ...]:
    """How many taps, at most, a pixel of one phase meets on each axis."""
    return tuple(-(-k // s) for k, s in zip(window.kernel, window.stride))


def shared_taps(window: Window) -> tuple[tuple[bool, ...], ...]:
    """Of the taps of phases, on each axis, those that are not 0 in any phase; all where one has none."""
    return tuple((k % s == 0 or k < s,) + (True,) * (-(-k // s) - 1) for k, s in zip(window.kernel, window.stride))


def _first_taps(kernel: int, stride: int) -> list[int]:
    return [first for phase in range(min(kernel, stride)) for first in range(phase, kernel, TAPS * stride)]


def _slice(first: int, stride: int) -> slice:
    return slice(first, first + (TAPS - 1) * stride + 1, stride)
