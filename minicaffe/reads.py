"""The places of a bottom that a place of a top reads, on each axis after the channels: the result of Layer.reads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple


class Axis(NamedTuple):
    """The places of a bottom that place i of a top reads.

    They go from ceil((stride i + first) / divisor) to floor((stride i + last) / divisor), `step` apart. modulo: the places are
    counted anew after this many (0: never). statistics: the top also depends on statistics of whole maps.
    """

    stride: int = 1
    divisor: int = 1
    first: int = 0
    last: int = 0
    step: int = 1
    modulo: int = 0
    statistics: bool = False

    def taps(self, i: int) -> range:
        """Return the places that place i of the top reads, in order, including those outside of the bottom's axis."""
        start, end = -(-(self.stride * i + self.first) // self.divisor), (self.stride * i + self.last) // self.divisor
        return range(start, end + 1, self.step)

    def readers(self, place: int, count: int) -> list[tuple[int, int]]:
        """Return (place, tap) of those of `count` places of the top that read this place, the lowest tap first."""
        return [(i, self.taps(i).index(place)) for i in reversed(range(count)) if place in self.taps(i)]

    def places(self, of: Collection[int], length: int) -> set[int]:
        """Return the places on a bottom's axis of that length that these places of the top read."""
        found = {place for i in of for place in self.taps(i)}
        return {i % self.modulo if self.modulo else i for i in found if self.modulo or 0 <= i < length}


UNREAD = Axis(last=-1)
"""No place is read: only the length of the bottom's axis counts."""


def moved(by: int) -> Axis:
    """Return the axis on which each place reads the place `by` further along."""
    return Axis(first=by, last=by)


def whole(length: int) -> Axis:
    """Return the axis on which each place reads all places."""
    return Axis(0, 1, 0, length - 1)


def along(axis: int, shape: Sequence[int], one: Axis) -> tuple[Axis, ...]:
    """Return `one` for this axis of blobs of this shape. On the others a place reads itself."""
    return tuple(one if i == axis else Axis() for i in range(2, len(shape)))


def same_places(x: Sequence[int], y: Sequence[int]) -> tuple[Axis, ...] | None:
    """Return the axes of a top of shape y whose places read themselves; None if the maps of shape x have another size."""
    return along(0, y, Axis()) if x[2:] == y[2:] else None
