"""Layers that work element by element explained: y = f(x), dx = dy f'(x)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minicaffe.layers.bnll import BNLL
from minicaffe.layers.dropout import Dropout
from minicaffe.layers.exp import Exp
from minicaffe.layers.log import Log
from minicaffe.layers.power import Power
from minicaffe.layers.prelu import PReLU
from minicaffe.layers.relu import ReLU
from minicaffe.layers.sigmoid import Sigmoid, sigmoid
from minicaffe.layers.swish import Swish
from minicaffe.mode import TRAIN
from minicaffe.registry import explains, explains_gradient

from .case import Case, one
from .explanation import SHARE, Explanation, FunctionExplanation
from .formulas import TEMPLATES
from .terms import Index
from .text import number


@explains(*TEMPLATES)
def function(case: Case, at: Index) -> Explanation:
    layer, x = case.layer, float(case.x[at])
    formula, text = TEMPLATES[type(layer)](layer, x)
    with np.errstate(over="ignore"):
        computed = float(case.x.dtype.type(_value(case, at)))
    steps = [f"x = {number(x)}", f"y = {text} = {number(computed)}"]
    if isinstance(layer, PReLU):
        steps.insert(1, f"slope = {number(_slope_of_prelu(case, at))}")
    tolerance = SHARE * max(abs(computed), _spread(layer, x))
    named = case.named(at)
    return FunctionExplanation(formula=formula, computed=computed, tolerance=tolerance, steps=tuple(steps), **named)


@explains_gradient(*TEMPLATES)
def function_gradient(case: Case, at: Index) -> Explanation:
    layer, x = case.layer, float(case.x[at])
    formula, _ = TEMPLATES[type(layer)](layer, x)
    factor = _slope(case, at)
    steps = (f"{formula}; here x = {number(x)} and f'(x) = {number(factor)}",)
    spread = abs(layer.scale) * _spread(layer, x) if isinstance(layer, Exp) else 1.0
    size = abs(float(case.dy[0][at])) * max(abs(factor), spread)
    return case.gradient(at, "dx = dy * f'(x)", one(case, at, factor, "f'(x)"), steps=steps, size=size)


def _spread(layer: Any, x: float) -> float:
    """How large the terms inside a function are: the rounding of their sum is seen in its value."""
    p = layer.param
    if isinstance(layer, Log):
        inner = abs(p.log_param.shift) + abs(p.log_param.scale * x)
        return float(abs(layer.factor) * inner / max(abs(p.log_param.shift + p.log_param.scale * x), 1e-30))
    if isinstance(layer, Power) and p.power_param.power * p.power_param.scale:
        inner = abs(p.power_param.shift) + abs(p.power_param.scale * x)
        base = abs(p.power_param.shift + p.power_param.scale * x)
        return float(abs(p.power_param.power) * inner * (base ** (p.power_param.power - 1) if base else 0.0))
    if isinstance(layer, Exp):
        size = abs(layer.scale * x) + abs(layer.shift)
        return float(size) * math.exp(min(layer.scale * x + layer.shift, 700.0))
    return 1.0 if isinstance(layer, Sigmoid | BNLL | Swish) else 0.0


def _slope_of_prelu(case: Case, at: Index) -> float:
    slopes = case.layer.blobs[0].read_data().reshape(-1)
    return float(slopes[at[1] if slopes.size > 1 else 0])


def _value(case: Case, at: Index) -> Any:
    """f(x) of one element in double precision; a Neuron's own function."""
    layer, x = case.layer, np.array([case.x[at]], np.float64)
    if isinstance(layer, ReLU):
        return x[0] if not x[0] <= 0 else layer.negative_slope * x[0]
    if isinstance(layer, PReLU):
        return x[0] if not x[0] <= 0 else _slope_of_prelu(case, at) * x[0]
    if isinstance(layer, Sigmoid):
        return sigmoid(x)[0]
    y = np.empty_like(x)
    with np.errstate(all="ignore"):
        layer.value(x, y)
    return y[0]


def _slope(case: Case, at: Index) -> float:
    """f'(x) of one element, in the layer's type."""
    layer, x = case.layer, np.array([case.x[at]], case.x.dtype)
    if isinstance(layer, ReLU | PReLU):
        negative = layer.negative_slope if isinstance(layer, ReLU) else _slope_of_prelu(case, at)
        return 1.0 if x[0] > 0 else float(negative)
    if isinstance(layer, Sigmoid):
        y = float(sigmoid(x)[0])
        return y * (1 - y)
    with np.errstate(all="ignore"):
        return float(layer.slope(x)[0])


def _dropout_factor(case: Case, at: Index) -> tuple[float, str]:
    layer = case.layer
    if layer.phase == TRAIN:
        kept = float(layer.mask.read_data()[at])
        return kept * layer.factor, f"in TRAIN: mask {number(kept)} * {number(layer.factor)}"
    return layer.factor, f"in TEST: {number(layer.factor)}"


@explains(Dropout)
def dropout(case: Case, at: Index) -> Explanation:
    (factor, text), x = _dropout_factor(case, at), float(case.x[at])
    y = x * factor
    steps = (f"factor {text}", f"y = {number(x)} * {number(factor)} = {number(y)}")
    named = case.named(at)
    return FunctionExplanation(formula="y = x * factor", computed=y, tolerance=SHARE * abs(y), steps=steps, **named)


@explains_gradient(Dropout)
def dropout_gradient(case: Case, at: Index) -> Explanation:
    factor, text = _dropout_factor(case, at)
    return case.gradient(at, "dx = dy * factor", one(case, at, factor, "factor"), steps=(f"factor {text}",))
