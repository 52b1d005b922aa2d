"""The columns of a block of a convolution: what each window sees, one column a window, for products with the weights.

    values (G, C * taps, windows)     of G groups of C channels; the windows of one image's rows, or of several small images

Where a window is its own pixel they are the data itself. Where gaps cost little they are runs with gaps (runs.py), made
by copying long stretches; else, on small maps, short rows are copied, and no gap takes the product's time.
"""

from __future__ import annotations

import math

import numpy as np

from minicaffe.blob import Array
from minicaffe.blocks import Scratch

from .runs import runs_of
from .window import Window

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
