"""Softmax, LRN and BatchNorm explained."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicaffe.layers.batch_norm import global_statistics
from minicaffe.layers.channels import channels_of

from .case import Array, Case, sent
from .explanation import SHARE, Explanation, FunctionExplanation, Index, Terms, indices
from .text import number, place, signed


def _along(at: Index, axis: int, length: int) -> Array:
    """The index of every element of the line through `at` along axis: (length, axes)."""
    index = np.tile(np.array(at), (length, 1))
    index[:, axis] = np.arange(length)
    return index


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
    return FunctionExplanation(formula=formula, computed=computed, tolerance=SHARE, steps=steps, terms=terms, **named)


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


# LRN.


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


# BatchNorm.


def _statistics(case: Case, at: Index) -> tuple[float, float, Array, str]:
    """Mean and variance that the channel of `at` is normalised with, the channel's values, and where they come from."""
    layer = case.layer
    channel = at[1] if len(at) > 1 else 0
    values = (case.x[:, channel] if case.x.ndim > 1 else case.x).astype(np.float64).reshape(-1)
    if layer.use_global_stats:
        sums = [blob.read_data().astype(np.float64) for blob in layer.blobs]
        mean, var = global_statistics(*sums)
        text = f"the sums kept, divided by the factor {number(sums[2][0])}"
        return float(mean[channel]), float(var[channel]), values, text
    return float(values.mean()), float(values.var()), values, f"of the {values.size} values of channel {channel} in this batch"


def batch_norm(case: Case, at: Index) -> Explanation:
    layer, x = case.layer, float(case.x[at])
    mean, var, _, source = _statistics(case, at)
    std = (var + layer.eps) ** 0.5
    computed = (x - mean) / std
    steps = (
        f"mean {number(mean)}, variance {number(var)}: {source}",
        f"std = sqrt({number(var)} + {number(layer.eps)}) = {number(std)}",
        f"y = ({number(x)} - {signed(mean)}) / {number(std)} = {number(computed)}",
    )
    named, tolerance = case.named(at), SHARE * (abs(x) + abs(mean)) / std
    return FunctionExplanation(
        formula="y = (x - mean) / sqrt(variance + eps)", computed=computed, tolerance=tolerance, steps=steps, **named
    )


def batch_norm_gradient(case: Case, at: Index) -> Explanation:
    layer = case.layer
    mean, var, values, source = _statistics(case, at)
    std = (var + layer.eps) ** 0.5
    steps: tuple[str, ...] = (f"mean {number(mean)}, std {number(std)}: {source}",)
    if layer.use_global_stats:
        terms = sent(case, np.array([at]), np.array([case.dy[0][at]]), np.array([1 / std]), "1 / std")
        return case.gradient(at, "dx = dy / std", terms, steps=steps)
    normalised = (values - mean) / std
    flat = np.arange(case.x.size).reshape(case.x.shape)
    channel = flat[:, at[1]].reshape(-1) if channels_of(case.x.shape) > 1 or case.x.ndim > 1 else flat.reshape(-1)
    here = channel == np.ravel_multi_index(at, case.x.shape)
    own = float(normalised[here][0])
    dy = case.dy[0].reshape(-1)[channel].astype(np.float64)
    terms = sent(case, indices(channel, case.x.shape), dy, _shares(here, normalised, own, std))
    mass = np.abs(dy).mean() + np.abs(dy * normalised).mean() * abs(own) + abs(float(dy[here][0]))
    m = len(dy)
    formula = f"dx = the sum over the {m} values of the channel of dy * ((1 where here) - 1 / {m} - y y_here / {m}) / std"
    steps = (*steps, f"y_here = {number(own)} at {place(case.bottom_names[0], at)}")
    return case.gradient(at, formula, terms, steps=steps, size=float(mass) / std)


def _shares(here: Array, normalised: Array, own: float, std: float) -> Array:
    """How much of each dy reaches the element `here`."""
    shares: Array = (here - 1 / len(here) - normalised * own / len(here)) / std
    return shares
