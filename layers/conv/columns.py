"""The columns of a block of a convolution: what each window sees, one column a window, for products with the weights.

    values (G, C * taps, windows)     of G groups of C channels; the windows of one image's rows, or of several small images

Where a window is its own pixel they are the data itself. Where gaps cost little they are runs with gaps, made by copying long
stretches; else, on small maps, short rows are copied, and no gap takes the product's time.

Runs: a map laid out so that what one tap of the kernel sees, over all windows, is one run of numbers.

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

import numpy as np

from minicaffe.blob import Array
from minicaffe.blocks import Scratch

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


GAPS_COST = 12
"""Filters of a group times gaps for each window; from here on, columns without gaps are cheaper."""

WIDE, FEW = 64, 32
"""Windows in a row: enough of a run without its neighbours; but for few filters, whose products take no longer than that."""


class Columns:
    """The columns of the windows `output` (rows, ...) of `count` images, in `groups` groups, from row `first` on.

    filters: how many of a group the columns are multiplied with. All arrays made are scratch's: the next block overwrites them.
    """

    def __init__(
        self, window: Window, count: int, groups: int, first: int, output: tuple[int, ...], *, filters: int, scratch: Scratch
    ) -> None:
        self.window, self.count, self.groups, self.first, self.output = window, count, groups, first, output
        self.runs, self.scratch = runs_of(window, output), scratch
        self.direct = window.pointwise and count == 1  # several images' channels do not lie in one matrix
        gaps = self.runs.gapped / math.prod(output) - 1  # numbers in gaps, for each window
        narrow = output[-1] < WIDE or filters < FEW
        self.gapped = not self.direct and count == 1 and narrow and 0 < gaps * filters < GAPS_COST
        self.length = self.runs.length if self.gapped else count * math.prod(output)

    def of(self, x: Array) -> Array:
        """The columns of x (N, G * C, *map)."""
        if self.direct:
            return x[:, :, self.first : self.first + self.output[0]].reshape(self.groups, -1, self.length)
        channels, taps = x.shape[1], len(self.runs.starts)
        values = self.scratch("columns", channels, taps, self.length)
        if self.gapped:
            # without border and stride the map is its phase
            phases = self._in_place(x) if self.window.dense else self._laid_out(x).reshape(channels, -1)
            for tap, start in enumerate(self.runs.starts):
                # the run may pass from row to row: what lies between is a gap
                values[:, tap] = phases[:, start : start + self.length]
        else:
            phases = self._laid_out(x)
            rows = values.reshape(channels, taps, self.count, *self.output)
            for tap, index in enumerate(self.runs.places):
                rows[:, tap] = phases[index]
        return values.reshape(self.groups, -1, self.length)

    def beside(self, dy: Array) -> Array:
        """dy (N, G * M, *output) as (G, M, windows), as the columns stand; 0 in the gaps."""
        if self.gapped:
            rows = self.scratch("beside", dy.shape[1], self.runs.gapped)
            rows[...] = 0  # what the columns hold in the gaps must add nothing
            self.runs.tight(rows)[...] = dy[0]
            rows = rows[:, : self.length]
        else:
            # as the columns of several images: image after image in each channel
            rows = dy[0] if self.count == 1 else dy.swapaxes(0, 1)
        return rows.reshape(self.groups, dy.shape[1] // self.groups, self.length)

    def multiplied(self, matrix: Array, columns: Array, y: Array) -> Array:
        """matrix (G, M, C * taps) @ columns (G, C * taps, windows), as (1, G * M, windows): straight in y (N, G * M, *output)
        where they stand alike there, else to be `put` there."""
        shape = (*matrix.shape[:2], self.length)
        if self.count == 1 and not self.gapped:
            product = y.reshape(shape)  # a view: BLAS writes to y
        else:
            # with room for the last row's gap, which `tight` needs
            product = self.scratch("product", matrix.shape[0] * matrix.shape[1], self._room)[:, : self.length]
            product = product.reshape(shape)
        np.matmul(matrix, columns, out=product)
        return product.reshape(1, -1, self.length)

    def put(self, product: Array, y: Array) -> None:
        """What multiplied returned, put into y (N, G * M, *output)."""
        if self.gapped:
            # the memory that multiplied has written to
            y[0] = self.runs.tight(self.scratch("product", product.shape[1], self._room))
        elif self.count > 1:
            y.swapaxes(0, 1)[...] = product.reshape(product.shape[1], self.count, *self.output)

    def add_back(self, columns: Array, dx: Array) -> None:
        """Add columns (G, C * taps, windows) to the pixels of dx (N, G * C, *map) that they are of."""
        channels, taps = dx.shape[1], len(self.runs.starts)
        columns = columns.reshape(channels, taps, -1)
        phases = self._phases(channels)
        phases[...] = 0
        if self.gapped:
            flat = phases.reshape(channels, -1)
            for tap, start in enumerate(self.runs.starts):
                flat[:, start : start + self.length] += columns[:, tap]
        else:
            rows = columns.reshape(channels, taps, self.count, *self.output)
            for tap, index in enumerate(self.runs.places):
                phases[index] += rows[:, tap]
        self.runs.add_phases(phases, self.first, dx)

    @property
    def _room(self) -> int:
        return self.runs.gapped if self.gapped else self.length

    def _phases(self, channels: int) -> Array:
        return self.scratch("phases", channels, self.count, len(self.runs.phases), *self.runs.size)

    def _laid_out(self, x: Array) -> Array:
        phases = self._phases(x.shape[1])
        self.runs.lay_out(x, self.first, phases)
        return phases

    def _in_place(self, x: Array) -> Array:
        """x (1, C, *map) itself as its only phase, flattened from row `first` on."""
        rows = x[0, :, self.first : self.first + self.runs.size[0]]
        return rows.reshape(len(rows), -1)  # a view: a channel's rows lie one after another
