"""The explanations of layers that take no rois: typed numbers that print themselves as worked on paper."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from .text import ROWS, exact, number, place, same, table

Array = NDArray[Any]
Index = tuple[int, ...]

SHARE = 1e-6
"""How far a sum may be from the layer's, as a share of the sum of the absolute terms: rounding, in another order."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """One number of a layer: `value` is the layer's own, `computed` what the working shown here gives.

    blob, at: where the number is. tolerance: 0 where the two are equal bit for bit (geometry, maxima, copies), else
    SHARE of the absolute terms. formula: the layer's. notes: what was made up for the run. str() is the whole working,
    text(rows) with longer tables.
    """

    layer: str
    type: str
    blob: str
    at: Index
    value: float
    computed: float
    tolerance: float = 0.0
    formula: str
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether the working gives the layer's number."""
        return same(self.value, self.computed, self.tolerance)

    def heading(self) -> str:
        return f'{self.type} layer "{self.layer}": {place(self.blob, self.at)} = {number(self.value)}'

    def work(self, rows: int) -> list[str]:
        """The lines between the formula and the result; tables of so many rows."""
        return []

    def verdict(self) -> str:
        ours, theirs = exact(self.computed), exact(self.value)
        if self.computed == self.value or not self.tolerance:
            equal = "equal, bit for bit" if self.agrees else "THEY DIFFER"
            return f"worked out here {ours}, the layer's {theirs}: {equal}"
        apart = f"{abs(self.computed - self.value):.2g} apart"
        bound = f"{self.tolerance:.2g}, {SHARE:g} of the absolute terms"
        which = f"{apart}, rounding (below {bound})" if self.agrees else f"THEY DIFFER, {apart}, more than {bound}"
        return f"worked out here {ours}, the layer's {theirs}: {which}"

    def text(self, rows: int = ROWS) -> str:
        """The whole working, with at most so many rows of each table."""
        notes = [f"note: {note}" for note in self.notes]
        head = [self.heading(), *notes, "", *(f"  {line}" for line in self.formula.splitlines()), ""]
        return "\n".join([*head, *self.work(rows), "", self.verdict()])

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """In a notebook."""
        return f"<pre>{escape(self.text())}</pre>"


class Term(NamedTuple):
    """One line of a sum: the element it comes from, its columns by name, and what it adds."""

    blob: str
    at: Index
    columns: dict[str, float]
    product: float


def indices(flat: Array, shape: Index) -> Array:
    """Flat numbers (T,) of elements of an array of this shape as indices (T, axes)."""
    return np.stack(np.unravel_index(flat, shape), axis=1) if shape else np.zeros((len(flat), 0), int)


@dataclass(frozen=True, eq=False)
class Terms(Sequence[Term]):
    """The terms of a sum, as arrays: which blob (T,) of `blobs`, places (T, axes), columns by name (T,), product (T,)."""

    blobs: tuple[str, ...]
    which: Array
    places: Array
    columns: Mapping[str, Array]
    product: Array
    title: str = "product"

    @classmethod
    def of(cls, blob: str, index: Array, columns: Mapping[str, Array], product: Array, title: str = "product") -> Terms:
        """Terms that all come from one blob; columns and product are taken as float64."""
        wide = {name: np.asarray(column, np.float64).reshape(-1) for name, column in columns.items()}
        flat = np.asarray(product, np.float64).reshape(-1)
        return cls((blob,), np.zeros(len(flat), int), np.asarray(index, int), wide, flat, title)

    def __len__(self) -> int:
        return len(self.product)

    @overload
    def __getitem__(self, i: int) -> Term: ...
    @overload
    def __getitem__(self, i: slice) -> list[Term]: ...
    def __getitem__(self, i: int | slice) -> Term | list[Term]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        index = tuple(int(v) for v in self.places[i])
        columns = {name: float(column[i]) for name, column in self.columns.items()}
        return Term(self.blobs[self.which[i]], index, columns, float(self.product[i]))

    def __iter__(self) -> Iterator[Term]:
        return (self[i] for i in range(len(self)))

    def total(self) -> float:
        """The sum, correctly rounded; as numbers that are not finite add up."""
        finite = np.isfinite(self.product).all()
        return math.fsum(self.product.tolist()) if finite else float(np.add.reduce(self.product))

    def size(self) -> float:
        """The sum of the absolute terms."""
        return float(np.abs(self.product).sum())

    def lines(self, rows: int) -> list[str]:
        """A table; of a long one the largest terms, in their order, and what the others add up to."""
        shown = np.arange(len(self))
        if len(self) > rows:
            shown = np.sort(np.argsort(-np.abs(self.product), kind="stable")[:rows])
        head = ["", *self.columns, self.title]
        body = [[place(t.blob, t.at), *map(number, t.columns.values()), number(t.product)] for t in map(self._at, shown)]
        if len(self) > rows:
            rest = np.delete(self.product, shown)
            blank = [""] * len(self.columns)
            body.append([f"{len(rest)} smaller ones not shown, together", *blank, number(rest.sum())])
        return table([head, *body])

    def _at(self, i: Any) -> Term:
        return self[int(i)]


@dataclass(frozen=True, kw_only=True, eq=False)
class SumExplanation(Explanation):
    """A number that is (the sum of terms + bias) / divisor. steps: what comes before the sum."""

    terms: Terms
    bias: float | None = None
    divisor: float = 1.0
    steps: tuple[str, ...] = ()

    def work(self, rows: int) -> list[str]:
        total, count = self.terms.total(), len(self.terms)
        lines = [*(f"  {step}" for step in self.steps), *[""] * bool(self.steps)]
        if count:
            lines += [*self.terms.lines(rows), ""]
        lines.append(f"  the sum of {count} term{'s' * (count != 1)} is {number(total)}")
        if self.bias is not None:
            lines.append(f"  with the bias {number(self.bias)} it is {number(total + self.bias)}")
        if self.divisor != 1:
            with np.errstate(all="ignore"):
                whole = np.float64(total + (self.bias or 0)) / self.divisor
            lines.append(f"  divided by {number(self.divisor)} it is {number(whole)}")
        return lines


@dataclass(frozen=True, kw_only=True, eq=False)
class MaxExplanation(Explanation):
    """The greatest of some elements. winner: which of the terms it is, None where none is greater than -FLT_MAX."""

    terms: Terms
    winner: int | None
    steps: tuple[str, ...] = ()

    def work(self, rows: int) -> list[str]:
        lines = [*(f"  {step}" for step in self.steps), *[""] * bool(self.steps), *self.terms.lines(rows), ""]
        if self.winner is None:
            return [*lines, f"  none is greater than -FLT_MAX, where the maximum starts: {number(self.value)}"]
        term = self.terms[self.winner]
        return [*lines, f"  the greatest is {number(term.product)}, at {place(term.blob, term.at)}"]


@dataclass(frozen=True, kw_only=True, eq=False)
class FunctionExplanation(Explanation):
    """A number worked out by steps from a few others; terms: those that the steps add up, if any."""

    steps: tuple[str, ...] = ()
    terms: Terms | None = None

    def work(self, rows: int) -> list[str]:
        listed = [*self.terms.lines(rows), ""] if self.terms is not None and len(self.terms) else []
        return [*listed, *(f"  {step}" for step in self.steps)]


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientExplanation(Explanation):
    """The gradient in one element of a bottom: which elements of the tops send it how much.

    terms: each top element that sends some, its dy, what dy is multiplied by, and the product. Their sum is the gradient.
    """

    terms: Terms
    steps: tuple[str, ...] = field(default=())

    def heading(self) -> str:
        where = place(self.blob, self.at)
        return f'{self.type} layer "{self.layer}", backward: the gradient in {where} is {number(self.value)}'

    def work(self, rows: int) -> list[str]:
        lines = [*(f"  {step}" for step in self.steps), *[""] * bool(self.steps)]
        count = len(self.terms)
        if not count:
            return [*lines, "  nothing sends it any: 0"]
        return [*lines, *self.terms.lines(rows), "", f"  {count} sent it {number(self.terms.total())} in all"]
