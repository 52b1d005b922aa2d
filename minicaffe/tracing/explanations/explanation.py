"""The explanations of layers that take no rois: typed numbers that print themselves as worked on paper."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

import numpy as np

from minicaffe.errors import written_out

from .terms import Index, Terms
from .text import ROWS, exact, number, place, same

SHARE = 1e-6
"""How far a sum may be from the layer's, as a share of the sum of the absolute terms: rounding, in another order."""

UNDERFLOW = 2.0**-126
"""The smallest normal float32: below it digits are lost."""


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
        return written_out("\n".join([*head, *self.work(rows), "", self.verdict()]))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """In a notebook."""
        return f"<pre>{escape(self.text())}</pre>"


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
