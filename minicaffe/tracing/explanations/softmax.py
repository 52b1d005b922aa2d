"""Softmax explained."""

from __future__ import annotations

import numpy as np

from minicaffe.layers.softmax import Softmax
from minicaffe.registry import explains, explains_gradient

from .case import Array, Case, sent
from .explanation import SHARE, UNDERFLOW, Explanation, FunctionExplanation
from .terms import Index, Terms
from .text import number


def _along(at: Index, axis: int, length: int) -> Array:
    """The index of every element of the line through `at` along axis: (length, axes)."""
    index = np.tile(np.array(at), (length, 1))
    index[:, axis] = np.arange(length)
    return index


@explains(Softmax)
def softmax(case: Case, at: Index) -> Explanation:
    return softmax_of(case, at, case.layer.param.softmax_param.axis % case.x.ndim)


def softmax_of(case: Case, at: Index, axis: int) -> Explanation:
    """The first bottom's softmax along axis; SoftmaxWithLoss's second top too."""
    index = _along(at, axis, case.x.shape[axis])
    x = case.x[tuple(index.T)]
    shifted = (x - x.max()).astype(np.float64)  # rounded as in the layer
    power = np.exp(shifted)
    terms = Terms.of(case.bottom_names[0], index, {"x": x, "x - max x": shifted}, power, "exp")
    total = terms.total()
    computed = float(power[at[axis]] / total)
    steps = (
        f"max x = {number(x.max())}; the sum of exp is {number(total)}",
        f"y = {number(power[at[axis]])} / {number(total)} = {number(computed)}",
    )
    formula = f"y = exp(x - max x) / the sum of exp(x - max x), along axis {axis}"
    named = case.named(at)
    tolerance = SHARE * computed + UNDERFLOW
    return FunctionExplanation(formula=formula, computed=computed, tolerance=tolerance, steps=steps, terms=terms, **named)


@explains_gradient(Softmax)
def softmax_gradient(case: Case, at: Index) -> Explanation:
    axis = case.layer.param.softmax_param.axis % case.x.ndim
    index = _along(at, axis, case.x.shape[axis])
    y = case.y[tuple(index.T)].astype(np.float64)
    dy = case.dy[0][tuple(index.T)].astype(np.float64)
    k = at[axis]
    terms = sent(case, index, dy, y[k] * ((np.arange(len(y)) == k) - y), "dy_k/dx")
    size = float(y[k] * (abs(dy[k]) + np.abs(dy * y).sum()))
    steps = (f"y, the probability here, is {number(y[k])}",)
    return case.gradient(at, "dx = the sum over k of dy_k * y * ((1 where k is here) - y_k)", terms, size=size, steps=steps)
