"""What a bin of a ROI layer reads and what comes of it: cells, or bilinear samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .rois import RoiExplanation
from .terms import Index
from .text import COLUMNS, exact, number, table


@dataclass(frozen=True, kw_only=True, eq=False)
class CellsExplanation(RoiExplanation):
    """A bin of whole cells: `cells` (rows, columns) are their values, the first at (rows.clipped[0], columns.clipped[0])."""

    cells: NDArray[Any]

    def grid(self, rows: int, mark: Index | None = None) -> list[str]:
        """The cells with their values; the marked one in stars."""
        top, left = int(self.rows.clipped[0]), int(self.columns.clipped[0])
        height, width = self.cells.shape
        what = f"  the bin reads {height} x {width} = {self.cells.size} cells of {self.read()}"
        if not self.cells.size:
            return [f"{what}: it is empty, and its value is 0"]
        h, w = (mark[0] - top, mark[1] - left) if mark else (0, 0)
        first_row, first = min(max(h - rows + 1, 0), height), min(max(w - COLUMNS + 1, 0), width)
        shown = self.cells[first_row : first_row + rows, first : first + COLUMNS]
        lines = [["", *(f"w={left + first + j}" for j in range(shown.shape[1]))]]
        for i, values in enumerate(shown):
            cells = [number(v) for v in values]
            if mark and i + first_row == h:
                cells[w - first] = f"*{cells[w - first]}*"
            lines.append([f"h={top + first_row + i}", *cells])
        left_out = self.cells.size - shown.size
        return [what, "", *table(lines), *([f"  {left_out} more cells not shown"] if left_out else [])]


@dataclass(frozen=True, kw_only=True, eq=False)
class MaxBinExplanation(CellsExplanation):
    """ROIPooling: the greatest cell. argmax: its (h, w), the first of equal ones in row order; None where nothing wins."""

    argmax: Index | None

    def work(self, rows: int) -> list[str]:
        lines = [*super().work(rows), *self.grid(rows, self.argmax), ""]
        if self.argmax is not None:
            h, w = self.argmax
            flat = h * self.columns.size + w
            where = f"h {h}, w {w} (argmax {h} * {self.columns.size} + {w} = {flat})"
            equal = int((self.cells == self.computed).sum())
            first = f", the first of {equal} equal ones in row order" if equal > 1 else ""
            return [*lines, f"  the maximum {number(self.computed)} is at {where}{first}; it takes the whole gradient"]
        return [*lines, f"  nothing wins (no cells, or all NaN or -inf): {number(self.computed)}, and no gradient"]


@dataclass(frozen=True, kw_only=True, eq=False)
class MeanBinExplanation(CellsExplanation):
    """PSROIPooling: the mean of the cells."""

    def work(self, rows: int) -> list[str]:
        lines = [*super().work(rows), *self.grid(rows)]
        if self.cells.size:
            total = float(self.cells.sum(dtype=np.float64))
            lines += ["", f"  their sum {number(total)} / {self.cells.size} cells = {number(self.computed)}"]
        return lines


class Neighbour(NamedTuple):
    """A cell that a sample reads: row, column (-1: past the map, adds 0), its weight and its value."""

    row: int
    column: int
    weight: float
    value: float


class Sample(NamedTuple):
    """A bilinear sample at h, w of the map: the sum of its neighbours' weight * value."""

    h: Any
    w: Any
    neighbours: tuple[Neighbour, ...]
    value: float


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplesExplanation(RoiExplanation):
    """ROIAlign of both kinds and PSROIAlign: bilinear samples, of which the greatest or the mean is taken.

    samples: those that read the map, row by row; greatest: which of them wins (pool: MAX; None otherwise, or where none
    does); divisor: what the sum is divided by (0 for a maximum); left_out: what became of samples that are not listed.
    """

    samples: tuple[Sample, ...]
    greatest: int | None = None
    divisor: float = 0.0
    left_out: str = ""

    def work(self, rows: int) -> list[str]:
        lines = super().work(rows)
        count = len(self.samples)
        lines.append(f"  {count} sample{'s' * (count != 1)} of {self.read()}{self.left_out}{':' * bool(count)}")
        if count:
            lines += ["", *self._table(rows), ""]
        if self.divisor:
            total = sum(s.value for s in self.samples)
            return [*lines, f"  their sum {number(total)} / {number(self.divisor)} = {number(self.computed)}"]
        if self.greatest is None:
            return [*lines, f"  nothing wins (no samples, or all NaN or -inf): {number(self.computed)}, and no gradient"]
        s = self.samples[self.greatest]
        at = f"h {exact(s.h)}, w {exact(s.w)}"
        return [*lines, f"  the greatest, {number(s.value)}, is number {self.greatest}, at {at}; its cells share the gradient"]

    def _table(self, rows: int) -> list[str]:
        first = min(max((self.greatest or 0) - rows + 1, 0), len(self.samples))
        shown = self.samples[first : first + rows]
        body = [["", "at h", "at w", *["weight * value [h, w]"] * 2, "their sum"]]
        for i, s in enumerate(shown, first):
            mark = "*" if i == self.greatest else ""
            around = [_neighbour_text(n) for n in s.neighbours]
            body.append([f"{i}{mark}", exact(s.h), exact(s.w), *around[:2]])
            body.append(["", "", "", *around[2:], f"= {number(s.value)}"])
        rest = len(self.samples) - len(shown)
        return [*table(body), *([f"  {rest} more samples not shown"] if rest else [])]


def _neighbour_text(n: Neighbour) -> str:
    if n.row < 0 or n.column < 0:
        return f"{number(n.weight)} * 0 (off)"
    value = f"({number(n.value)})" if n.value < 0 else number(n.value)
    return f"{number(n.weight)} * {value} [{n.row}, {n.column}]"
