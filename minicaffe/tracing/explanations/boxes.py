"""Boxes worked out by hand: a row of a table of boxes, overlaps, and a box moved by deltas."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.layer import Layer

from .explanation import SHARE, Case, Explanation, indented
from .terms import Index, exact, flat_index, number, place, same, signed, table

Section = Sequence[str] | Callable[[int], Sequence[str]]
CORNERS = ("x1", "y1", "x2", "y2")


@dataclass(frozen=True, kw_only=True, eq=False)
class RowExplanation(Explanation):
    """A whole row of a top at the index `where`: its numbers' names, the layer's values (`row`), the computed ones (`worked`).

    value, computed: of the number at `at`. tolerances: of each number, 0 for equality to the last bit.
    sections: the lines of what is worked out, or functions that give them for a number of rows of a table.
    """

    where: Index
    names: tuple[str, ...]
    row: tuple[float, ...]
    worked: tuple[float, ...]
    tolerances: tuple[float, ...]
    sections: tuple[Section, ...]

    @property
    def agrees(self) -> bool:
        return all(map(same, self.row, self.worked, self.tolerances))

    def heading(self) -> str:
        numbers = ", ".join(f"{name} {number(value)}" for name, value in zip(self.names, self.row))
        return f'{self.type} layer "{self.layer}": {place(self.blob, self.where)}: {numbers}'

    def work(self, rows: int) -> list[str]:
        lines = [section(rows) if callable(section) else section for section in self.sections]
        return [line for section in lines for line in indented(section)][:-1]

    def verdict(self) -> str:
        if len(self.row) == 1:
            return super().verdict()
        found = zip(self.names, self.row, self.worked, self.tolerances)
        wrong = [f"{n} is {exact(w)} here, {exact(r)} by the layer" for n, r, w, t in found if not same(r, w, t)]
        if wrong:
            return f"THEY DIFFER: {'; '.join(wrong)}"
        if self.row == self.worked:
            return f"all {len(self.row)} numbers computed here equal the layer's, bit for bit"
        apart = max(abs(r - w) for r, w in zip(self.row, self.worked) if r != w)
        return f"all {len(self.row)} numbers computed here equal the layer's within rounding: at most {apart:.2g} apart"


def row_of(case: Case[Layer], at: Index, names: Sequence[str], worked: Sequence[float], **more: Any) -> RowExplanation:
    """Return a RowExplanation of the row of len(names) numbers in which `at` lies. more: formula, sections, tolerances."""
    flat = flat_index(at, case.tops[case.number].shape)
    first, column = flat - flat % len(names), flat % len(names)
    row = tuple(map(float, case.tops[case.number].reshape(-1)[first : first + len(names)]))
    tolerances = more.pop("tolerances", None) or (0.0,) * len(names)
    own: dict[str, Any] = {"computed": worked[column], "tolerance": tolerances[column], "tolerances": tuple(tolerances)}
    shape = case.tops[case.number].shape
    axes = next((k for k in range(len(shape)) if math.prod(shape[k:]) == len(names)), len(shape))
    own |= {"where": at[:axes], "names": tuple(names), "row": row, "worked": tuple(map(float, worked))}
    return RowExplanation(**own, **more, **case.named(at))


def corners(box: Sequence[float] | Array, names: Sequence[str] = CORNERS) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in zip(names, box))


def overlaps(box: Array, others: Array) -> Array:
    """Return the intersection over union (N,) of a box (4,) with others (N, 4), rounded as in the layers' NMS.

    Both ends of a box are pixels.
    """
    one = box.dtype.type(1)
    sides = [np.minimum(box[i + 2], others[:, i + 2]) - np.maximum(box[i], others[:, i]) + one for i in (0, 1)]
    shared = np.maximum(sides[0], 0) * np.maximum(sides[1], 0)
    own = (box[2] - box[0] + one) * (box[3] - box[1] + one)
    areas = (others[:, 2] - others[:, 0] + one) * (others[:, 3] - others[:, 1] + one)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = shared / (own + areas - shared)
    return found


def overlap_text(box: Sequence[float] | Array, other: Sequence[float] | Array) -> str:
    """Write shared / (area + area - shared) with numbers."""
    a, b = ([float(v) for v in values] for values in (box, other))
    width, height = (max(min(a[i + 2], b[i + 2]) - max(a[i], b[i]) + 1, 0.0) for i in (0, 1))
    areas = [(c[2] - c[0] + 1) * (c[3] - c[1] + 1) for c in (a, b)]
    shared = width * height
    union = sum(areas) - shared
    quotient = f" = {number(shared / union)}" if union else ""
    return f"{number(shared)} / ({number(areas[0])} + {number(areas[1])} - {number(shared)}){quotient}"


@dataclass(frozen=True)
class Move:
    """A box (x1, y1, x2, y2, both ends pixels) moved by deltas dx, dy, dw, dh, in float64. places: of the deltas, as text.

    limits: the image's width and height, to which the box is clipped; None: not clipped.
    """

    box: tuple[float, ...]
    deltas: tuple[float, ...]
    places: tuple[str, ...]
    limits: tuple[float, float] | None = None

    def moved(self) -> tuple[float, ...]:
        """Return the moved box before clipping."""
        ends = [self._axis(axis) for axis in (0, 1)]
        return ends[0][2], ends[1][2], ends[0][3], ends[1][3]

    def clipped(self) -> tuple[float, ...]:
        if self.limits is None:
            return self.moved()
        return tuple(_clipped(value, self.limits[i % 2]) for i, value in enumerate(self.moved()))

    def tolerances(self) -> tuple[float, ...]:
        """Return the rounding of each corner: a centre minus or plus half a size, which has a factor exp(rounded delta)."""
        each = []
        for axis in (0, 1):
            size, centre, *_ = self._axis(axis)
            delta = self.deltas[axis + 2]
            move = abs(self.deltas[axis]) * abs(self.box[axis + 2] - self.box[axis] + 1)
            each.append(SHARE * (abs(centre) + move + size * (1 + abs(delta)) + abs(self.box[axis + 2])))
        return each[0], each[1], each[0], each[1]

    def _axis(self, axis: int) -> tuple[float, float, float, float]:
        """Return the new size, centre and two ends along an axis."""
        side = self.box[axis + 2] - self.box[axis] + 1
        centre = self.deltas[axis] * side + self.box[axis] + 0.5 * side
        size = _exp(self.deltas[axis + 2]) * side
        return size, centre, centre - 0.5 * size, centre + 0.5 * size

    def lines(self, what: str = "the anchor") -> list[str]:
        """Return a table of the steps of both axes, as lines."""
        columns = [self._steps(axis) for axis in (0, 1)]
        labels = [what, "its width, height", "its centre", "deltas", "", "new centre", "new size", "from, to"]
        labels += ["clipped to the image"] * (self.limits is not None)
        body = [["", "x", "y"], *([label, x, y] for label, x, y in zip(labels, *columns))]
        return table(body, left=3, indent="")

    def _steps(self, axis: int) -> list[str]:
        low, high = self.box[axis], self.box[axis + 2]
        side, (size, centre, first, last) = high - low + 1, self._axis(axis)
        shift, growth = self.deltas[axis], self.deltas[axis + 2]
        middle = low + 0.5 * side
        steps = [
            f"{number(low)} to {number(high)}",
            f"{number(high)} - {signed(low)} + 1 = {number(side)}",
            f"{number(low)} + {number(side)} / 2 = {number(middle)}",
            f"d{'xy'[axis]} {number(shift)} {self.places[axis]}".rstrip(),
            f"d{'wh'[axis]} {number(growth)} {self.places[axis + 2]}".rstrip(),
            f"{number(shift)} * {number(side)} + {signed(middle)} = {number(centre)}",
            f"exp({number(growth)}) * {number(side)} = {number(size)}",
            f"{number(centre)} -+ {number(size)} / 2: {number(first)} to {number(last)}",
        ]
        if self.limits is not None:
            least, most = (_clipped(value, self.limits[axis]) for value in (first, last))
            steps.append(f"{number(least)} to {number(most)}, in [0, {number(self.limits[axis] - 1)}]")
        return steps


def _clipped(value: float, end: float) -> float:
    return value if math.isnan(value) else min(max(value, 0.0), end - 1)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
