"""Elementwise layers explained: y = f(x), dx = dy f'(x)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minicaffe.layer import Layer
from minicaffe.layers.neuron.dropout import Dropout
from minicaffe.layers.neuron.functions import (
    BNLL,
    ELU,
    AbsVal,
    Clip,
    Exp,
    HardSigmoid,
    Log,
    Power,
    ReLU6,
    Sigmoid,
    Swish,
    TanH,
    Threshold,
    sigmoid,
)
from minicaffe.layers.neuron.neuron import Neuron
from minicaffe.layers.neuron.relu import PReLU, ReLU
from minicaffe.mode import TRAIN
from minicaffe.registry import explains, explains_gradient

from .case import Case, one
from .explanation import SHARE, Explanation
from .terms import Index
from .text import number, signed

# PReLU, ReLU and Sigmoid are no Neurons: they lack value and slope.
Elementwise = Neuron | PReLU | ReLU | Sigmoid


def _line(p: Any, x: float) -> str:
    return f"{number(p.shift)} + {number(p.scale)} * {signed(x)}"


def _exp(p: Any, x: float) -> str:
    return f"{'e' if p.base == -1 else number(p.base)} ^ ({_line(p, x)})"


def _log(p: Any, x: float) -> str:
    return f"ln({_line(p, x)})" + ("" if p.base == -1 else f" / ln({number(p.base)})")


FORMULAS: dict[type[Layer], tuple[str, Callable[[Any, float], str]]] = {
    AbsVal: ("|x|", lambda _, x: f"|{number(x)}|"),
    BNLL: ("ln(1 + exp(x))", lambda _, x: f"ln(1 + exp({number(x)}))"),
    Clip: ("min(max(x, min), max)", lambda p, x: f"min(max({number(x)}, {number(p.min)}), {number(p.max)})"),
    ELU: (
        "x where x > 0, else alpha * (exp(x) - 1)",
        lambda p, x: number(x) if x > 0 else f"{number(p.alpha)} * (exp({number(x)}) - 1)",
    ),
    Exp: ("base ^ (shift + scale * x)", _exp),
    HardSigmoid: ("min(1, max(0, 0.2 * x + 0.5))", lambda _, x: f"min(1, max(0, 0.2 * {signed(x)} + 0.5))"),
    Log: ("ln(shift + scale * x) / ln(base)", _log),
    PReLU: (
        "x where x > 0, else slope * x, a learnt slope for each channel",
        lambda _, x: number(x) if x > 0 else f"slope * {signed(x)}",
    ),
    Power: ("(shift + scale * x) ^ power", lambda p, x: f"({_line(p, x)}) ^ {number(p.power)}"),
    ReLU: (
        "x where x > 0, else negative_slope * x",
        lambda p, x: number(x) if x > 0 else f"{number(p.negative_slope)} * {signed(x)}",
    ),
    ReLU6: (
        "x where x > 0, else negative_slope * x; at most 6",
        lambda p, x: f"min({number(x) if x > 0 else f'{number(p.negative_slope)} * {signed(x)}'}, 6)",
    ),
    Sigmoid: ("1 / (1 + exp(-x))", lambda _, x: f"1 / (1 + exp({number(-x)}))"),
    Swish: ("x / (1 + exp(-beta * x))", lambda p, x: f"{number(x)} / (1 + exp(-{number(p.beta)} * {signed(x)}))"),
    TanH: ("tanh(x)", lambda _, x: f"tanh({number(x)})"),
    Threshold: ("1 where x > threshold, else 0", lambda p, x: f"{number(x)} > {number(p.threshold)}"),
}
"""The formula of y, and a function of the layer's own parameter block and x that gives it with numbers."""


def _parameters(layer: Layer) -> Any:
    return getattr(layer.param, layer.param_block[0]) if layer.param_block else None


@explains(*FORMULAS)
def function(case: Case[Elementwise], at: Index) -> Explanation:
    layer, x = case.layer, float(case.x[at])
    formula, text = FORMULAS[type(layer)]
    with np.errstate(over="ignore"):
        computed = float(case.x.dtype.type(_value(case, at)))  # rounded to the layer's type, so that overflow gives its inf
    slope = [f"slope = {number(_slope_of_prelu(layer, at))}"] if isinstance(layer, PReLU) else []
    steps = (f"x = {number(x)}", *slope, f"y = {text(_parameters(layer), x)} = {number(computed)}")
    return case.function(at, f"y = {formula}", computed, SHARE * max(abs(computed), _size_inside(layer, x)), *steps)


@explains_gradient(*FORMULAS)
def function_gradient(case: Case[Elementwise], at: Index) -> Explanation:
    layer, x = case.layer, float(case.x[at])
    factor = _slope(case, at)
    steps = (f"y = {FORMULAS[type(layer)][0]}; here x = {number(x)} and f'(x) = {number(factor)}",)
    # 1: f' may be a difference of values near 1, as 1 - tanh(x)^2
    least = abs(layer.scale) * _size_inside(layer, x) if isinstance(layer, Exp) else 1.0
    size = abs(float(case.dy[0][at])) * max(abs(factor), least)
    return case.gradient(at, "dx = dy * f'(x)", one(case, at, factor, "f'(x)"), steps=steps, size=size)


def _size_inside(layer: Elementwise, x: float) -> float:
    """How large the terms inside a function are: the rounding of their sum shows in its value."""
    p = _parameters(layer)
    if isinstance(layer, Log | Power):
        inner, base = abs(p.shift) + abs(p.scale * x), abs(p.shift + p.scale * x)
        if isinstance(layer, Log):
            return float(abs(layer.factor) * inner / max(base, 1e-30))  # |d ln(u)| = |du / u|
        if p.power * p.scale:
            return float(abs(p.power) * inner * (base ** (p.power - 1) if base else 0.0))  # |d u^n| = |n u^(n - 1) du|
    if isinstance(layer, Exp):
        size = abs(layer.scale * x) + abs(layer.shift)
        return float(size) * math.exp(min(layer.scale * x + layer.shift, 700.0))  # exp overflows a float64 from 710 on
    return 1.0 if isinstance(layer, Sigmoid | HardSigmoid | BNLL | Swish) else 0.0


def _slope_of_prelu(layer: PReLU, at: Index) -> float:
    slopes = layer.blobs[0].read_data().reshape(-1)
    return float(slopes[at[1] if slopes.size > 1 else 0])  # channel_shared: one slope


def _negative_slope(layer: ReLU | PReLU, at: Index) -> float:
    return layer.negative_slope if isinstance(layer, ReLU) else _slope_of_prelu(layer, at)


def _value(case: Case[Elementwise], at: Index) -> Any:
    """f(x) of one element in float64."""
    layer, x = case.layer, np.array([case.x[at]], np.float64)
    if isinstance(layer, ReLU | PReLU):
        return x[0] if not x[0] <= 0 else _negative_slope(layer, at) * x[0]
    if isinstance(layer, Sigmoid):
        return sigmoid(x)[0]
    y = np.empty_like(x)
    with np.errstate(all="ignore"):
        layer.value(x, y)
    return y[0]


def _slope(case: Case[Elementwise], at: Index) -> float:
    """f'(x) of one element, in the layer's type."""
    layer, x = case.layer, np.array([case.x[at]], case.x.dtype)
    if isinstance(layer, ReLU | PReLU):
        return 1.0 if x[0] > 0 else _negative_slope(layer, at)
    if isinstance(layer, Sigmoid):
        y = float(sigmoid(x)[0])
        return y * (1 - y)
    with np.errstate(all="ignore"):
        return float(layer.slope(x)[0])


def _dropout_factor(case: Case[Dropout], at: Index) -> tuple[float, str]:
    layer = case.layer
    if layer.phase == TRAIN:
        # The mask that the run drew; explain does not draw another.
        kept = float(layer.mask.read_data()[at])
        return kept * layer.factor, f"in TRAIN: mask {number(kept)} * {number(layer.factor)}"
    return layer.factor, f"in TEST: {number(layer.factor)}"


@explains(Dropout)
def dropout(case: Case[Dropout], at: Index) -> Explanation:
    (factor, text), x = _dropout_factor(case, at), float(case.x[at])
    y = x * factor
    steps = (f"factor {text}", f"y = {number(x)} * {number(factor)} = {number(y)}")
    return case.function(at, "y = x * factor", y, SHARE * abs(y), *steps)


@explains_gradient(Dropout)
def dropout_gradient(case: Case[Dropout], at: Index) -> Explanation:
    factor, text = _dropout_factor(case, at)
    return case.gradient(at, "dx = dy * factor", one(case, at, factor), steps=(f"factor {text}",))
