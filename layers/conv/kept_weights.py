"""What products make of a layer's weights, kept from one forward to the next in TEST. A net asks for it again only where
blob.Unchanged cannot tell that the weights are the same: whoever holds a view of a blob's data may write into it at any time.

Winograd's factors are four times the weights, of 5x5 six times, and making them takes a third of the time of VGG16's last
convolutions. So they are used again while the weights are the same for sure, or, where somebody held a view of them, bit for
bit those of a copy kept beside them: the comparison takes 0.5 ms for 512x512 filters (9.4 MB), where the convolution takes 20.
Panels (tiled.py) take no more time than a comparison: they are made anew. They lie side by side in large pages: each forward
reads them from memory, and MobileNet v1 takes 0.99 of the time.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minicaffe import threads
from minicaffe.blob import ALIGNMENT, LARGE, Array, Blob, Unchanged, paged_zeros
from minicaffe.kernels import kernel

from .window import Window
from .winograd import Shapes, factors_of, factors_shape

LEAST_PART = 1 << 20
"""Bytes, at least, that one thread compares."""


class _Shelf(threading.local):
    """Memory for arrays of which most are smaller than a large page: they lie side by side in pieces that have some, of each
    thread its own."""

    def __init__(self) -> None:
        self._left: Array = paged_zeros(0)

    def zeros(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array that begins at a line of the cache. Its piece is freed with the last array there."""
        size = math.prod(shape) * dtype.itemsize
        if size > len(self._left):
            self._left = paged_zeros(max(size, LARGE))
        made, self._left = self._left[:size], self._left[-(-size // ALIGNMENT) * ALIGNMENT :]
        return made.view(dtype).reshape(shape)


_shelf = _Shelf()


class KeptWeights:
    """The factors or the panels of one layer's weights, whichever its maps wanted last."""

    def __init__(self) -> None:
        self._of: tuple[Array | _Seen, Array] | None = None
        """What tells whether the weights are the same, and the factors."""
        self._panels: Array | None = None
        self._now: _Seen | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that are kept now: the factors, a copy of the weights, the panels."""
        kept = (*(self._of or ()), self._panels)
        return sum(array.nbytes for array in kept if isinstance(array, np.ndarray))

    def look_at(self, weight: Blob) -> None:
        """Before views of these weights are made that factors or panels are then asked for."""
        weight.data_address("read")  # of memory that is not there yet nobody could tell
        self._now = _Seen(weight, Unchanged((weight,)))

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for what is made of the weights in place of factors: the last one's, if it has this shape."""
        self._of = None
        if self._panels is None or self._panels.shape != shape:
            self._panels = _shelf.zeros(shape, dtype)
        return self._panels

    def factors(self, weight: Array, window: Window, group: int) -> Array:
        """factors_of(weight, window, group), made anew only when the weights have changed, or what they are multiplied by."""
        kept, now, self._now, self._panels = self._of, self._now, None, None
        shape = factors_shape(weight.shape, window, group)
        if kept is None or kept[1].shape != shape or not _is_of(kept[0], weight, now):
            self._of = kept = None  # free the old factors before the new ones are made
            if now is not None and now.unchanged.holds():
                kept = now, factors_of(weight, window, group)
            else:
                copy = weight.copy()
                # made of the copy: a write to the weights meanwhile cannot part the two
                kept = copy, factors_of(copy, window, group)
            self._of = kept
        return kept[1]


class _Seen(NamedTuple):
    """Weights, and whether they surely are as they were."""

    weight: Blob
    unchanged: Unchanged


def _is_of(before: Array | _Seen, weight: Array, now: _Seen | None) -> bool:
    """Whether the weights that were looked at now are those of before."""
    if isinstance(before, _Seen):
        return now is not None and now.weight is before.weight and before.unchanged.holds()
    return before.shape == weight.shape and same_bits(before, weight)


def factors_bytes(weight: Sequence[int], window: Window, group: int, held: bool) -> int:
    """What is kept for weights of this shape by Winograd, in bytes: the factors, and a copy of weights of which somebody holds
    a view."""
    return (held * math.prod(weight) + math.prod(factors_shape(weight, window, group))) * 4


@kernel
def panels_bytes(shapes: Shapes, window: Window, group: int, dtype: np.dtype[Any]) -> int:
    """What is kept, in bytes, of weights of which no factors are. shapes: of x, weight and y."""
    return 0


def same_bits(a: Array, b: Array) -> bool:
    """Whether two float32 arrays of one shape hold the same bits (NaN is itself, 0 is not -0)."""
    one, other = (array.reshape(-1).view(np.uint32) for array in (a, b))
    differ = threading.Event()

    def compare(part: slice) -> None:
        if not np.array_equal(one[part], other[part]):
            differ.set()

    threads.run(partial(compare, part) for part in threads.parts(one.size, LEAST_PART // 4))
    return not differ.is_set()
