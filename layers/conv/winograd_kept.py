"""Winograd's factors of a layer's weights, kept from one forward to the next in TEST.

They are four times the weights, and making them takes a third of the time of VGG16's last convolutions. Whoever holds a
view of a blob's data may write into it at any time, so the factors are used again only while the weights are bit for bit
those of a copy kept beside them: the comparison takes 0.5 ms for 512x512 filters (9.4 MB), where the convolution takes 20. A
net compares only where blob.Unchanged cannot tell.
"""

from __future__ import annotations

import math
import threading
from functools import partial

import numpy as np

from minicaffe import threads
from minicaffe.blob import Array

from .winograd import factors_of, factors_shape

LEAST_PART = 1 << 20
"""Bytes, at least, that one thread compares."""


class KeptFactors:
    """The factors of one layer's weights."""

    def __init__(self) -> None:
        self._of: tuple[Array, Array] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that are kept now: the factors and the copy of the weights."""
        return sum(array.nbytes for array in self._of or ())

    def factors(self, weight: Array, group: int) -> Array:
        """factors_of(weight, group), made anew only when the weights have changed, or what they are multiplied by."""
        kept = self._of
        shape = factors_shape(weight.shape, group)
        if kept is None or kept[0].shape != weight.shape or kept[1].shape != shape or not same_bits(kept[0], weight):
            self._of = kept = None  # free the old factors before the new ones are made
            copy = weight.copy()
            # made of the copy: a write to the weights meanwhile cannot part the two
            kept = self._of = copy, factors_of(copy, group)
        return kept[1]


def kept_bytes(weight: Array, group: int) -> int:
    """What is kept for these weights, in bytes: the factors, about four times their size, and a copy."""
    return weight.nbytes + math.prod(factors_shape(weight.shape, group)) * weight.itemsize


def same_bits(a: Array, b: Array) -> bool:
    """Whether two float32 arrays of one shape hold the same bits (NaN is itself, 0 is not -0)."""
    one, other = (array.reshape(-1).view(np.uint32) for array in (a, b))
    differ = threading.Event()

    def compare(part: slice) -> None:
        if not np.array_equal(one[part], other[part]):
            differ.set()

    threads.run(partial(compare, part) for part in threads.parts(one.size, LEAST_PART // 4))
    return not differ.is_set()
