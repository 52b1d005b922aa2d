"""BatchNorm, BN, ChannelNorm, LRN and Softmax explained."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.forks.flownet.flownet_layers import ChannelNorm
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.loss.softmax_with_loss import SoftmaxWithLoss
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.batch_norm_layouts import BVLC, statistics
from minicaffe.layers.norm.bn import BN
from minicaffe.layers.norm.lrn import LRN
from minicaffe.registry import explains, explains_gradient

from .case import Case, one, sent
from .explanation import SHARE, UNDERFLOW, Explanation
from .terms import Index, Terms, indices
from .text import number, place, signed


def _statistics(case: Case[BatchNorm], at: Index) -> tuple[float, float, Array, str]:
    """Mean, variance and all values of the channel of `at`, and the source of mean and variance."""
    layer = case.layer
    channel = at[1] if len(at) > 1 else 0
    values = (case.x[:, channel] if case.x.ndim > 1 else case.x).astype(np.float64).reshape(-1)  # a vector is one channel
    if layer.use_global_stats:
        stored = {name: values.astype(np.float64) for name, values in layer.values().items()}
        mean, var = statistics(stored)
        bvlc = layer.layout[:3] == BVLC
        text = f"the stored sums, divided by the factor {number(stored['factor'][0])}" if bvlc else "the stored ones"
        return float(mean[channel]), float(var[channel]), values, text
    return float(values.mean()), float(values.var()), values, f"of the {values.size} values of channel {channel} in this batch"


@explains(BatchNorm)
def batch_norm(case: Case[BatchNorm], at: Index) -> Explanation:
    eps, x = case.layer.eps, float(case.x[at])
    mean, var, values, source = _statistics(case, at)
    std = (var + eps) ** 0.5
    of_mean = abs(mean) if case.layer.use_global_stats else float(np.abs(values).mean())
    computed = (x - mean) / std
    steps: tuple[str, ...] = (
        f"mean {number(mean)}, variance {number(var)}: {source}",
        f"std = sqrt({number(var)} + {number(eps)}) = {number(std)}",
        f"y = ({number(x)} - {signed(mean)}) / {number(std)} = {number(computed)}",
    )
    formula, size = "y = (x - mean) / sqrt(variance + eps)", (abs(x) + of_mean) / std
    if (learnt := case.layer.scale_and_bias()) is not None:
        scale, bias = (float(values[at[1] if len(at) > 1 else 0]) for values in learnt)
        scaled = scale * computed + bias
        steps = (*steps[:2], steps[2].replace("y =", "x^ =", 1), f"y = {number(scale)} * {signed(computed)} + {signed(bias)}")
        return case.function(
            at, "y = scale * (x - mean) / sqrt(variance + eps) + bias", scaled, SHARE * (abs(scale) * size + abs(bias)), *steps
        )
    return case.function(at, formula, computed, SHARE * size, *steps)


@explains_gradient(BatchNorm)
def batch_norm_gradient(case: Case[BatchNorm], at: Index) -> Explanation:
    mean, var, _, source = _statistics(case, at)
    std = (var + case.layer.eps) ** 0.5
    step = f"mean {number(mean)}, std {number(std)}: {source}"
    learnt, scale, times = case.layer.scale_and_bias(), 1.0, ""
    if learnt is not None:
        scale, times = float(learnt[0][at[1] if len(at) > 1 else 0]), "scale * "
        step = f"{step}; scale {number(scale)}"
    if case.layer.use_global_stats:
        return case.gradient(at, f"dx = {times}dy / std", one(case, at, scale / std, f"{times}1 / std"), steps=(step,))
    return _batch_gradient(case, at, (mean, std), scale / std, f"{times}1 / std", step)


def _batch_gradient(
    case: Case[BatchNorm | BN], at: Index, of_batch: tuple[float, float], factor: float, title: str, step: str
) -> Explanation:
    """dx of (x - mean) * factor, where mean and std (of_batch) are the batch's."""
    # Mean and variance depend on every value of the channel, so every dy of the channel reaches this x.
    mean, std = of_batch
    flat = np.arange(case.x.size).reshape(case.x.shape)
    channel = (flat[:, at[1]] if case.x.ndim > 1 else flat).reshape(-1)
    normalised = (case.x.reshape(-1)[channel].astype(np.float64) - mean) / std
    here = channel == np.ravel_multi_index(at, case.x.shape)  # one True
    n_here, m = float(normalised[here][0]), len(channel)
    dy = case.dy[0].reshape(-1)[channel].astype(np.float64)
    terms = sent(case, indices(channel, case.x.shape), dy, (here - 1 / m - normalised * n_here / m) * factor)
    size = np.abs(dy).mean() + np.abs(dy * normalised).mean() * abs(n_here) + abs(float(dy[here][0]))
    formula = f"dx = the sum over the {m} values of the channel of dy * ((1 where here) - 1 / {m} - n n_here / {m}) * {title}"
    steps = (step, f"n = (x - mean) / std, n_here = {number(n_here)} at {place(case.bottom_names[0], at)}")
    return case.gradient(at, formula, terms, steps=steps, size=float(size) * abs(factor))


def _bn_statistics(case: Case[BN], at: Index) -> tuple[float, float, str]:
    """Mean and std of the channel of `at`, and their source."""
    layer, channel = case.layer, at[1]
    if layer.of_batch:
        values = case.x[:, channel].astype(np.float64)
        return float(values.mean()), (values.var() + layer.eps) ** 0.5, f"of the {values.size} values of channel {channel}"
    if len(layer.blobs) == 2:
        return 0.0, 1.0, "none, bn_mode is INFERENCE"
    mean, var = (float(blob.read_data().reshape(-1)[channel]) for blob in layer.blobs[2:])
    return mean, (var + layer.eps) ** 0.5, f"of the stored statistics of channel {channel}"


@explains(BN)
def bn(case: Case[BN], at: Index) -> Explanation:
    mean, std, source = _bn_statistics(case, at)
    if case.number:
        value = mean if case.number == 1 else std**2 - case.layer.eps
        size = float(np.square(case.x[:, at[1]], dtype=np.float64).mean()) ** (0.5 if case.number == 1 else 1)
        return case.function(at, f"the batch's {('mean', 'variance')[case.number - 1]}", value, SHARE * size, source)
    x, (slope, bias) = float(case.x[at]), (float(blob.read_data().reshape(-1)[at[1]]) for blob in case.layer.blobs[:2])
    computed = slope * (x - mean) / std + bias
    steps = (
        f"mean {number(mean)}, std = sqrt(variance + eps) = {number(std)}: {source}",
        f"y = {number(slope)} * ({number(x)} - {signed(mean)}) / {number(std)} + {signed(bias)} = {number(computed)}",
    )
    of_mean = float(np.abs(case.x[:, at[1]], dtype=np.float64).mean()) if case.layer.of_batch else abs(mean)
    tolerance = SHARE * (abs(slope) * (abs(x) + of_mean) / std + abs(bias))
    return case.function(at, "y = slope * (x - mean) / sqrt(variance + eps) + bias", computed, tolerance, *steps)


@explains_gradient(BN)
def bn_gradient(case: Case[BN], at: Index) -> Explanation:
    mean, std, source = _bn_statistics(case, at)
    factor = float(case.layer.blobs[0].read_data().reshape(-1)[at[1]]) / std
    step = f"mean {number(mean)}, std {number(std)}: {source}"
    if not case.layer.of_batch:
        return case.gradient(at, "dx = dy * slope / std", one(case, at, factor, "slope / std"), steps=(step,))
    return _batch_gradient(case, at, (mean, std), factor, "slope / std", step)


def normalised_channel(case: Case[BatchNorm | BN], flat: Array, channel: int) -> tuple[Array, str]:
    """(x - mean) / std of the elements flat (T,) of a channel, in float64, and its step."""
    at = (0, channel)
    if isinstance(case.layer, BN):
        mean, std, source = _bn_statistics(case, at)  # type: ignore[arg-type]
    else:
        mean, var, _, source = _statistics(case, at)  # type: ignore[arg-type]
        std = (var + case.layer.eps) ** 0.5
    values = (case.x.reshape(-1)[flat].astype(np.float64) - mean) / std
    return values, f"mean {number(mean)}, std {number(std)}: {source}"


def _neighbours(layer: LRN, shape: Index, at: Index) -> Array:
    """The index (K, 4) of every element in the sum around `at`."""
    half = layer.size // 2
    spans = [range(at[0], at[0] + 1)]
    for axis in (1, 2, 3):
        near = axis == 1 if len(layer.axes) == 1 else axis > 1  # ACROSS_CHANNELS sums along C, WITHIN_CHANNEL over H and W
        reach = half if near else 0
        spans.append(range(max(at[axis] - reach, 0), min(at[axis] + reach + 1, shape[axis])))
    return np.stack(np.meshgrid(*spans, indexing="ij"), axis=-1).reshape(-1, 4)


def _lrn_scale(layer: LRN, x: Array, at: Index) -> float:
    """k + alpha * the sum of x^2 around `at`; layer.alpha includes the division by the number of neighbours."""
    around = x[tuple(_neighbours(layer, x.shape, at).T)].astype(np.float64)
    return float(layer.k + layer.alpha * np.square(around).sum())


@explains(LRN)
def lrn(case: Case[LRN], at: Index) -> Explanation:
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
    formula = "y = x / scale ^ beta, scale = k + alpha / (number of neighbours) * the sum of their x^2"
    return case.function(at, formula, computed, SHARE * abs(computed) * max(layer.beta, 1), *steps, terms=terms)


@explains_gradient(LRN)
def lrn_gradient(case: Case[LRN], at: Index) -> Explanation:
    layer, here = case.layer, float(case.x[at])
    index = _neighbours(layer, case.x.shape, at)
    factor, size = np.zeros(len(index)), 0.0
    for i, j in enumerate(map(tuple, index.tolist())):
        # The scale of the neighbour j, whose window holds x because windows are symmetric.
        scale = _lrn_scale(layer, case.x, j)
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


def _along(shape: Index, at: Index, axis: int) -> Array:
    """The index (length, axes) of every element of the line through `at` along an axis."""
    index = np.tile(np.array(at), (shape[axis], 1))
    index[:, axis] = np.arange(len(index))
    return index


def _softmax_line(case: Case[Softmax | SoftmaxWithLoss], at: Index) -> tuple[int, Array]:
    """The axis of a softmax, and the line through `at` along it."""
    axis = case.layer.param.softmax_param.axis % case.x.ndim
    return axis, _along(case.x.shape, at, axis)


@explains(Softmax)
def softmax(case: Case[Softmax | SoftmaxWithLoss], at: Index) -> Explanation:
    """Of the first bottom; SoftmaxWithLoss's second top too."""
    axis, index = _softmax_line(case, at)
    x = case.x[tuple(index.T)]
    shifted = (x - x.max()).astype(np.float64)  # rounded as in the layer
    power = np.exp(shifted)  # of a difference <= 0: no overflow
    terms = Terms.of(case.bottom_names[0], index, {"x": x, "x - max x": shifted}, power, "exp")
    total = terms.total()
    computed = float(power[at[axis]] / total)
    steps = (
        f"max x = {number(x.max())}; the sum of exp is {number(total)}",
        f"y = {number(power[at[axis]])} / {number(total)} = {number(computed)}",
    )
    formula = f"y = exp(x - max x) / the sum of exp(x - max x), along axis {axis}"
    return case.function(at, formula, computed, SHARE * computed + UNDERFLOW, *steps, terms=terms)


@explains_gradient(Softmax)
def softmax_gradient(case: Case[Softmax], at: Index) -> Explanation:
    axis, index = _softmax_line(case, at)
    y = case.y[tuple(index.T)].astype(np.float64)
    dy = case.dy[0][tuple(index.T)].astype(np.float64)
    k = at[axis]
    # The softmax's Jacobian is symmetric: dy_j/dx_k = y_k ((j == k) - y_j).
    terms = sent(case, index, dy, y[k] * ((np.arange(len(y)) == k) - y), "dy_k/dx")
    size = float(y[k] * (abs(dy[k]) + np.abs(dy * y).sum()))
    steps = (f"y, the probability here, is {number(y[k])}",)
    return case.gradient(at, "dx = the sum over k of dy_k * y * ((1 where k is here) - y_k)", terms, size=size, steps=steps)


@explains(ChannelNorm)
def channel_norm(case: Case[ChannelNorm], at: Index) -> Explanation:
    places = _along(case.x.shape, at, 1)
    values = case.x[tuple(places.T)].astype(np.float64)
    terms = Terms.of(case.bottom_names[0], places, {"x": values}, values**2, "x^2")
    computed = float(np.sqrt(terms.total()))
    step = f"y = sqrt({number(terms.total())}) = {number(computed)}"
    return case.function(at, "y = sqrt(the sum over the channels of x^2)", computed, SHARE * computed, step, terms=terms)


@explains_gradient(ChannelNorm)
def channel_norm_gradient(case: Case[ChannelNorm], at: Index) -> Explanation:
    there = at[0], 0, *at[2:]
    y = float(case.y[there])
    factor = float(case.x[at]) / y if y else 0.0
    return case.gradient(at, "dx = dy * x / y", one(case, there, factor, "x / y"))
