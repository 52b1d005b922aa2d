"""LRN explained."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicaffe.layers.lrn import LRN
from minicaffe.registry import explains, explains_gradient

from .case import Array, Case, sent
from .explanation import SHARE, Explanation, FunctionExplanation
from .terms import Index, Terms
from .text import number


def _neighbours(layer: Any, shape: Index, at: Index) -> Array:
    """The index (K, 4) of every element that the sum around `at` goes over."""
    half = layer.size // 2
    spans = [range(at[0], at[0] + 1)]
    for axis in (1, 2, 3):
        near = axis == 1 if len(layer.axes) == 1 else axis > 1
        reach = half if near else 0
        spans.append(range(max(at[axis] - reach, 0), min(at[axis] + reach + 1, shape[axis])))
    return np.stack(np.meshgrid(*spans, indexing="ij"), axis=-1).reshape(-1, 4)


def _scale(layer: Any, x: Array, at: Index) -> float:
    """k + alpha * the sum of x^2 around `at`; layer.alpha has the division by the neighbours in it."""
    around = x[tuple(_neighbours(layer, x.shape, at).T)].astype(np.float64)
    return float(layer.k + layer.alpha * np.square(around).sum())


@explains(LRN)
def lrn(case: Case, at: Index) -> Explanation:
    layer, x = case.layer, float(case.x[at])
    index = _neighbours(layer, case.x.shape, at)
    around = case.x[tuple(index.T)].astype(np.float64)
    terms = Terms.of(case.bottom_names[0], index, {"x": around}, np.square(around), "x^2")
    scale = layer.k + layer.alpha * terms.total()
    computed = x / scale**layer.beta
    what = f"{layer.size} channels" if len(layer.axes) == 1 else f"{layer.size} x {layer.size} pixels"
    steps = (
        f"sum of x^2 over up to {what} around: {number(terms.total())}",
        f"scale = {number(layer.k)} + {number(layer.alpha)} * {number(terms.total())} = {number(scale)}",
        f"y = {number(x)} / {number(scale)} ^ {number(layer.beta)} = {number(computed)}",
    )
    formula = "y = x / scale ^ beta, scale = k + alpha / (how many neighbours) * the sum of their x^2"
    named = case.named(at)
    tolerance = SHARE * abs(computed) * max(layer.beta, 1)
    return FunctionExplanation(formula=formula, computed=computed, tolerance=tolerance, steps=steps, terms=terms, **named)


@explains_gradient(LRN)
def lrn_gradient(case: Case, at: Index) -> Explanation:
    layer, here = case.layer, float(case.x[at])
    index = _neighbours(layer, case.x.shape, at)
    factor, size = np.zeros(len(index)), 0.0
    for i, j in enumerate(map(tuple, index.tolist())):
        scale = _scale(layer, case.x, j)
        direct = scale**-layer.beta if j == at else 0.0
        around = 2 * layer.alpha * layer.beta * here * float(case.x[j]) * scale ** (-layer.beta - 1)
        factor[i] = direct - around
        size += abs(float(case.dy[0][j])) * (direct + abs(around))
    terms = sent(case, index, case.dy[0][tuple(index.T)], factor, "dy_j/dx")
    formula = (
        "dx = the sum over the neighbours j of dy_j * dy_j/dx\n"
        "dy_j/dx = (scale^-beta where j is here) - 2 alpha beta x x_j scale_j^(-beta - 1)"
    )
    return case.gradient(at, formula, terms, size=size * max(layer.beta, 1))
