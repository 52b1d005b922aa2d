"""The gradient in one element of a learnable blob explained: the terms of the sum that backward adds to the blob's diff."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.layers.conv.convolution import Convolution, DepthwiseConvolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.deformable_convolution import DeformableConvolution, ModulatedDeformableConvolution
from minicaffe.layers.conv.inner_product import LEAST_SQUARE, Embed, InnerProduct
from minicaffe.layers.data.input import Parameter
from minicaffe.layers.elementwise.channels import by_channel
from minicaffe.layers.elementwise.scale import Bias, Scale
from minicaffe.layers.forks.deepdetect import SparseInnerProduct
from minicaffe.layers.neuron.relu import PReLU
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.bn import BN
from minicaffe.layers.norm.normalize import Normalize, lengths
from minicaffe.registry import explains_weight

from .case import Case, sent
from .deformed import sampled, times_mask
from .explanation import Explanation
from .normalisations import normalised_channel
from .terms import Index, Terms, indices
from .text import number


def _summed(
    case: Case[Layer], at: Index, flat: Array, factor: Array | None, formula: str, title: str = "x", *steps: str
) -> Explanation:
    """The sum over the elements flat (T,) of the first top of dy * factor (T,); without a factor, of dy."""
    index, dy = indices(flat, case.y.shape), case.dy[0].reshape(-1)[flat]
    if factor is None:
        terms = Terms.of(case.top_names[0], index, {}, dy, "dy")
    else:
        terms = sent(case, index, dy, factor, title)
    return case.gradient(at, formula, terms, steps=steps)


def _channel(shape: Index, channel: int) -> Array:
    """The flat indices (T,) of a channel of a blob (N, C, ...)."""
    flat: Array = by_channel(np.arange(int(np.prod(shape))).reshape(shape))[:, channel].reshape(-1)
    return flat


@explains_weight(Convolution, DepthwiseConvolution, Deconvolution)
def of_convolution(case: Case[Convolution], at: Index) -> Explanation:
    if case.number == 1:
        terms = Terms.joined([_bias_terms(case, i, at[0]) for i in range(len(case.tops))])
        return case.gradient(at, "dbias = the sum of dy over all places of the channel", terms)
    turned = isinstance(case.layer, Deconvolution)
    terms = Terms.joined([_tap_terms(case, i, at, turned) for i in range(len(case.tops))])
    if turned:
        return case.gradient(at, "dweight = the sum over the pixels x of dy, where the tap puts weight * x, * x", terms)
    formula = "dweight = the sum over the windows of dy * x, the x that the window's tap reads"
    return case.gradient(at, formula, terms, steps=_tap_steps(case, at, terms))


def _bias_terms(case: Case[Convolution], top: int, channel: int) -> Terms:
    axis, shape = case.layer.axis, case.tops[top].shape
    flat = np.moveaxis(np.arange(case.tops[top].size).reshape(shape), axis, 0)[channel].reshape(-1)
    return Terms.of(case.top_names[top], indices(flat, shape), {}, case.dy[top].reshape(-1)[flat], "dy")


def _channels(layer: Convolution, at: Index, turned: bool) -> tuple[int, int]:
    """The bottom's and the top's channel that a weight connects. turned: of a Deconvolution."""
    outer, inner = (layer.channels, layer.num_output) if turned else (layer.num_output, layer.channels)
    other = at[0] // (outer // layer.group) * (inner // layer.group) + at[1]
    return (at[0], other) if turned else (other, at[0])


def _tap_terms(case: Case[Convolution], number: int, at: Index, turned: bool) -> Terms:
    """dy * x of every pair that the weight `at` connects in bottom and top `number`; without those outside a turned top."""
    layer, x, dy = case.layer, case.bottoms[number], case.dy[number]
    axis, window, (from_, to) = layer.axis, layer.window, _channels(layer, at, turned)
    x, dy = np.take(x, from_, axis), np.take(dy, to, axis)
    windows, pixels = (x, dy) if turned else (dy, x)
    index = np.indices(windows.shape).reshape(windows.ndim, -1)
    place = index.copy()
    for k, tap in enumerate(at[2:]):
        place[axis + k] = index[axis + k] * window.stride[k] - window.pad[k] + tap * window.dilation[k]
    inside = ((place >= 0) & (place < np.array(pixels.shape).reshape(-1, 1))).all(axis=0)
    own = windows[tuple(index)]
    other = np.where(inside, pixels[tuple(place * inside)], 0)
    values, where, gradient = (own, place, other) if turned else (other, index, own)
    terms = sent(case, np.insert(where, axis, to, axis=0).T, gradient, values, "x", number)
    kept = inside if turned else np.ones_like(inside)
    terms = replace(terms, product=np.where(inside, terms.product, 0))
    return terms.only(kept) if turned else replace(terms, padding=~inside)


def _tap_steps(case: Case[Convolution], at: Index, terms: Terms) -> tuple[str, ...]:
    layer, window = case.layer, case.layer.window
    if not layer.spatial_axes:
        return ()
    names = ("row", "column") if layer.spatial_axes == 2 else tuple(f"place {k}" for k in range(layer.spatial_axes))
    read = ", ".join(
        f"{name} {window.stride[k]} * {name} - {window.pad[k]} + {tap * window.dilation[k]}"
        for k, (name, tap) in enumerate(zip(names, at[2:]))
    )
    channel, _ = _channels(layer, at, False)
    steps = (f"it reads channel {channel} of {case.bottom_names[0]}: of the window at {', '.join(names)} the x at {read}",)
    count = 0 if terms.padding is None else int(terms.padding.sum())
    return (*steps, f"in {count} of {len(terms)} windows the tap lies on padding, where x is 0") if count else steps


@explains_weight(DeformableConvolution, ModulatedDeformableConvolution)
def of_deformable_convolution(case: Case[DeformableConvolution], at: Index) -> Explanation:
    if case.number == 1:
        return _summed(case, at, _channel(case.y.shape, at[0]), None, "dbias = the sum of dy over all places of the channel")
    layer, kernel = case.layer, case.layer.blobs[0].shape[2:]
    channel = at[0] // (layer.num_output // layer.group) * (layer.channels // layer.group) + at[1]
    tap = int(np.ravel_multi_index(at[2:], kernel))
    samples = np.concatenate([sampled(case, n, channel, tap) for n in range(len(case.x))])
    title = f"sample{times_mask(case)}"
    formula = f"dweight = the sum over the windows of dy * {title}: what the window's moved tap takes of x"
    return _summed(case, at, _channel(case.y.shape, at[0]), samples, formula, title)


@explains_weight(InnerProduct, SparseInnerProduct)
def of_inner_product(case: Case[InnerProduct], at: Index) -> Explanation:
    layer, outputs = case.layer, case.y.shape[-1]
    m, k = (at[0], 0) if case.number == 1 else (at[1], at[0]) if layer.transpose else (at[0], at[1])
    flat = np.arange(case.y.size // outputs) * outputs + m
    if case.number == 1:
        return _summed(case, at, flat, None, "dbias = the sum of dy over the items")
    x = case.x.reshape(len(flat), -1).astype(np.float64)
    if not layer.normalize:
        return _summed(case, at, flat, x[:, k], "dweight = the sum over the items of dy * x")
    row = layer.weight_matrix(layer.blobs[0].read_data())[m].astype(np.float64)
    length = float(np.sqrt(row @ row + LEAST_SQUARE))
    unit = row / length
    terms = sent(
        case, indices(flat, case.y.shape), case.dy[0].reshape(-1)[flat], (x[:, k] - unit[k] * (x @ unit)) / length, "dy/dweight"
    )
    size = np.abs(case.dy[0].reshape(-1)[flat]) @ (np.abs(x[:, k]) + np.abs(unit[k]) * (np.abs(x) @ np.abs(unit))) / length
    formula = "dweight = the sum over the items of dy * (x - u (u . x)) / length, u = the row of weights / length"
    return case.gradient(at, formula, terms, steps=(f"length {number(length)}, u here {number(unit[k])}",), size=float(size))


@explains_weight(Scale, Bias)
def of_lane(case: Case[Scale | Bias], at: Index) -> Explanation:
    layer = case.layer
    lane = int(np.ravel_multi_index(at, layer.blobs[case.number].shape)) if at else 0
    flat = np.arange(case.x.size).reshape(layer.split)[:, lane].reshape(-1)
    if layer.weight_names[case.number] == "bias":
        return _summed(case, at, flat, None, "dbias = the sum of dy over all x that it is added to")
    return _summed(case, at, flat, case.x.reshape(-1)[flat], "dscale = the sum of dy * x over all x that it multiplies")


@explains_weight(PReLU)
def of_prelu(case: Case[PReLU], at: Index) -> Explanation:
    flat = _channel(case.x.shape, at[0]) if at else np.arange(case.x.size)
    factor = np.minimum(case.x.reshape(-1)[flat], 0)
    return _summed(case, at, flat, factor, "dslope = the sum of dy * min(x, 0) over the channel", "min(x, 0)")


@explains_weight(Embed)
def of_embed(case: Case[Embed], at: Index) -> Explanation:
    wide = case.y.shape[-1]
    if case.number == 1:
        return _summed(case, at, np.arange(case.x.size) * wide + at[0], None, "dbias = the sum of dy over all numbers x")
    rows = np.flatnonzero(case.x.reshape(-1) == at[0])
    step = f"{len(rows)} of the {case.x.size} numbers of {case.bottom_names[0]} are {at[0]}"
    return _summed(case, at, rows * wide + at[1], None, "dweight = the sum of dy over the x that chose this row", "", step)


@explains_weight(Parameter)
def of_parameter(case: Case[Parameter], at: Index) -> Explanation:
    flat = np.array([int(np.ravel_multi_index(at, case.y.shape)) if at else 0])
    return _summed(case, at, flat, None, "dparameter = the dy of its copy")


@explains_weight(BatchNorm, BN)
def of_normalisation(case: Case[BatchNorm | BN], at: Index) -> Explanation:
    layer = case.layer
    name = layer.weight_names[case.number]
    if name not in ("scale", "slope", "bias", "shift"):
        raise case.error(f"blob {case.number} ({name}) is a statistic, which has no gradient")
    channel = int(np.ravel_multi_index(at, layer.blobs[case.number].shape))
    flat = _channel(case.x.shape, channel)
    if name in ("bias", "shift"):
        return _summed(case, at, flat, None, f"d{name} = the sum of dy over the channel")
    values, step = normalised_channel(case, flat, channel)
    formula = f"d{name} = the sum over the channel of dy * (x - mean) / sqrt(variance + eps)"
    return _summed(case, at, flat, values, formula, "(x - mean) / std", step)


@explains_weight(Normalize)
def of_normalize(case: Case[Normalize], at: Index) -> Explanation:
    x, param = by_channel(case.x).astype(np.float64), case.layer.param.norm_param
    flat = _channel(case.x.shape, at[0]) if at else np.arange(case.x.size)
    unit = (x / lengths(x, param.eps, param.across_spatial)).reshape(-1)
    return _summed(case, at, flat, unit[flat], "dscale = the sum of dy * x / n over all x that it multiplies", "x / n")
