"""The explanations of the ROI layers: numbers of a roi and a bin, and the cells or samples that the bin reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .explanation import Explanation, indented
from .terms import COLUMNS, Index, exact, number, place, signed, table

Pair = tuple[Any, Any]


class Roi(NamedTuple):
    """A roi in pixels of the input image, both ends included. number: its row; image: its index in the batch."""

    number: int
    image: int
    x1: Any
    y1: Any
    x2: Any
    y2: Any

    def __str__(self) -> str:
        corners = ", ".join(f"{name} {exact(getattr(self, name))}" for name in ("x1", "y1", "x2", "y2"))
        return f"roi {self.number}: image {self.image}, {corners} (pixels of the input image, both ends included)"


@dataclass(frozen=True)
class AxisWork:
    """One axis of a bin: every number between the image and the map, in the type in which the layer computes.

    number: the bin's, of count; given: the roi's two ends in image pixels; image: widened, if the layer does that; halfway:
    after the first step to the map; corners: after the second; extent: the roi's length on the map; length: a bin's; edges: of
    this bin, before rounding; raw: rounded (if the layer rounds), before clipping; clipped: to the map of `size` cells.
    """

    number: int
    count: int
    given: Pair
    image: Pair
    halfway: Pair
    corners: Pair
    extent: Any
    length: Any
    edges: Pair
    raw: Pair
    clipped: Pair
    size: int


class ScoreMap(NamedTuple):
    """The score map that a bin reads, one of group^2 for output channel d: c = (d * group + gh) * group + gw."""

    d: int
    group: int
    gh: int
    gw: int
    channel: int

    def __str__(self) -> str:
        d, group, gh, gw, channel = self
        return (
            f"the score map: channel {channel} = ({d} * {group} + {gh}) * {group} + {gw} = (d * g + gh) * g + gw\n"
            f"  (output channel {d} has {group} x {group} maps, one for each bin; this one belongs to bin {gh},{gw})"
        )


Lines = list[tuple[str, str]]
"""The steps for one axis of a bin: label and arithmetic."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RoiExplanation(Explanation):
    """One bin of one roi. map: the feature map's blob; channel: the map's; scale: spatial_scale.

    rows, columns: the bin's two axes; score_map: for position-sensitive layers; axis_lines: the steps from the image to
    the bin, as text.
    """

    roi: Roi
    map: str
    channel: int
    scale: float
    rows: AxisWork
    columns: AxisWork
    axis_lines: Callable[[AxisWork], Lines]
    score_map: ScoreMap | None = None

    def work(self, rows: int) -> list[str]:
        lines = [f"  {self.roi}", ""]
        x, y = self.axis_lines(self.columns), self.axis_lines(self.rows)
        head = ["", f"x: bin {self.columns.number} of {self.columns.count}", f"y: bin {self.rows.number} of {self.rows.count}"]
        lines += [*table([head, *([what, a, b] for (what, a), (_, b) in zip(x, y))], left=3), ""]
        if self.score_map is not None:
            lines += indented(str(self.score_map).splitlines())
        return lines

    def read(self) -> str:
        """Return the map's channel that the bin reads, as text."""
        return place(self.map, (self.roi.image, self.channel))


@dataclass(frozen=True, kw_only=True, eq=False)
class CellsExplanation(RoiExplanation):
    """A bin of whole cells: `cells` are their values (rows, columns), the first at (rows.clipped[0], columns.clipped[0])."""

    cells: NDArray[Any]

    def grid(self, rows: int, mark: Index | None = None) -> list[str]:
        """Return a table of the cells' values, with the marked one between asterisks."""
        top, left = int(self.rows.clipped[0]), int(self.columns.clipped[0])
        height, width = self.cells.shape
        what = f"  the bin reads {height} x {width} = {self.cells.size} cells of {self.read()}"
        if not self.cells.size:
            return [f"{what}: it is empty, and its value is 0"]
        h, w = (mark[0] - top, mark[1] - left) if mark else (0, 0)
        # Scroll until the mark is shown.
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
    """ROIPooling: the greatest cell. argmax: its (h, w), the first of equal ones in row order; None without a maximum."""

    argmax: Index | None

    def work(self, rows: int) -> list[str]:
        lines = [*super().work(rows), *self.grid(rows, self.argmax), ""]
        if self.argmax is not None:
            h, w = self.argmax
            flat = h * self.columns.size + w
            where = f"h {h}, w {w} (argmax {h} * {self.columns.size} + {w} = {flat})"
            equal = int((self.cells == self.computed).sum())
            first = f", the first of {equal} equal ones in row order" if equal > 1 else ""
            return [*lines, f"  the maximum {number(self.computed)} is at {where}{first}; it gets the whole gradient"]
        return [*lines, f"  no maximum (no cells, or all NaN or -inf): {number(self.computed)}, and no gradient"]


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
    """A cell that a sample reads: row, column (-1: outside the map, counts as 0), weight and value."""

    row: int
    column: int
    weight: float
    value: float


class Sample(NamedTuple):
    """A bilinear sample at h, w of the map: the sum of weight * value of its neighbours."""

    h: Any
    w: Any
    neighbours: tuple[Neighbour, ...]
    value: float


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplesExplanation(RoiExplanation):
    """ROIAlign of all kinds and PSROIAlign: the greatest or the mean of bilinear samples.

    samples: those on the map, row by row; greatest: the index of the maximum (None for a mean, or without a maximum);
    divisor: of the sum (0 for a maximum); left_out: a note on samples that are not listed.
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
            return [*lines, f"  no maximum (no samples, or all NaN or -inf): {number(self.computed)}, and no gradient"]
        s = self.samples[self.greatest]
        at = f"h {exact(s.h)}, w {exact(s.w)}"
        return [*lines, f"  the greatest, {number(s.value)}, is number {self.greatest}, at {at}; its cells get the gradient"]

    def _table(self, rows: int) -> list[str]:
        first = min(max((self.greatest or 0) - rows + 1, 0), len(self.samples))  # scrolled until the greatest is shown
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
        return f"{number(n.weight)} * 0 (outside)"
    return f"{number(n.weight)} * {signed(n.value)} [{n.row}, {n.column}]"
