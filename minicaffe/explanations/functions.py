"""Layers that work element by element explained: y = f(x), dx = dy f'(x)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minicaffe.layers.sigmoid import sigmoid
from minicaffe.mode import TRAIN

from .case import Case, one
from .explanation import SHARE, Explanation, FunctionExplanation, Index
from .text import number, signed

Template = Callable[[Any, float], tuple[str, str]]
"""(layer, x) -> the layer's formula, and the formula with its numbers."""


def _relu(layer: Any, x: float) -> tuple[str, str]:
    slope = layer.negative_slope
    return "y = x where x > 0, else negative_slope * x", number(x) if x > 0 else f"{number(slope)} * {signed(x)}"


def _prelu(layer: Any, x: float) -> tuple[str, str]:
    return "y = x where x > 0, else slope * x, a learnt slope for each channel", number(x) if x > 0 else f"slope * {signed(x)}"


def _power(layer: Any, x: float) -> tuple[str, str]:
    p = layer.param.power_param
    text = f"({number(p.shift)} + {number(p.scale)} * {signed(x)}) ^ {number(p.power)}"
    return "y = (shift + scale * x) ^ power", text


def _exp(layer: Any, x: float) -> tuple[str, str]:
    base = layer.param.exp_param.base
    inner = f"({number(layer.param.exp_param.shift)} + {number(layer.param.exp_param.scale)} * {signed(x)})"
    return "y = base ^ (shift + scale * x)", f"{'e' if base == -1 else number(base)} ^ {inner}"


def _log(layer: Any, x: float) -> tuple[str, str]:
    p = layer.param.log_param
    under = "" if p.base == -1 else f" / ln({number(p.base)})"
    return "y = ln(shift + scale * x) / ln(base)", f"ln({number(p.shift)} + {number(p.scale)} * {signed(x)}){under}"


def _elu(layer: Any, x: float) -> tuple[str, str]:
    alpha = number(layer.param.elu_param.alpha)
    return "y = x where x > 0, else alpha * (exp(x) - 1)", number(x) if x > 0 else f"{alpha} * (exp({number(x)}) - 1)"


def _clip(layer: Any, x: float) -> tuple[str, str]:
    p = layer.param.clip_param
    return "y = min(max(x, min), max)", f"min(max({number(x)}, {number(p.min)}), {number(p.max)})"


def _swish(layer: Any, x: float) -> tuple[str, str]:
    beta = number(layer.param.swish_param.beta)
    return "y = x / (1 + exp(-beta * x))", f"{number(x)} / (1 + exp(-{beta} * {signed(x)}))"


def _threshold(layer: Any, x: float) -> tuple[str, str]:
    return "y = 1 where x > threshold, else 0", f"{number(x)} > {number(layer.param.threshold_param.threshold)}"


TEMPLATES: dict[str, Template] = {
    "AbsVal": lambda _, x: ("y = |x|", f"|{number(x)}|"),
    "BNLL": lambda _, x: ("y = ln(1 + exp(x))", f"ln(1 + exp({number(x)}))"),
    "Clip": _clip,
    "ELU": _elu,
    "Exp": _exp,
    "Log": _log,
    "PReLU": _prelu,
    "Power": _power,
    "ReLU": _relu,
    "Sigmoid": lambda _, x: ("y = 1 / (1 + exp(-x))", f"1 / (1 + exp({number(-x)}))"),
    "Swish": _swish,
    "TanH": lambda _, x: ("y = tanh(x)", f"tanh({number(x)})"),
    "Threshold": _threshold,
}


def function(case: Case, at: Index) -> Explanation:
    layer, x = case.layer, float(case.x[at])
    formula, text = TEMPLATES[layer.type](layer, x)
    computed = float(_value(case, at))
    steps = [f"x = {number(x)}", f"y = {text} = {number(computed)}"]
    if layer.type == "PReLU":
        steps.insert(1, f"slope = {number(_slope_of_prelu(case, at))}")
    tolerance = SHARE * max(abs(computed), _spread(layer, x))
    named = case.named(at)
    return FunctionExplanation(formula=formula, computed=computed, tolerance=tolerance, steps=tuple(steps), **named)


def function_gradient(case: Case, at: Index) -> Explanation:
    layer, x = case.layer, float(case.x[at])
    formula, _ = TEMPLATES[layer.type](layer, x)
    factor = _slope(case, at)
    steps = (f"{formula}; here x = {number(x)} and f'(x) = {number(factor)}",)
    size = abs(float(case.dy[0][at])) * max(abs(factor), 1.0)
    return case.gradient(at, "dx = dy * f'(x)", one(case, at, factor, "f'(x)"), steps=steps, size=size)


def _spread(layer: Any, x: float) -> float:
    """How large the terms inside a function are: the rounding of their sum is seen in its value."""
    p = layer.param
    if layer.type == "Log":
        inner = abs(p.log_param.shift) + abs(p.log_param.scale * x)
        return float(abs(layer.factor) * inner / max(abs(p.log_param.shift + p.log_param.scale * x), 1e-30))
    if layer.type == "Power" and p.power_param.power * p.power_param.scale:
        inner = abs(p.power_param.shift) + abs(p.power_param.scale * x)
        base = abs(p.power_param.shift + p.power_param.scale * x)
        return float(abs(p.power_param.power) * inner * (base ** (p.power_param.power - 1) if base else 0.0))
    if layer.type == "Exp":
        size = abs(layer.scale * x) + abs(layer.shift)
        return float(size) * math.exp(min(layer.scale * x + layer.shift, 700.0))
    return 1.0 if layer.type in ("Sigmoid", "BNLL", "Swish") else 0.0


def _slope_of_prelu(case: Case, at: Index) -> float:
    slopes = case.layer.blobs[0].read_data().reshape(-1)
    return float(slopes[at[1] if slopes.size > 1 else 0])


def _value(case: Case, at: Index) -> Any:
    """f(x) of one element in double precision; a Neuron's own function."""
    layer, x = case.layer, np.array([case.x[at]], np.float64)
    if layer.type == "ReLU":
        return x[0] if not x[0] <= 0 else layer.negative_slope * x[0]
    if layer.type == "PReLU":
        return x[0] if not x[0] <= 0 else _slope_of_prelu(case, at) * x[0]
    if layer.type == "Sigmoid":
        return sigmoid(x)[0]
    y = np.empty_like(x)
    with np.errstate(all="ignore"):
        layer.value(x, y)
    return y[0]


def _slope(case: Case, at: Index) -> float:
    """f'(x) of one element."""
    layer, x = case.layer, np.array([case.x[at]], np.float64)
    if layer.type in ("ReLU", "PReLU"):
        negative = layer.negative_slope if layer.type == "ReLU" else _slope_of_prelu(case, at)
        return 1.0 if x[0] > 0 else float(negative)
    if layer.type == "Sigmoid":
        y = float(sigmoid(x)[0])
        return y * (1 - y)
    with np.errstate(all="ignore"):
        return float(layer.slope(x)[0])


# Dropout.


def _dropout_factor(case: Case, at: Index) -> tuple[float, str]:
    layer = case.layer
    if layer.phase == TRAIN:
        kept = float(layer._mask.read_data()[at])
        return kept * layer._factor, f"in TRAIN: mask {number(kept)} * {number(layer._factor)}"
    return layer._factor, f"in TEST: {number(layer._factor)}"


def dropout(case: Case, at: Index) -> Explanation:
    (factor, text), x = _dropout_factor(case, at), float(case.x[at])
    y = x * factor
    steps = (f"factor {text}", f"y = {number(x)} * {number(factor)} = {number(y)}")
    named = case.named(at)
    return FunctionExplanation(formula="y = x * factor", computed=y, tolerance=SHARE * abs(y), steps=steps, **named)


def dropout_gradient(case: Case, at: Index) -> Explanation:
    factor, text = _dropout_factor(case, at)
    return case.gradient(at, "dx = dy * factor", one(case, at, factor, "factor"), steps=(f"factor {text}",))
