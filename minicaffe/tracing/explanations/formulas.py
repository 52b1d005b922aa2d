"""The formulas of the layers that work element by element, with their numbers put in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minicaffe.layer import Layer
from minicaffe.layers.abs_val import AbsVal
from minicaffe.layers.bnll import BNLL
from minicaffe.layers.clip import Clip
from minicaffe.layers.elu import ELU
from minicaffe.layers.exp import Exp
from minicaffe.layers.log import Log
from minicaffe.layers.power import Power
from minicaffe.layers.prelu import PReLU
from minicaffe.layers.relu import ReLU
from minicaffe.layers.sigmoid import Sigmoid
from minicaffe.layers.swish import Swish
from minicaffe.layers.tanh import TanH
from minicaffe.layers.threshold import Threshold

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


TEMPLATES: dict[type[Layer], Template] = {
    AbsVal: lambda _, x: ("y = |x|", f"|{number(x)}|"),
    BNLL: lambda _, x: ("y = ln(1 + exp(x))", f"ln(1 + exp({number(x)}))"),
    Clip: _clip,
    ELU: _elu,
    Exp: _exp,
    Log: _log,
    PReLU: _prelu,
    Power: _power,
    ReLU: _relu,
    Sigmoid: lambda _, x: ("y = 1 / (1 + exp(-x))", f"1 / (1 + exp({number(-x)}))"),
    Swish: _swish,
    TanH: lambda _, x: ("y = tanh(x)", f"tanh({number(x)})"),
    Threshold: _threshold,
}
