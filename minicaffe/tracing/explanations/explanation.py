"""The explanations of layers that take no rois: typed numbers whose str() shows the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from minicaffe.errors import written_out

from .terms import Index, Terms
from .text import ROWS, exact, number, place, same

SHARE = 1e-6
"""How far a sum may be from the layer's, as a fraction of the sum of the absolute terms: rounding in another order."""

UNDERFLOW = 2.0**-126
"""The smallest normal float32: below it digits are lost."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """One number of a layer: `value` is the layer's result, `computed` the result of the arithmetic shown here.

    blob, at: the element. tolerance: 0 where both must be equal bit for bit (geometry, maxima, copies), else SHARE of the
    absolute terms. notes: generated inputs and the like. str() is the whole text; text(rows) has longer tables.
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
        """Whether the arithmetic gives the layer's number."""
        return same(self.value, self.computed, self.tolerance)

    def heading(self) -> str:
        return f'{self.type} layer "{self.layer}": {place(self.blob, self.at)} = {number(self.value)}'

    def work(self, rows: int) -> list[str]:
        """The lines between the formula and the result, with at most `rows` rows of each table."""
        return []

    def verdict(self) -> str:
        both = f"computed here {exact(self.computed)}, by the layer {exact(self.value)}"
        if self.computed == self.value or not self.tolerance:  # a tolerance of 0 claims equality to the last bit
            return f"{both}: {'equal, bit for bit' if self.agrees else 'THEY DIFFER'}"
        apart = f"{abs(self.computed - self.value):.2g} apart"
        bound = f"{self.tolerance:.2g}, {SHARE:g} of the absolute terms"
        return (
            f"{both}: {apart}, within rounding ({bound})" if self.agrees else f"{both}: THEY DIFFER, {apart}, more than {bound}"
        )

    def text(self, rows: int = ROWS) -> str:
        """The whole text, with at most `rows` rows of each table."""
        notes = [f"note: {note}" for note in self.notes]
        head = [self.heading(), *notes, "", *indented(self.formula.splitlines())]
        return written_out("\n".join([*head, *self.work(rows), "", self.verdict()]))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text())}</pre>"


def indented(lines: Sequence[str]) -> list[str]:
    """Indented lines followed by an empty one; [] for no lines."""
    return [*(f"  {line}" for line in lines), ""] if lines else []


def listed(terms: Terms | None, rows: int) -> list[str]:
    """A table of terms followed by an empty line; [] for no terms."""
    return [*terms.lines(rows), ""] if terms else []


@dataclass(frozen=True, kw_only=True, eq=False)
class SumExplanation(Explanation):
    """(the sum of terms + bias) / divisor. steps: what precedes the sum."""

    terms: Terms
    bias: float | None = None
    divisor: float = 1.0
    steps: tuple[str, ...] = ()

    def work(self, rows: int) -> list[str]:
        total, count = self.terms.total(), len(self.terms)
        lines = [*indented(self.steps), *listed(self.terms, rows)]
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
    """The greatest of the terms. winner: its index, None if none is greater than -FLT_MAX."""

    terms: Terms
    winner: int | None
    steps: tuple[str, ...] = ()

    def work(self, rows: int) -> list[str]:
        lines = [*indented(self.steps), *self.terms.lines(rows), ""]
        if self.winner is None:
            return [*lines, f"  none is greater than -FLT_MAX, where the maximum starts: {number(self.value)}"]
        term = self.terms[self.winner]
        return [*lines, f"  the greatest is {number(term.product)}, at {place(term.blob, term.at)}"]


@dataclass(frozen=True, kw_only=True, eq=False)
class FunctionExplanation(Explanation):
    """A number computed in steps. terms: those that the steps add up, if any."""

    steps: tuple[str, ...] = ()
    terms: Terms | None = None

    def work(self, rows: int) -> list[str]:
        return [*listed(self.terms, rows), *(f"  {step}" for step in self.steps)]


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientExplanation(Explanation):
    """The gradient in one element of a bottom: the sum of terms.

    terms: each top element that depends on it, its dy, the factor of dy, and the product.
    """

    terms: Terms
    steps: tuple[str, ...] = ()

    def heading(self) -> str:
        where = place(self.blob, self.at)
        return f'{self.type} layer "{self.layer}", backward: the gradient in {where} is {number(self.value)}'

    def work(self, rows: int) -> list[str]:
        count = len(self.terms)
        if not count:
            return [*indented(self.steps), "  no element of a top depends on it: 0"]
        what = f"the sum of {count} products" if count != 1 else "the only product"
        return [*indented(self.steps), *listed(self.terms, rows), f"  {what} is {number(self.terms.total())}"]
