"""Elementwise layers and products explained: y = f(x), dx = dy f'(x), and the weights of both.

The products are InnerProduct, Scale, Bias, Eltwise, Axpy, those with a smaller bottom, and MaskResize.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.layers.conv.inner_product import LEAST_SQUARE, InnerProduct
from minicaffe.layers.elementwise.eltwise import MAX, PROD, Eltwise
from minicaffe.layers.elementwise.eltwise import SUM as ELTWISE_SUM
from minicaffe.layers.elementwise.products import Axpy, BroadcastMul, SpatialProduct
from minicaffe.layers.elementwise.scale import Bias, Scale
from minicaffe.layers.forks.brocolli.brocolli_layers import HardSwish
from minicaffe.layers.forks.deepdetect import SparseInnerProduct
from minicaffe.layers.forks.mnc import MaskResize
from minicaffe.layers.neuron.dropout import Dropout
from minicaffe.layers.neuron.functions import (
    BNLL,
    ELU,
    AbsVal,
    Clip,
    Exp,
    HardSigmoid,
    Log,
    Mish,
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
from minicaffe.registry import explains, explains_gradient, explains_weight

from .explanation import SHARE, Case, Explanation, MaxExplanation, channel_of, dy_term, dy_terms, summed
from .terms import Index, Terms, flat_index, indices, number, place, signed

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
    HardSigmoid: (
        "min(1, max(0, alpha * x + beta))",
        lambda p, x: f"min(1, max(0, {number(p.alpha)} * {signed(x)} + {number(p.beta)}))",
    ),
    HardSwish: ("x * min(1, max(0, x / 6 + 0.5))", lambda _, x: f"{number(x)} * min(1, max(0, {number(x)} / 6 + 0.5))"),
    Log: ("ln(shift + scale * x) / ln(base)", _log),
    Mish: ("x * tanh(ln(1 + exp(x)))", lambda _, x: f"{number(x)} * tanh(ln(1 + exp({number(x)})))"),
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
    return case.gradient(at, "dx = dy * f'(x)", dy_term(case, at, factor, "f'(x)"), steps=steps, size=size)


def _size_inside(layer: Elementwise, x: float) -> float:
    """Return the size of the terms inside a function, since the rounding of their sum shows in its value."""
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
    if isinstance(layer, HardSigmoid):
        return float(abs(p.alpha * x) + abs(p.beta))
    return 1.0 if isinstance(layer, Sigmoid | BNLL | Mish | Swish) else abs(x) if isinstance(layer, HardSwish) else 0.0


def _slope_of_prelu(layer: PReLU, at: Index) -> float:
    slopes = layer.blobs[0].read_data().reshape(-1)
    return float(slopes[at[1] if slopes.size > 1 else 0])  # channel_shared: one slope


def _negative_slope(layer: ReLU | PReLU, at: Index) -> float:
    return layer.negative_slope if isinstance(layer, ReLU) else _slope_of_prelu(layer, at)


def _value(case: Case[Elementwise], at: Index) -> Any:
    """Return f(x) of one element, in float64."""
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
    """Return f'(x) of one element, in the layer's type."""
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
    phase = "TRAIN" if layer.phase == TRAIN else "TEST"
    if layer.draws:
        # The mask that the run drew; explain does not draw another.
        kept = float(layer.mask.read_data()[at])
        return kept * layer.factor, f"in {phase}: mask {number(kept)} * {number(layer.factor)}"
    return layer.factor, f"in {phase}: {number(layer.factor)}"


@explains(Dropout)
def dropout(case: Case[Dropout], at: Index) -> Explanation:
    (factor, text), x = _dropout_factor(case, at), float(case.x[at])
    y = x * factor
    steps = (f"factor {text}", f"y = {number(x)} * {number(factor)} = {number(y)}")
    return case.function(at, "y = x * factor", y, SHARE * abs(y), *steps)


@explains_gradient(Dropout)
def dropout_gradient(case: Case[Dropout], at: Index) -> Explanation:
    factor, text = _dropout_factor(case, at)
    return case.gradient(at, "dx = dy * factor", dy_term(case, at, factor), steps=(f"factor {text}",))


@explains_weight(PReLU)
def of_prelu(case: Case[PReLU], at: Index) -> Explanation:
    flat = channel_of(case.x.shape, at[0]) if at else np.arange(case.x.size)
    factor = np.minimum(case.x.reshape(-1)[flat], 0)
    return summed(case, at, flat, factor, "dslope = the sum of dy * min(x, 0) over the channel", "min(x, 0)")


@explains(InnerProduct, SparseInnerProduct)
def inner_product(case: Case[InnerProduct], at: Index) -> Explanation:
    layer, m = case.layer, at[-1]
    x = case.x[at[:-1]]  # the item's inputs: all axes from the layer's axis on
    index = np.column_stack([*(np.full(x.size, i) for i in at[:-1]), *np.unravel_index(np.arange(x.size), x.shape)])
    weight = layer.weight_matrix(layer.scaled(layer.blobs[0].read_data()))[m].astype(np.float64)
    values = x.reshape(-1).astype(np.float64)
    terms = Terms.of(case.bottom_names[0], index, {"x": values, "weight": weight}, values * weight)
    bias = float(layer.blobs[1].read_data()[m]) if len(layer.blobs) > 1 else None
    return case.sum(at, "y = the bias + the sum over all inputs of weight * x", terms, bias=bias)


@explains_gradient(InnerProduct, SparseInnerProduct)
def inner_product_gradient(case: Case[InnerProduct], at: Index) -> Explanation:
    layer, first = case.layer, at[: case.layer.axis]
    k = flat_index(at[layer.axis :], case.x.shape[layer.axis :])
    weight = layer.weight_matrix(layer.scaled(layer.blobs[0].read_data()))[:, k]
    index = np.column_stack([*(np.full(len(weight), i) for i in first), np.arange(len(weight))])
    return case.gradient(at, "dx = the sum over all outputs of dy * weight", dy_terms(case, index, weight, "weight"))


def _lane(case: Case[Scale | Bias], at: Index) -> int:
    """Return the index into the scale or bias that applies to an element."""
    before, lanes, after = case.layer.split
    # x as (before, lanes, after)
    return flat_index(at, case.x.shape) // after % lanes if before * lanes * after else 0


def _operand(case: Case[Layer], lane: int) -> float:
    """Return the scale or bias from the second bottom, or without one the learnt one."""
    return float((case.bottoms[1] if len(case.bottoms) == 2 else case.layer.blobs[0].read_data()).reshape(-1)[lane])


@explains(Scale)
def scale(case: Case[Scale], at: Index) -> Explanation:
    layer, lane, x = case.layer, _lane(case, at), float(case.x[at])
    factor = _operand(case, lane)
    bias = float(layer.blobs[-1].read_data().reshape(-1)[lane]) if layer.param.scale_param.bias_term else None
    columns = {"x": np.array([x]), "scale": np.array([factor])}
    terms = Terms.of(case.bottom_names[0], np.array([at]), columns, np.array([x * factor]))
    return case.sum(at, "y = x * scale" + " + bias" * (bias is not None), terms, bias=bias, steps=(f"lane {lane}",))


@explains(Bias)
def bias(case: Case[Bias], at: Index) -> Explanation:
    lane = _lane(case, at)
    terms = Terms.of(case.bottom_names[0], np.array([at]), {}, np.array([case.x[at]]), "x")
    return case.sum(at, "y = x + bias", terms, bias=_operand(case, lane), steps=(f"lane {lane}",))


@explains_gradient(Scale)
def scale_gradient(case: Case[Scale], at: Index) -> Explanation:
    if case.number:
        return _lane_gradient(case, at, "dscale = the sum of dy * x over all x that it multiplies", case.x)
    return case.gradient(at, "dx = dy * scale", dy_term(case, at, _operand(case, _lane(case, at)), "scale"))


@explains_gradient(Bias)
def bias_gradient(case: Case[Bias], at: Index) -> Explanation:
    if case.number:
        return _lane_gradient(case, at, "dbias = the sum of dy over all x that it is added to", np.ones_like(case.x))
    return case.gradient(at, "dx = dy", dy_term(case, at, 1.0))


def _lane_gradient(case: Case[Scale | Bias], at: Index, formula: str, factor: Array) -> Explanation:
    """Explain the gradient in the second bottom: a sum over all elements of x to which it applies."""
    lane = flat_index(at, case.bottoms[1].shape)
    flat = np.arange(case.x.size).reshape(case.layer.split)[:, lane].reshape(-1)
    return case.gradient(at, formula, dy_terms(case, indices(flat, case.x.shape), factor.reshape(-1)[flat], "x"))


@explains(Eltwise)
def eltwise(case: Case[Eltwise], at: Index) -> Explanation:
    layer, operation = case.layer, case.layer.param.eltwise_param.operation
    x = np.array([b[at] for b in case.bottoms], np.float64)
    index = np.array([at] * len(x))  # the same place in every bottom
    names, which = tuple(case.bottom_names), np.arange(len(x))
    if operation == ELTWISE_SUM:
        coeff = np.array(layer.coeff, np.float64)
        columns = {"x": x, "coeff": coeff}
        return case.sum(at, "y = the sum of coeff * x", Terms(names, which, index, columns, x * coeff))
    terms = Terms(names, which, index, {}, x, "x")  # no columns: x itself is the term
    if operation == MAX:
        winner = 0 if x[0] > x[1] else 1  # of equal ones Caffe takes the second
        for i in range(2, len(x)):
            winner = i if x[i] > x[winner] else winner
        formula = "y = the greatest x; the second if the first two are equal, a later one only if greater"
        return MaxExplanation(formula=formula, computed=float(x[winner]), terms=terms, winner=winner, **case.named(at))
    product = math.prod(x.tolist())
    step = f"y = {' * '.join(signed(v) for v in x)} = {number(product)}"
    return case.function(at, "y = the product of all x", product, SHARE * abs(product), step, terms=terms)


@explains_gradient(Eltwise)
def eltwise_gradient(case: Case[Eltwise], at: Index) -> Explanation:
    layer, i, param = case.layer, case.number, case.layer.param.eltwise_param
    if param.operation == ELTWISE_SUM:
        return case.gradient(at, "dx = dy * coeff", dy_term(case, at, layer.coeff[i], "coeff"))
    if param.operation == MAX:
        won = eltwise(replace(case, number=0), at)  # number is a bottom here, but eltwise names a top
        assert isinstance(won, MaxExplanation)
        index = won.winner or 0
        step = f"the greatest is {place(case.bottom_names[index], at)} = {number(won.computed)}"
        terms = dy_term(case, at, float(index == i))
        return case.gradient(at, "dx = dy where this x is the greatest, else 0", terms, steps=(step,))
    assert param.operation == PROD
    others = [float(b[at]) for j, b in enumerate(case.bottoms) if j != i]
    if param.stable_prod_grad:
        return case.gradient(at, "dx = dy * the product of the other x", dy_term(case, at, math.prod(others), "other x"))
    with np.errstate(divide="ignore", invalid="ignore"):
        # As Caffe without stable_prod_grad: 0 / 0 is NaN where this x is 0.
        factor = float(np.float64(case.y[at]) / np.float64(case.bottoms[i][at]))
    return case.gradient(at, "dx = dy * y / x", dy_term(case, at, factor, "y / x"))


@explains(MaskResize)
def mask_resize(case: Case[MaskResize], at: Index) -> Explanation:
    index, weight = _pixels(case.layer.rows[at[2]], case.layer.columns[at[3]], at)
    x = case.x[tuple(index.T)].astype(np.float64)
    terms = Terms.of(case.bottom_names[0], index, {"x": x, "weight": weight}, x * weight)
    return case.sum(at, "y = the sum over the pixels around of weight * x", terms)


@explains_gradient(MaskResize)
def mask_resize_gradient(case: Case[MaskResize], at: Index) -> Explanation:
    index, weight = _pixels(case.layer.rows[:, at[2]], case.layer.columns[:, at[3]], at)
    return case.gradient(at, "dx = the sum over the places it adds to of dy * weight", dy_terms(case, index, weight, "weight"))


def _pixels(rows: Array, columns: Array, at: Index) -> tuple[Array, Array]:
    """Return the places in at's map where both weights are not 0 (T, 4), and the products of the weights (T,)."""
    weight = np.outer(rows.astype(np.float64), columns)
    places = np.argwhere(weight)
    return np.column_stack([np.full(len(places), at[0]), np.full(len(places), at[1]), places]), weight[weight != 0]


def _factor(case: Case[BroadcastMul | SpatialProduct]) -> Array:
    """Return the second bottom, broadcast to x's shape."""
    return np.broadcast_to(case.bottoms[1].reshape(case.layer.factor), case.x.shape)


@explains(BroadcastMul, SpatialProduct)
def broadcast(case: Case[BroadcastMul | SpatialProduct], at: Index) -> Explanation:
    x, s = float(case.x[at]), float(_factor(case)[at])
    step = f"y = {number(x)} * {signed(s)} = {number(x * s)}"
    return case.function(at, "y = x * s", x * s, SHARE * abs(x * s), step)


@explains_gradient(BroadcastMul, SpatialProduct)
def broadcast_gradient(case: Case[BroadcastMul | SpatialProduct], at: Index) -> Explanation:
    if case.number == 0:
        return case.gradient(at, "dx = dy * s", dy_term(case, at, float(_factor(case)[at]), "s"))
    own = np.arange(case.bottoms[1].size).reshape(case.layer.factor)
    here = own.reshape(case.bottoms[1].shape)[at]
    index = np.argwhere(np.broadcast_to(own, case.x.shape) == here)
    terms = dy_terms(case, index, case.x[tuple(index.T)], "x")
    return case.gradient(at, "ds = the sum of dy * x over all x that it multiplies", terms)


def _map_of(case: Case[Axpy], at: Index) -> int:
    """Return the number of the map in which an element lies."""
    return int(at[0] * case.bottoms[1].shape[1] + at[1])


@explains(Axpy)
def axpy(case: Case[Axpy], at: Index) -> Explanation:
    a, x, y = float(case.bottoms[0].reshape(-1)[_map_of(case, at)]), float(case.bottoms[1][at]), float(case.bottoms[2][at])
    computed = a * x + y
    step = f"out = {number(a)} * {signed(x)} + {signed(y)} = {number(computed)}"
    return case.function(at, "out = a * x + y", computed, SHARE * (abs(a * x) + abs(y)), step)


@explains_gradient(Axpy)
def axpy_gradient(case: Case[Axpy], at: Index) -> Explanation:
    if case.number == 2:
        return case.gradient(at, "dy = dout", dy_term(case, at, 1.0))
    if case.number == 1:
        return case.gradient(at, "dx = dout * a", dy_term(case, at, float(case.bottoms[0].reshape(-1)[_map_of(case, at)]), "a"))
    x = case.bottoms[1][at[:2]]
    places = np.array([at[:2] + place for place in np.ndindex(x.shape)], int).reshape(x.size, -1)
    return case.gradient(at, "da = the sum over the map of dout * x", dy_terms(case, places, x, "x"))


@explains_weight(InnerProduct, SparseInnerProduct)
def of_inner_product(case: Case[InnerProduct], at: Index) -> Explanation:
    layer, outputs = case.layer, case.y.shape[-1]
    m, k = (at[0], 0) if case.number == 1 else (at[1], at[0]) if layer.transpose else (at[0], at[1])
    flat = np.arange(case.y.size // outputs) * outputs + m
    if case.number == 1:
        return summed(case, at, flat, None, "dbias = the sum of dy over the items")
    x = case.x.reshape(len(flat), -1).astype(np.float64)
    if not layer.normalize:
        return summed(case, at, flat, x[:, k], "dweight = the sum over the items of dy * x")
    row = layer.weight_matrix(layer.blobs[0].read_data())[m].astype(np.float64)
    length = float(np.sqrt(row @ row + LEAST_SQUARE))
    unit = row / length
    terms = dy_terms(case, indices(flat, case.y.shape), (x[:, k] - unit[k] * (x @ unit)) / length, "dy/dweight")
    size = np.abs(case.dy[0].reshape(-1)[flat]) @ (np.abs(x[:, k]) + np.abs(unit[k]) * (np.abs(x) @ np.abs(unit))) / length
    formula = "dweight = the sum over the items of dy * (x - u (u . x)) / length, u = the row of weights / length"
    return case.gradient(at, formula, terms, steps=(f"length {number(length)}, u here {number(unit[k])}",), size=float(size))


@explains_weight(Scale, Bias)
def of_lane(case: Case[Scale | Bias], at: Index) -> Explanation:
    layer = case.layer
    lane = flat_index(at, layer.blobs[case.number].shape)
    flat = np.arange(case.x.size).reshape(layer.split)[:, lane].reshape(-1)
    if layer.weight_names[case.number] == "bias":
        return summed(case, at, flat, None, "dbias = the sum of dy over all x that it is added to")
    return summed(case, at, flat, case.x.reshape(-1)[flat], "dscale = the sum of dy * x over all x that it multiplies")
