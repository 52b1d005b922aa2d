"""Axis: the places that a place of a top reads, and the places of the top that read one."""

from __future__ import annotations

import pytest

from minicaffe.layers.conv.window import Window
from minicaffe.reads import UNREAD, Axis, moved, whole

WINDOWS = [((3,), (1,), (0,), (1,)), ((3,), (2,), (1,), (1,)), ((4,), (3,), (5,), (2,)), ((1,), (2,), (0,), (1,))]
AXES = [axis for sizes in WINDOWS for axis in (*Window(*sizes).reads(), *Window(*sizes).transposed_reads())]


@pytest.mark.parametrize("axis", [*AXES, UNREAD, moved(-2), whole(7), Axis(3, 2, -1, 1)], ids=str)
def test_readers_are_the_transpose_of_taps(axis: Axis) -> None:
    count, length = 6, 12
    read = [(i, place, tap) for i in range(count) for tap, place in enumerate(axis.taps(i)) if 0 <= place < length]
    reading = [(i, place, tap) for place in range(length) for i, tap in axis.readers(place, count)]
    assert sorted(reading) == sorted(read)
    assert axis.places(range(count), length) == {place for _, place, _ in read}


def test_taps_of_a_dilated_window_begin_on_padding() -> None:
    (axis,) = Window((3,), (2,), (3,), (2,)).reads()
    assert list(axis.taps(0)) == [-3, -1, 1]
    assert axis.readers(1, 4) == [(2, 0), (1, 1), (0, 2)]
