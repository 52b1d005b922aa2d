"""The columns of a block of a convolution: one column for each window, for products with the weights.

    values (G, C * taps, windows)     of G groups of C channels; the windows of one image's rows, or of several small images

Where a window is its own pixel they are the data itself. Where gaps cost little they are runs with gaps, made by copying long
stretches; else, on small maps, short rows are copied, and no gap takes the product's time.

PhaseLayout: a map laid out so that what one tap of the kernel sees, over all windows, is one run of numbers.

    stride 2: the even and the odd rows and columns apart (phases); stride 1: the map, with a border of zeros

    phase (0, 0)   x00 x02 x04 0     tap (0, 2) of three windows:    [x02 x04  0  .  x22 x24 0]
                   x20 x22 x24 0                                     (the dot is a gap, between one row and the next)

Columns are made by copying long runs, and added back as long runs, at the speed of memory, whatever the stride: windows taken
one by one copy a few numbers at a time. The gaps, a kernel's reach to a row, cost a little of the product instead.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.threads import Scratch

from .window import Window, overlap

Index = tuple[Any, ...]


@dataclass(frozen=True)
class PhaseLayout:
    """The positions of the taps' runs in a map's phases (number of phases, *size), flattened.

    output: windows on each axis; size: of a phase; starts: of each tap's run; places: each tap's pixels, without the gaps, as
    indices of phases (C, N, phases, *size); length: of a run; gapped: of a run with the following gap: (output[0], *size[1:]).
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
        """Copy x (N, C, *map) into out (C, N, phases, *size), for the windows from row `first` on."""
        for i, inner, source in self._inside(x.shape[2:], first):
            if inner[1:] != tuple(slice(0, n) for n in self.size):  # the border, and rows past the map, are zeros
                to[:, :, i] = 0
            to[:, :, i][inner] = x[source].swapaxes(0, 1)

    def add_phases(self, phases: Array, first: int, x: Array) -> None:
        """Add phases (C, N, phases, *size) to the pixels of x (N, C, *map) that lay_out copied them from."""
        for i, inner, source in self._inside(x.shape[2:], first):
            x[source] += phases[:, :, i][inner].swapaxes(0, 1)

    def tight(self, rows: Array) -> Array:
        """Return rows (..., gapped) without their gaps: a view (..., *output)."""
        whole = rows.reshape(*rows.shape[:-1], self.output[0], *self.size[1:])
        index: Index = (..., *(slice(n) for n in self.output))
        return whole[index]

    def _inside(self, spatial: Sequence[int], first: int) -> Iterator[tuple[int, Index, Index]]:
        """Yield each phase's number, the index of its part inside the map, and the index of the map's pixels there."""
        window, rows = self.window, (first, *[0] * (len(spatial) - 1))
        for i, phase in enumerate(self.phases):
            # The map's row (column, ...) where the phase begins; negative in the padding.
            begins = (a - p + n * s for a, p, n, s in zip(phase, window.pad, rows, window.stride))
            inner, source = zip(*map(overlap, begins, window.stride, self.size, spatial))
            yield i, (..., *inner), (..., *source)


@lru_cache(maxsize=512)
def runs_of(window: Window, output: tuple[int, ...]) -> PhaseLayout:
    """Return the phase layout for `output` windows on each axis."""
    # Tap t: its distance from its window's start in windows, and its phase.
    steps = [[divmod(t * d, s) for t in range(k)] for k, d, s in zip(window.kernel, window.dilation, window.stride)]
    size = tuple(n + axis[-1][0] for n, axis in zip(output, steps))  # the last tap reaches furthest
    pitch = [math.prod(size[i + 1 :]) for i in range(len(size))]  # distance between neighbouring windows on each axis
    taps = [tuple(zip(*tap)) for tap in itertools.product(*steps)]  # ((row, column), (phase of rows, phase of columns))
    phases = sorted({phase for _, phase in taps})
    number = {phase: i for i, phase in enumerate(phases)}
    starts = [number[phase] * math.prod(size) + sum(map(int.__mul__, at, pitch)) for at, phase in taps]
    places = [(..., number[phase], *(slice(q, q + n) for q, n in zip(at, output))) for at, phase in taps]
    # from the first window to the last, with the gaps between them
    length = sum((n - 1) * p for n, p in zip(output, pitch)) + 1
    return PhaseLayout(window, output, size, tuple(phases), tuple(starts), tuple(places), length, output[0] * pitch[0])


GAPS_COST = 12
"""Limit of a group's filters times gaps for each window. Above it, columns without gaps are cheaper."""

WIDE, FEW = 64, 32
"""Least windows in a row that are long enough as a run of their own, and least filters for that. The products of fewer filters
take no longer than such runs."""


class Columns:
    """The columns of the windows `output` (rows, ...) of `count` images, in `groups` groups, from row `first` on.

    filters: the number of a group's filters. All arrays are in scratch: the next block overwrites them.
    """

    def __init__(
        self, window: Window, count: int, groups: int, first: int, output: tuple[int, ...], *, filters: int, scratch: Scratch
    ) -> None:
        self.window, self.count, self.groups, self.first, self.output = window, count, groups, first, output
        self.runs, self.scratch = runs_of(window, output), scratch
        self.direct = window.pointwise and count == 1  # the channels of several images do not form one matrix
        gaps = self.runs.gapped / math.prod(output) - 1  # numbers in gaps per window
        narrow = output[-1] < WIDE or filters < FEW
        self.gapped = not self.direct and count == 1 and narrow and 0 < gaps * filters < GAPS_COST
        self.length = self.runs.length if self.gapped else count * math.prod(output)

    def of(self, x: Array) -> Array:
        """Return the columns of x (N, G * C, *map)."""
        if self.direct:
            return x[:, :, self.first : self.first + self.output[0]].reshape(self.groups, -1, self.length)
        if self.gapped and self.window.dense:
            # without border and stride, the map is its only phase
            phases = x[0, :, self.first : self.first + self.runs.size[0]]
        else:
            phases = self._phases(x.shape[1])
            self.runs.lay_out(x, self.first, phases)
        values = self.scratch("columns", x.shape[1], len(self.runs.starts), self.length)
        rows = self._by_tap(values)
        for tap, seen in enumerate(self._seen(phases)):
            rows[:, tap] = seen
        return values.reshape(self.groups, -1, self.length)

    def beside(self, dy: Array) -> Array:
        """Return dy (N, G * M, *output) as (G, M, windows), in the order of the columns; 0 in the gaps."""
        if self.gapped:
            rows = self.scratch("beside", dy.shape[1], self.runs.gapped)
            rows[...] = 0  # the columns hold arbitrary numbers in the gaps, which must add nothing
            self.runs.tight(rows)[...] = dy[0]
            rows = rows[:, : self.length]
        else:
            # In the order of the columns: image after image in each channel.
            rows = dy[0] if self.count == 1 else dy.swapaxes(0, 1)
        return rows.reshape(self.groups, dy.shape[1] // self.groups, self.length)

    def multiplied(self, matrix: Array, columns: Array, y: Array) -> Array:
        """Return matrix (G, M, C * taps) @ columns (G, C * taps, windows) as (1, G * M, windows).

        The result is in y (N, G * M, *output) if y has the same memory layout; else `put` writes it there.
        """
        in_place = self.count == 1 and not self.gapped
        product = y if in_place else self._product(y.shape[1])[:, : self.length]
        product = product.reshape(*matrix.shape[:2], self.length)  # a view: BLAS writes to y
        np.matmul(matrix, columns, out=product)
        return product.reshape(1, -1, self.length)

    def put(self, product: Array, y: Array) -> None:
        """Write the result of multiplied to y (N, G * M, *output)."""
        if self.gapped:
            y[0] = self.runs.tight(self._product(y.shape[1]))
        elif self.count > 1:
            y.swapaxes(0, 1)[...] = product.reshape(product.shape[1], self.count, *self.output)

    def add_back(self, columns: Array, dx: Array) -> None:
        """Add columns (G, C * taps, windows) to the pixels of dx (N, G * C, *map) that they were read from."""
        rows = self._by_tap(columns)
        phases = self._phases(dx.shape[1])
        phases[...] = 0
        for tap, seen in enumerate(self._seen(phases)):
            np.add(seen, rows[:, tap], out=seen)
        self.runs.add_phases(phases, self.first, dx)

    def _by_tap(self, columns: Array) -> Array:
        """Return columns (G, C * taps, windows) as (G * C, taps, *shape of one tap's pixels)."""
        sight = (self.length,) if self.gapped else (self.count, *self.output)
        return columns.reshape(-1, len(self.runs.starts), *sight)

    def _seen(self, phases: Array) -> list[Array]:
        """Return the pixels that each tap reads: views of phases (C, N, phases, *size)."""
        if self.gapped:
            flat = phases.reshape(len(phases), -1)
            # A run continues from row to row; the numbers between rows are a gap.
            return [flat[:, start : start + self.length] for start in self.runs.starts]
        return [phases[index] for index in self.runs.places]

    def _product(self, rows: int) -> Array:
        """Return memory for a product. It includes the last row's gap, which `tight` needs."""
        return self.scratch("product", rows, self.runs.gapped if self.gapped else self.length)

    def _phases(self, channels: int) -> Array:
        return self.scratch("phases", channels, self.count, len(self.runs.phases), *self.runs.size)
