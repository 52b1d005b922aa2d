"""A map laid out so that what one tap of the kernel sees, over all windows, is one run of numbers.

    stride 2: the even and the odd rows and columns apart (phases); stride 1: the map, with a border of zeros

    phase (0, 0)   x00 x02 x04 0     tap (0, 2) of three windows:    [x02 x04  0  .  x22 x24 0]
                   x20 x22 x24 0                                     (the dot is a gap, between one row and the next)

So columns are made by copying long runs, and added back as long runs, at the speed of memory, whatever the stride: windows
taken one by one copy a few numbers at a time. The gaps, a kernel's reach to a row, cost a little of the product instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from minicaffe.blob import Array

from .window import Window

Index = tuple[Any, ...]


@dataclass(frozen=True)
class Runs:
    """Where the taps' runs lie in a map's phases (number of phases, *size), flattened.

    output: windows on each axis; size: of a phase; starts: of each tap's run; places: what each tap sees, without the
    gaps, as indices of phases (C, N, phases, *size); length: of a run; gapped: of a run with the gap behind it, so that
    it is (output[0], *size[1:]).
    """

    window: Window
    output: tuple[int, ...]
    size: tuple[int, ...]
    phases: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    places: tuple[Index, ...]
    length: int
    gapped: int

    def lay_out(self, x: Array, first: int, to: Array) -> None:
        """Lay x (N, C, *map) out in to (C, N, phases, *size), for the windows from row `first` on."""
        for i, phase in enumerate(self.phases):
            inner, source = self._inside(phase, x.shape[2:], first)
            if inner[1:] != tuple(slice(0, n) for n in self.size):  # the phase has a border, or rows past the map: zeros
                to[:, :, i] = 0
            to[:, :, i][inner] = x[source].swapaxes(0, 1)

    def add_phases(self, phases: Array, first: int, x: Array) -> None:
        """Add phases (C, N, phases, *size) to the pixels of x (N, C, *map) that they were laid out from."""
        for i, phase in enumerate(self.phases):
            inner, source = self._inside(phase, x.shape[2:], first)
            x[source] += phases[:, :, i][inner].swapaxes(0, 1)

    def tight(self, rows: Array) -> Array:
        """rows (..., gapped) without their gaps: a view (..., *output)."""
        whole = rows.reshape(*rows.shape[:-1], self.output[0], *self.size[1:])
        index: Index = (..., *(slice(n) for n in self.output))
        return whole[index]

    def _inside(self, phase: Sequence[int], spatial: Sequence[int], first: int) -> tuple[Index, Index]:
        """What of a phase lies inside the map, and where on the map that is."""
        inner: list[Any] = [...]
        source: list[Any] = [...]
        for axis, (a, n, size) in enumerate(zip(phase, spatial, self.size)):
            stride = self.window.stride[axis]
            # the map's row (column, ...) that the phase begins with; below 0 in the padding
            at = a - self.window.pad[axis] + (first * stride if axis == 0 else 0)
            low = min(size, max(0, -(at // stride)))  # ceil(-at / stride): the first on the map
            high = max(low, min(size, (n - 1 - at) // stride + 1))
            inner.append(slice(low, high))
            # an empty slice where high is low
            source.append(slice(at + low * stride, at + max(low, high - 1) * stride + (high > low), stride))
        return tuple(inner), tuple(source)


@lru_cache(maxsize=512)
def runs_of(window: Window, output: tuple[int, ...]) -> Runs:
    """The runs of `output` windows on each axis."""
    # tap t is so many windows, and a phase, away from its window's start
    steps = [[divmod(t * d, s) for t in range(k)] for k, d, s in zip(window.kernel, window.dilation, window.stride)]
    size = tuple(n + axis[-1][0] for n, axis in zip(output, steps))  # the last tap reaches furthest
    pitch = [math.prod(size[i + 1 :]) for i in range(len(size))]  # numbers from one window to the next on each axis
    taps = [tuple(zip(*tap)) for tap in itertools.product(*steps)]  # ((row, column), (phase of rows, of columns))
    phases = sorted({phase for _, phase in taps})
    number = {phase: i for i, phase in enumerate(phases)}
    starts = [number[phase] * math.prod(size) + sum(map(int.__mul__, at, pitch)) for at, phase in taps]
    places = [(..., number[phase], *(slice(q, q + n) for q, n in zip(at, output))) for at, phase in taps]
    length = sum((n - 1) * p for n, p in zip(output, pitch)) + 1  # from the first window to the last, gaps between included
    return Runs(window, output, size, tuple(phases), tuple(starts), tuple(places), length, output[0] * pitch[0])
