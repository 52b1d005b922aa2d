"""InnerProduct, Scale, Bias, Eltwise, Axpy, and products with a smaller bottom (masks, numbers a map) explained; MaskResize."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.layers.conv.inner_product import InnerProduct
from minicaffe.layers.elementwise.eltwise import MAX, PROD, Eltwise
from minicaffe.layers.elementwise.eltwise import SUM as ELTWISE_SUM
from minicaffe.layers.elementwise.products import Axpy, BroadcastMul, SpatialProduct
from minicaffe.layers.elementwise.scale import Bias, Scale
from minicaffe.layers.forks.deepdetect import SparseInnerProduct
from minicaffe.layers.forks.mnc import MaskResize
from minicaffe.registry import explains, explains_gradient

from .case import Case, one, sent
from .explanation import SHARE, Explanation, MaxExplanation
from .terms import Index, Terms, indices
from .text import number, place, signed


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
    layer, dy = case.layer, case.dy[0]
    first = at[: layer.axis]
    k = int(np.ravel_multi_index(at[layer.axis :], case.x.shape[layer.axis :]))
    weight = layer.weight_matrix(layer.scaled(layer.blobs[0].read_data()))[:, k]
    index = np.column_stack([*(np.full(len(weight), i) for i in first), np.arange(len(weight))])
    return case.gradient(at, "dx = the sum over all outputs of dy * weight", sent(case, index, dy[first], weight, "weight"))


def _lane(case: Case[Scale | Bias], at: Index) -> int:
    """The index into the scale or bias that applies to an element."""
    before, lanes, after = case.layer.split
    # x as (before, lanes, after)
    return int(np.ravel_multi_index(at, case.x.shape)) // after % lanes if before * lanes * after else 0


def _operand(case: Case[Layer], lane: int) -> float:
    """The scale or bias: of the second bottom, else learnt."""
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
    return case.gradient(at, "dx = dy * scale", one(case, at, _operand(case, _lane(case, at)), "scale"))


@explains_gradient(Bias)
def bias_gradient(case: Case[Bias], at: Index) -> Explanation:
    if case.number:
        return _lane_gradient(case, at, "dbias = the sum of dy over all x that it is added to", np.ones_like(case.x))
    return case.gradient(at, "dx = dy", one(case, at, 1.0))


def _lane_gradient(case: Case[Scale | Bias], at: Index, formula: str, factor: Array) -> Explanation:
    """The gradient in the second bottom: the sum over all elements of its lane."""
    lane = int(np.ravel_multi_index(at, case.bottoms[1].shape)) if at else 0
    flat = np.arange(case.x.size).reshape(case.layer.split)[:, lane].reshape(-1)
    index = indices(flat, case.x.shape)
    return case.gradient(at, formula, sent(case, index, case.dy[0].reshape(-1)[flat], factor.reshape(-1)[flat], "x"))


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
        return case.gradient(at, "dx = dy * coeff", one(case, at, layer.coeff[i], "coeff"))
    if param.operation == MAX:
        won = eltwise(replace(case, number=0), at)  # number is a bottom here, but eltwise names a top
        assert isinstance(won, MaxExplanation)
        index = won.winner or 0
        step = f"the greatest is {place(case.bottom_names[index], at)} = {number(won.computed)}"
        terms = one(case, at, float(index == i))
        return case.gradient(at, "dx = dy where this x is the greatest, else 0", terms, steps=(step,))
    assert param.operation == PROD
    others = [float(b[at]) for j, b in enumerate(case.bottoms) if j != i]
    if param.stable_prod_grad:
        return case.gradient(at, "dx = dy * the product of the other x", one(case, at, math.prod(others), "other x"))
    with np.errstate(divide="ignore", invalid="ignore"):
        # As Caffe without stable_prod_grad: 0 / 0 is NaN where this x is 0.
        factor = float(np.float64(case.y[at]) / np.float64(case.bottoms[i][at]))
    return case.gradient(at, "dx = dy * y / x", one(case, at, factor, "y / x"))


@explains(MaskResize)
def mask_resize(case: Case[MaskResize], at: Index) -> Explanation:
    index, weight = _pixels(case.layer.rows[at[2]], case.layer.columns[at[3]], at)
    x = case.x[tuple(index.T)].astype(np.float64)
    terms = Terms.of(case.bottom_names[0], index, {"x": x, "weight": weight}, x * weight)
    return case.sum(at, "y = the sum over the pixels around of weight * x", terms)


@explains_gradient(MaskResize)
def mask_resize_gradient(case: Case[MaskResize], at: Index) -> Explanation:
    index, weight = _pixels(case.layer.rows[:, at[2]], case.layer.columns[:, at[3]], at)
    dy = case.dy[0][tuple(index.T)]
    return case.gradient(at, "dx = the sum over the places it adds to of dy * weight", sent(case, index, dy, weight, "weight"))


def _pixels(rows: Array, columns: Array, at: Index) -> tuple[Array, Array]:
    """The places of at's map where both weights are not 0 (T, 4), and their products (T,)."""
    weight = np.outer(rows.astype(np.float64), columns)
    places = np.argwhere(weight)
    return np.column_stack([np.full(len(places), at[0]), np.full(len(places), at[1]), places]), weight[weight != 0]


def _factor(case: Case[BroadcastMul | SpatialProduct]) -> Array:
    """The second bottom, repeated to x's shape."""
    return np.broadcast_to(case.bottoms[1].reshape(case.layer.factor), case.x.shape)


@explains(BroadcastMul, SpatialProduct)
def broadcast(case: Case[BroadcastMul | SpatialProduct], at: Index) -> Explanation:
    x, s = float(case.x[at]), float(_factor(case)[at])
    step = f"y = {number(x)} * {signed(s)} = {number(x * s)}"
    return case.function(at, "y = x * s", x * s, SHARE * abs(x * s), step)


@explains_gradient(BroadcastMul, SpatialProduct)
def broadcast_gradient(case: Case[BroadcastMul | SpatialProduct], at: Index) -> Explanation:
    if case.number == 0:
        return case.gradient(at, "dx = dy * s", one(case, at, float(_factor(case)[at]), "s"))
    own = np.arange(case.bottoms[1].size).reshape(case.layer.factor)
    here = own.reshape(case.bottoms[1].shape)[at]
    index = np.argwhere(np.broadcast_to(own, case.x.shape) == here)
    dy, x = (array[tuple(index.T)] for array in (case.dy[0], case.x))
    return case.gradient(at, "ds = the sum of dy * x over all x that it multiplies", sent(case, index, dy, x, "x"))


def _map_of(case: Case[Axpy], at: Index) -> int:
    """The index of the map that holds an element."""
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
        return case.gradient(at, "dy = dout", one(case, at, 1.0))
    if case.number == 1:
        return case.gradient(at, "dx = dout * a", one(case, at, float(case.bottoms[0].reshape(-1)[_map_of(case, at)]), "a"))
    x, dout = (array[at[:2]] for array in (case.bottoms[1], case.dy[0]))
    places = np.array([at[:2] + place for place in np.ndindex(x.shape)], int).reshape(x.size, -1)
    return case.gradient(at, "da = the sum over the map of dout * x", sent(case, places, dout, x, "x"))
