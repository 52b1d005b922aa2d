"""One run of one layer, kept for explaining it: its bottoms, its tops, and in backward the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import Error
from minicaffe.layer import Layer

from .explanation import SHARE, UNDERFLOW, FunctionExplanation, GradientExplanation, SumExplanation
from .terms import Index, Terms

L_co = TypeVar("L_co", bound=Layer, covariant=True)


@dataclass(frozen=True)
class Case(Generic[L_co]):
    """Copies of a layer's bottoms before it ran and its tops after; dy, dx: the tops' and bottoms' diffs, in backward.

    number: which top is explained, or in backward which bottom, or which learnable blob: then dw is that blob's diff.
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
        """The fields of an explanation that name the element, where dw is given of dw, and give the layer's value."""
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
        """A FunctionExplanation of top[at]."""
        return FunctionExplanation(
            formula=formula, computed=computed, tolerance=tolerance, steps=steps, terms=terms, **self.named(at)
        )

    def sum(self, at: Index, formula: str, terms: Terms, **more: Any) -> SumExplanation:
        """A SumExplanation of top[at], computed from the terms, `bias` and `divisor`."""
        bias, divisor = more.get("bias"), more.get("divisor", 1.0)
        with np.errstate(all="ignore"):
            # np.float64: a divisor of 0 gives inf or NaN, as in the layer
            computed = float(np.float64(terms.total() + (bias or 0)) / divisor)
            tolerance = float(SHARE * np.float64(terms.size() + abs(bias or 0)) / abs(divisor))
        return SumExplanation(formula=formula, terms=terms, computed=computed, tolerance=tolerance, **more, **self.named(at))

    def gradient(
        self, at: Index, formula: str, terms: Terms, *, steps: tuple[str, ...] = (), size: float | None = None
    ) -> GradientExplanation:
        """A GradientExplanation of bottom[at], or where dw is given of dw[at].

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
        """An Error that names the layer."""
        return Error(f'{self.layer.type} layer "{self.layer.name}": {message}')


def sent(case: Case[Layer], index: Array, dy: Array, factor: Array, title: str = "factor", top: int = 0) -> Terms:
    """Gradient terms: dy times factor (T,) from the elements index (T, axes) of a top."""
    dy, factor = np.asarray(dy, np.float64).reshape(-1), np.asarray(factor, np.float64).reshape(-1)
    # A dy or x of infinity is explained too.
    with np.errstate(invalid="ignore", over="ignore"):
        return Terms.of(case.top_names[top], index, {"dy": dy, title: factor}, dy * factor)


def one(case: Case[Layer], at: Index, factor: float, title: str = "factor", top: int = 0) -> Terms:
    """The one gradient term of an elementwise layer."""
    return sent(case, np.array([at]), np.array([case.dy[top][at]]), np.array([factor]), title, top)
