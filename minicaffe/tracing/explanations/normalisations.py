"""Normalisations explained: BatchNorm, BN, LRN, MVN, Normalize, ChannelNorm and Softmax."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.elementwise.channels import by_channel
from minicaffe.layers.forks.flownet.flownet_layers import ChannelNorm
from minicaffe.layers.forks.genet import CuDNNBatchNorm
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.loss.softmax_with_loss import SoftmaxWithLoss
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.batch_norm_layouts import BVLC, statistics
from minicaffe.layers.norm.bn import BN
from minicaffe.layers.norm.lrn import LRN
from minicaffe.layers.norm.mvn import MVN
from minicaffe.layers.norm.normalize import LEAST, Normalize, lengths
from minicaffe.registry import explains, explains_gradient, explains_weight

from .explanation import SHARE, UNDERFLOW, Case, Explanation, channel_of, dy_term, dy_terms, summed
from .terms import Index, Terms, flat_index, indices, number, place, signed


def _statistics(case: Case[BatchNorm] | Case[BN], channel: int) -> tuple[float, float, float, str]:
    """Return the mean, variance and std of a channel, and a sentence on their source."""
    layer, name = case.layer, f"channel {channel}"
    if _of_batch(layer):
        values = _channel(case, channel)
        mean, var, source = float(values.mean()), float(values.var()), f"of the {values.size} values of {name}"
        return mean, var, (var + layer.eps) ** 0.5, source + " in this batch" * isinstance(layer, BatchNorm)
    if isinstance(layer, BatchNorm):
        stored = {name: values.astype(np.float64) for name, values in layer.values().items()}
        mean, var = (float(values[channel]) for values in statistics(stored))
        bvlc = layer.layout[:3] == BVLC
        source = f"the stored sums, divided by the factor {number(stored['factor'][0])}" if bvlc else "the stored ones"
    elif len(layer.blobs) == 2:
        return 0.0, 1.0, 1.0, "none, bn_mode is INFERENCE"
    else:
        mean, var = (float(blob.read_data().reshape(-1)[channel]) for blob in layer.blobs[2:])
        source = f"of the stored statistics of {name}"
    return mean, var, (var + layer.eps) ** 0.5, source


def _of_batch(layer: BatchNorm | BN) -> bool:
    return layer.of_batch if isinstance(layer, BN) else not layer.use_global_stats


def _channel(case: Case[BatchNorm] | Case[BN], channel: int) -> Array:
    """Return the values of a channel; a vector is one channel."""
    values: Array = (case.x[:, channel] if case.x.ndim > 1 else case.x).astype(np.float64).reshape(-1)
    return values


@explains(BatchNorm)
def batch_norm(case: Case[BatchNorm], at: Index) -> Explanation:
    eps, x, channel = case.layer.eps, float(case.x[at]), at[1] if len(at) > 1 else 0
    mean, var, std, source = _statistics(case, channel)
    of_mean = abs(mean) if case.layer.use_global_stats else float(np.abs(_channel(case, channel)).mean())
    computed = (x - mean) / std
    steps: tuple[str, ...] = (
        f"mean {number(mean)}, variance {number(var)}: {source}",
        f"std = sqrt({number(var)} + {number(eps)}) = {number(std)}",
        f"y = ({number(x)} - {signed(mean)}) / {number(std)} = {number(computed)}",
    )
    formula, size = "y = (x - mean) / sqrt(variance + eps)", (abs(x) + of_mean) / std
    if (learnt := case.layer.scale_and_bias()) is not None:
        scale, bias = (float(values[channel]) for values in learnt)
        scaled = scale * computed + bias
        steps = (*steps[:2], steps[2].replace("y =", "x^ =", 1), f"y = {number(scale)} * {signed(computed)} + {signed(bias)}")
        return case.function(
            at, "y = scale * (x - mean) / sqrt(variance + eps) + bias", scaled, SHARE * (abs(scale) * size + abs(bias)), *steps
        )
    return case.function(at, formula, computed, SHARE * size, *steps)


@explains(BN, CuDNNBatchNorm)
def bn(case: Case[BN], at: Index) -> Explanation:
    mean, _, std, source = _statistics(case, at[1])
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


@explains_gradient(BatchNorm, BN, CuDNNBatchNorm)
def batch_norm_gradient(case: Case[BatchNorm] | Case[BN], at: Index) -> Explanation:
    layer, channel = case.layer, at[1] if len(at) > 1 else 0
    mean, _, std, source = _statistics(case, channel)
    step, scale, title = f"mean {number(mean)}, std {number(std)}: {source}", 1.0, "1 / std"
    formula = "dx = dy / std"
    if isinstance(layer, BN):
        scale, title, formula = float(layer.blobs[0].read_data().reshape(-1)[channel]), "slope / std", "dx = dy * slope / std"
    elif (learnt := layer.scale_and_bias()) is not None:
        scale, title, formula = float(learnt[0][channel]), "scale * 1 / std", "dx = scale * dy / std"
        step = f"{step}; scale {number(scale)}"
    if not _of_batch(layer):
        return case.gradient(at, formula, dy_term(case, at, scale / std, title), steps=(step,))
    # Mean and variance depend on every value of the channel, so every dy of the channel reaches this x.
    flat = np.arange(case.x.size).reshape(case.x.shape)
    own = (flat[:, channel] if case.x.ndim > 1 else flat).reshape(-1)
    normalised, here, m = (_channel(case, channel) - mean) / std, own == flat_index(at, case.x.shape), len(own)
    n_here = float(normalised[here][0])
    terms = dy_terms(case, indices(own, case.x.shape), (here - 1 / m - normalised * n_here / m) * (scale / std))
    dy = terms.columns["dy"]
    size = np.abs(dy).mean() + np.abs(dy * normalised).mean() * abs(n_here) + abs(float(dy[here][0]))
    formula = f"dx = the sum over the {m} values of the channel of dy * ((1 where here) - 1 / {m} - n n_here / {m}) * {title}"
    steps = (step, f"n = (x - mean) / std, n_here = {number(n_here)} at {place(case.bottom_names[0], at)}")
    return case.gradient(at, formula, terms, steps=steps, size=float(size) * abs(scale / std))


@explains_weight(BatchNorm, BN, CuDNNBatchNorm)
def of_normalisation(case: Case[BatchNorm] | Case[BN], at: Index) -> Explanation:
    layer = case.layer
    name = layer.weight_names[case.number]
    if name not in ("scale", "slope", "bias", "shift"):
        raise case.error(f"blob {case.number} ({name}) is a statistic, which has no gradient")
    if isinstance(layer, BN) and layer.frozen:
        raise case.error(f"blob {case.number} ({name}) has no gradient: {layer.param_block[0]} {{ frozen: true }}")
    channel = flat_index(at, layer.blobs[case.number].shape)
    flat = channel_of(case.x.shape, channel)
    if name in ("bias", "shift"):
        return summed(case, at, flat, None, f"d{name} = the sum of dy over the channel")
    mean, _, std, source = _statistics(case, channel)
    values, step = (_channel(case, channel) - mean) / std, f"mean {number(mean)}, std {number(std)}: {source}"
    formula = f"d{name} = the sum over the channel of dy * (x - mean) / sqrt(variance + eps)"
    return summed(case, at, flat, values, formula, "(x - mean) / std", step)


def _neighbours(layer: LRN, shape: Index, at: Index) -> Array:
    """Return the index (K, 4) of every element in the sum around `at`."""
    half = layer.size // 2
    spans = [range(at[0], at[0] + 1)]
    for axis in (1, 2, 3):
        near = axis == 1 if len(layer.axes) == 1 else axis > 1  # ACROSS_CHANNELS sums along C, WITHIN_CHANNEL over H and W
        reach = half if near else 0
        spans.append(range(max(at[axis] - reach, 0), min(at[axis] + reach + 1, shape[axis])))
    return np.stack(np.meshgrid(*spans, indexing="ij"), axis=-1).reshape(-1, 4)


def _lrn_scale(layer: LRN, x: Array, at: Index) -> float:
    """Return k + alpha * the sum of x^2 around `at`; layer.alpha includes the division by the number of neighbours."""
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
    terms = dy_terms(case, index, factor, "dy_j/dx")
    formula = (
        "dx = the sum over the neighbours j of dy_j * dy_j/dx\n"
        "dy_j/dx = (scale^-beta where j is here) - 2 alpha beta x x_j scale_j^(-beta - 1)"
    )
    return case.gradient(at, formula, terms, size=size * max(layer.beta, 1))


def _along(shape: Index, at: Index, axis: int) -> Array:
    """Return the index (length, axes) of every element of the line through `at` along an axis."""
    index = np.tile(np.array(at), (shape[axis], 1))
    index[:, axis] = np.arange(len(index))
    return index


def _softmax_line(case: Case[Softmax | SoftmaxWithLoss], at: Index) -> tuple[int, Array]:
    """Return the axis of a softmax, and the line through `at` along it."""
    axis = case.layer.param.softmax_param.axis % case.x.ndim
    return axis, _along(case.x.shape, at, axis)


@explains(Softmax)
def softmax(case: Case[Softmax | SoftmaxWithLoss], at: Index) -> Explanation:
    """Explain the first bottom's softmax, which is also SoftmaxWithLoss's second top."""
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
    terms = dy_terms(case, index, y[k] * ((np.arange(len(y)) == k) - y), "dy_k/dx")
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
    return case.gradient(at, "dx = dy * x / y", dy_term(case, there, factor, "x / y"))


def _group(case: Case[MVN], flat: int) -> Array:
    """Return the flat indices of the numbers that are normalised together with the number at `flat`."""
    shape, axes = case.y.shape, case.layer.axes
    at = np.unravel_index(flat, shape)
    own: Array = np.arange(case.y.size).reshape(shape)[at[: axes[0]]].reshape(-1)
    return own


def _moments(case: Case[MVN], own: Array) -> tuple[Array, float, float, str]:
    """Return the group's x (T,) in float64, its mean, its divisor, and the step as text."""
    x, param = case.x.reshape(-1)[own].astype(np.float64), case.layer.param.mvn_param
    mean, scale = float(x.mean()), 1.0
    what = "image" if param.across_channels else "map"
    text = f"the mean of the {len(x)} numbers of the {what} is {number(mean)}"
    if param.normalize_variance:
        variance = float(x.var())
        scale = variance**0.5 + param.eps
        text += f", their variance {number(variance)}; sqrt({number(variance)}) + {number(param.eps)} = {number(scale)}"
    return x, mean, scale, text


@explains(MVN)
def mvn(case: Case[MVN], at: Index) -> Explanation:
    flat = flat_index(at, case.y.shape)
    own = _group(case, flat)
    values, mean, scale, text = _moments(case, own)
    x, divides = float(case.x.reshape(-1)[flat]), case.layer.param.mvn_param.normalize_variance
    computed = (x - mean) / scale
    divided = f" / {number(scale)}" if divides else ""
    steps = (text, f"y = ({number(x)} - {signed(mean)}){divided} = {number(computed)}")
    formula = "y = (x - mean) / (sqrt(variance) + eps)" if divides else "y = x - mean"
    size = abs(x) + np.abs(values).mean()  # the absolute terms, including the mean's
    return case.function(at, formula, computed, SHARE * float(size) / scale, *steps)


@explains_gradient(MVN)
def mvn_gradient(case: Case[MVN], at: Index) -> Explanation:
    flat = flat_index(at, case.x.shape)
    own = _group(case, flat)
    x, mean, scale, text = _moments(case, own)
    divides, here, m = case.layer.param.mvn_param.normalize_variance, own == flat, len(own)
    y = (x - mean) / scale if divides else np.zeros(m)
    y_here = float(y[here][0])
    dy = case.dy[0].reshape(-1)[own].astype(np.float64)
    terms = dy_terms(case, indices(own, case.y.shape), (here - 1 / m - y * y_here / m) / scale)
    along = f" - y y_here / {m}) / {number(scale)}" if divides else ")"
    formula = f"dx = the sum over the {m} numbers of dy * ((1 where here) - 1 / {m}{along}"
    steps = (text, f"y_here = {number(y_here)}") if divides else (text,)
    size = abs(float(dy[here][0])) + np.abs(dy).mean() + np.abs(dy * y).mean() * abs(y_here)
    # y has the rounding error of x - mean.
    size += (np.abs(dy).mean() * abs(y_here) + np.abs(dy * y).mean()) * (np.abs(x).max() + abs(mean)) / scale * divides
    return case.gradient(at, formula, terms, steps=steps, size=float(size) / scale)


def _length(case: Case[Normalize], flat: int) -> tuple[Array, float, Terms, str]:
    """Return the flat indices of the numbers in the length n for the number at `flat`; n, its terms, and its step as text."""
    layer, every = case.layer, by_channel(np.arange(case.x.size).reshape(case.x.shape))
    n, _, position = np.unravel_index(flat, every.shape)
    whole = not layer.by_type and layer.param.norm_param.across_spatial
    own = every[n].reshape(-1) if whole else every[n, :, position]
    x = case.x.reshape(-1)[own].astype(np.float64)
    by_size = layer.by_type and layer.param.normalize_param.normalize_type == "L1"
    eps = LEAST if layer.by_type else float(layer.param.norm_param.eps)
    product, title = (np.abs(x), "|x|") if by_size else (np.square(x), "x^2")
    terms = Terms.of(case.bottom_names[0], indices(own, case.x.shape), {"x": x}, product, title)
    total = terms.total() + eps
    length = total if by_size else total**0.5
    root = "" if by_size else f", its root {number(length)}"
    return own, length, terms, f"n: the sum of {title} and eps {number(eps)} is {number(total)}{root}"


def _scales(case: Case[Normalize], flat: Array) -> Array:
    """Return the scale (T,) of the numbers at `flat` (T,)."""
    if not case.layer.blobs:
        return np.ones(len(flat))
    _, channel, _ = np.unravel_index(flat, by_channel(case.x).shape)
    scale = case.layer.blobs[0].read_data().reshape(-1).astype(np.float64)
    found: Array = scale[channel if scale.size > 1 else np.zeros(len(flat), int)]
    return found


@explains(Normalize)
def normalize(case: Case[Normalize], at: Index) -> Explanation:
    if case.number:  # n (N, 1, ...)
        shape = by_channel(case.x).shape
        image, position = np.unravel_index(flat_index(at, case.tops[1].shape), (shape[0], shape[2]))
        flat = flat_index((image, 0, position), shape)
        _, length, terms, step = _length(case, flat)
        return case.function(at, "n, by which x is divided", length, SHARE * length, step, terms=terms)
    flat = flat_index(at, case.y.shape)
    _, length, terms, step = _length(case, flat)
    x, scale = float(case.x.reshape(-1)[flat]), float(_scales(case, np.array([flat]))[0])
    computed, scaled = scale * x / length, bool(case.layer.blobs)
    times = f"{number(scale)} * " * scaled
    steps = (step, f"y = {times}{signed(x) if scaled else number(x)} / {number(length)} = {number(computed)}")
    formula = f"y = {'scale * ' * scaled}x / n, n = the length of the numbers that x is normalised with"
    return case.function(at, formula, computed, SHARE * abs(computed), *steps, terms=terms)


@explains_gradient(Normalize)
def normalize_gradient(case: Case[Normalize], at: Index) -> Explanation:
    flat = flat_index(at, case.x.shape)
    own, length, _, step = _length(case, flat)
    layer, x, here = case.layer, case.x.reshape(-1)[own].astype(np.float64), own == flat
    x_here, scales = float(x[here][0]), _scales(case, own)
    by_size = layer.by_type and layer.param.normalize_param.normalize_type == "L1"
    slope = float(np.sign(x_here)) if by_size else x_here / length  # dn / dx here
    dy = case.dy[0].reshape(-1)[own].astype(np.float64)
    terms = dy_terms(case, indices(own, case.y.shape), scales * (here / length - x * slope / length**2), "dy/dx")
    size = float(np.abs(dy * scales) @ (here / length + np.abs(x * slope) / length**2))
    if layer.by_type and layer.param.normalize_param.bp_norm and len(case.tops) > 1:
        place_of = np.unravel_index(flat, by_channel(case.x).shape)
        index = flat_index((place_of[0], place_of[2]), (len(case.x), by_channel(case.x).shape[2]))
        of_n = dy_terms(case, indices(np.array([index]), case.tops[1].shape), np.array([slope]), "dy/dx", 1)
        terms = Terms.joined([terms, of_n])
        size += of_n.size()
    steps = (step, f"dn/dx at {place(case.bottom_names[0], at)} is {number(slope)}")
    times = "scale * " * bool(layer.blobs)
    formula = f"dx = the sum over the numbers of n of dy * {times}((1 where here) / n - x dn/dx / n^2)"
    return case.gradient(at, formula, terms, steps=steps, size=size)


@explains_weight(Normalize)
def of_normalize(case: Case[Normalize], at: Index) -> Explanation:
    x, param = by_channel(case.x).astype(np.float64), case.layer.param.norm_param
    flat = channel_of(case.x.shape, at[0]) if at else np.arange(case.x.size)
    unit = (x / lengths(x, param.eps, param.across_spatial)).reshape(-1)
    return summed(case, at, flat, unit[flat], "dscale = the sum of dy * x / n over all x that it multiplies", "x / n")
