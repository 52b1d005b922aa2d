"""A layer's run, kept for explaining it, and its explanations: typed numbers whose str() shows the arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Generic, TypeVar

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import Error, written_out
from minicaffe.layer import Layer
from minicaffe.layers.elementwise.channels import by_channel

from .terms import ROWS, Index, Terms, exact, indices, number, place, same

SHARE = 1e-6
"""How far a sum may be from the layer's, as a fraction of the sum of the absolute terms: rounding in another order."""

UNDERFLOW = 2.0**-126
"""The smallest normal float32: below it digits are lost."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """An explained number of a layer: `value` is the layer's result, `computed` the result of the arithmetic shown here.

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
        """True if the arithmetic gives the layer's number, within the tolerance."""
        return same(self.value, self.computed, self.tolerance)

    def heading(self) -> str:
        return f'{self.type} layer "{self.layer}": {place(self.blob, self.at)} = {number(self.value)}'

    def work(self, rows: int) -> list[str]:
        """Return the lines between the formula and the result, with at most `rows` rows of each table."""
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
        """Return the whole text, with at most `rows` rows of each table."""
        notes = [f"note: {note}" for note in self.notes]
        head = [self.heading(), *notes, "", *indented(self.formula.splitlines())]
        return written_out("\n".join([*head, *self.work(rows), "", self.verdict()]))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text())}</pre>"


def indented(lines: Sequence[str]) -> list[str]:
    """Return the lines indented, followed by an empty line; [] for no lines."""
    return [*(f"  {line}" for line in lines), ""] if lines else []


def listed(terms: Terms | None, rows: int) -> list[str]:
    """Return a table of the terms, followed by an empty line; [] for no terms."""
    return [*terms.lines(rows), ""] if terms else []


@dataclass(frozen=True, kw_only=True, eq=False)
class SumExplanation(Explanation):
    """A number (the sum of terms + bias) / divisor. steps: what precedes the sum."""

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
    """A number that is the greatest of the terms. winner: its index; None if none is greater than -FLT_MAX."""

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
    """A number computed in steps. terms: the terms that the steps sum, if any."""

    steps: tuple[str, ...] = ()
    terms: Terms | None = None

    def work(self, rows: int) -> list[str]:
        return [*listed(self.terms, rows), *(f"  {step}" for step in self.steps)]


@dataclass(frozen=True, kw_only=True, eq=False)
class GradientExplanation(Explanation):
    """The gradient in one element of a bottom or a learnable blob: the sum of terms.

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


L_co = TypeVar("L_co", bound=Layer, covariant=True)


@dataclass(frozen=True)
class Case(Generic[L_co]):
    """Copies of a layer's bottoms before it ran and its tops after; in backward also dy and dx, the tops' and bottoms' diffs.

    number: of the top to explain, in backward of the bottom, or of a learnable blob, whose diff is dw.
    """

    layer: L_co
    bottom_names: Sequence[str]
    top_names: Sequence[str]
    bottoms: Sequence[Array]
    tops: Sequence[Array]
    dy: Sequence[Array] = ()
    dx: Sequence[Array] = ()
    number: int = 0
    notes: tuple[str, ...] = ()
    dw: Array | None = None

    @property
    def x(self) -> Array:
        """The first bottom."""
        return self.bottoms[0]

    @property
    def y(self) -> Array:
        """The first top."""
        return self.tops[0]

    def named(self, at: Index, backward: bool = False) -> dict[str, Any]:
        """Return an explanation's fields for the element's name and the layer's value; if dw is given, an element of dw."""
        if self.dw is not None:
            return self._of(f"{self.layer.name}.{self.number}", self.dw, at)
        arrays, names = (self.dx, self.bottom_names) if backward else (self.tops, self.top_names)
        return self._of(names[self.number], arrays[self.number], at)

    def _of(self, blob: str, values: Array, at: Index) -> dict[str, Any]:
        return {
            "layer": self.layer.name,
            "type": self.layer.type,
            "blob": blob,
            "at": at,
            "value": float(values[at]),
            "notes": self.notes,
        }

    def function(
        self, at: Index, formula: str, computed: float, tolerance: float = 0.0, *steps: str, terms: Terms | None = None
    ) -> FunctionExplanation:
        """Return a FunctionExplanation of top[at]."""
        return FunctionExplanation(
            formula=formula, computed=computed, tolerance=tolerance, steps=steps, terms=terms, **self.named(at)
        )

    def sum(self, at: Index, formula: str, terms: Terms, **more: Any) -> SumExplanation:
        """Return a SumExplanation of top[at], computed from the terms, `bias` and `divisor`."""
        bias, divisor = more.get("bias"), more.get("divisor", 1.0)
        with np.errstate(all="ignore"):
            # np.float64: a divisor of 0 gives inf or NaN, as in the layer
            computed = float(np.float64(terms.total() + (bias or 0)) / divisor)
            tolerance = float(SHARE * np.float64(terms.size() + abs(bias or 0)) / abs(divisor))
        return SumExplanation(formula=formula, terms=terms, computed=computed, tolerance=tolerance, **more, **self.named(at))

    def gradient(
        self, at: Index, formula: str, terms: Terms, *, steps: tuple[str, ...] = (), size: float | None = None
    ) -> GradientExplanation:
        """Return a GradientExplanation of bottom[at], or if dw is given, of dw[at].

        size: the sum of the absolute terms, for products that are differences.
        """
        size = terms.size() if size is None else size
        tolerance = SHARE * size + UNDERFLOW * (size > 0)  # without terms dx must be exactly 0
        return GradientExplanation(
            formula=formula,
            terms=terms,
            computed=terms.total(),
            tolerance=tolerance,
            steps=steps,
            **self.named(at, backward=True),
        )

    def error(self, message: str) -> Error:
        """Return an Error that names the layer."""
        return Error(f'{self.layer.type} layer "{self.layer.name}": {message}')


def dy_terms(case: Case[Layer], index: Array, factor: Array, title: str = "factor", top: int = 0) -> Terms:
    """Return the gradient terms of a top's elements: dy * factor. index: (T, axes); factor: (T,)."""
    dy, factor = (np.asarray(values, np.float64).reshape(-1) for values in (case.dy[top][tuple(index.T)], factor))
    # An infinite dy or x is explained too.
    with np.errstate(invalid="ignore", over="ignore"):
        return Terms.of(case.top_names[top], index, {"dy": dy, title: factor}, dy * factor)


def dy_term(case: Case[Layer], at: Index, factor: float, title: str = "factor", top: int = 0) -> Terms:
    """Return the single gradient term of an elementwise layer."""
    return dy_terms(case, np.array([at], int), np.array([factor]), title, top)


def summed(
    case: Case[Layer], at: Index, flat: Array, factor: Array | None, formula: str, title: str = "x", *steps: str
) -> GradientExplanation:
    """Explain a sum of dy * factor (T,), or of dy without a factor, over the first top's elements at the indices flat (T,)."""
    index = indices(flat, case.y.shape)
    if factor is None:
        terms = Terms.of(case.top_names[0], index, {}, case.dy[0].reshape(-1)[flat], "dy")
    else:
        terms = dy_terms(case, index, factor, title)
    return case.gradient(at, formula, terms, steps=steps)


def channel_of(shape: Index, channel: int) -> Array:
    """Return the flat indices (T,) of a channel of a blob (N, C, ...)."""
    flat: Array = by_channel(np.arange(int(np.prod(shape))).reshape(shape))[:, channel].reshape(-1)
    return flat
