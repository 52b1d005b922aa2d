"""Convolution and Deconvolution explained: the pixels of a window, and the windows of a pixel."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from minicaffe.layers.convolution import Convolution
from minicaffe.layers.deconvolution import Deconvolution
from minicaffe.layers.depthwise_convolution import DepthwiseConvolution
from minicaffe.registry import explains, explains_gradient

from .case import Array, Case, sent
from .explanation import Explanation
from .terms import Index, Terms


@explains(Convolution, DepthwiseConvolution)
def convolution(case: Case, at: Index) -> Explanation:
    layer, weight = case.layer, case.layer.blobs[0].read_data()
    m = at[layer.axis]
    index, taps = _reads(layer, case.bottoms[case.number].shape, at)
    channels, here = _group(layer, layer.channels, layer.num_output, m)
    index, taps = _with_channels(index, taps, channels, layer.axis)
    w = _weights(weight, m, taps[:, 0] - channels.start, taps)
    return _products(case, at, index, w, "the bias + the sum over channels and taps of weight * x", here, m=m)


@explains(Deconvolution)
def deconvolution(case: Case, at: Index) -> Explanation:
    layer, weight = case.layer, case.layer.blobs[0].read_data()
    m = at[layer.axis]
    index, taps = _lands(layer, case.bottoms[case.number].shape, at)
    channels, here = _group(layer, layer.channels, layer.num_output, m)
    index, taps = _with_channels(index, taps, channels, layer.axis)
    own = m % (layer.num_output // layer.group)
    w = _weights(weight, taps[:, 0], own, taps)
    text = "the bias + the sum over the pixels x whose kernel reaches this one of weight * x"
    return _products(case, at, index, w, text, here, m=m)


@explains_gradient(Convolution, DepthwiseConvolution)
def convolution_gradient(case: Case, at: Index) -> Explanation:
    layer, weight = case.layer, case.layer.blobs[0].read_data()
    c = at[layer.axis]
    index, taps = _lands(layer, case.dy[case.number].shape, at)
    outputs, here = _group(layer, layer.num_output, layer.channels, c)
    index, taps = _with_channels(index, taps, outputs, layer.axis)
    own = c % (layer.channels // layer.group)
    w = _weights(weight, taps[:, 0], own, taps)
    terms = sent(case, index, case.dy[case.number][tuple(index.T)], w, "weight", case.number)
    return case.gradient(at, "dx = the sum over the windows that read x of dy * weight", terms, steps=here)


@explains_gradient(Deconvolution)
def deconvolution_gradient(case: Case, at: Index) -> Explanation:
    layer, weight = case.layer, case.layer.blobs[0].read_data()
    c = at[layer.axis]
    index, taps = _reads(layer, case.dy[case.number].shape, at)
    outputs, here = _group(layer, layer.num_output, layer.channels, c)
    index, taps = _with_channels(index, taps, outputs, layer.axis)
    w = _weights(weight, c, taps[:, 0] - outputs.start, taps)
    terms = sent(case, index, case.dy[case.number][tuple(index.T)], w, "weight", case.number)
    return case.gradient(at, "dx = the sum over the pixels that x's kernel reaches of dy * weight", terms, steps=here)


def _products(case: Case, at: Index, index: Array, weight: Array, text: str, steps: tuple[str, ...], *, m: int) -> Explanation:
    x = case.bottoms[case.number][tuple(index.T)].astype(np.float64)
    terms = Terms.of(case.bottom_names[case.number], index, {"x": x, "weight": weight}, x * weight)
    layer = case.layer
    bias = float(layer.blobs[1].read_data()[m]) if len(layer.blobs) > 1 else None
    window = layer.window
    sizes = ", ".join(
        f"{name} {'x'.join(map(str, value))}"
        for name, value in vars(window).items()
        if name == "kernel" or any(v != (name != "pad") for v in value)
    )
    steps = (f"window: {sizes}", *steps) if layer.spatial_axes else steps
    return case.sum(at, f"y = {text}", terms, bias=bias, steps=steps)


def _weights(weight: Array, first: Array | int, second: Array | int, taps: Array) -> Array:
    """weight (M, C, *kernel) at channels first and second (T,) or one, and taps (T, 1 + axes), the first column left out."""
    places = (first, second, *taps[:, 1:].T)
    picked: Array = weight[places]
    return picked


def _group(layer: Any, others: int, own: int, channel: int) -> tuple[range, tuple[str, ...]]:
    """The channels on the other side that go with one of `own` channels."""
    group, size = channel // (own // layer.group), others // layer.group
    text = f"group {group} of {layer.group}: channels {group * size} to {group * size + size - 1}"
    return range(group * size, group * size + size), (text,) if layer.group > 1 else ()


def _reads(layer: Any, shape: Index, at: Index) -> tuple[Array, Array]:
    """The places of the padded map that a window at `at` reads, and their taps: only those on the map. Axes without C."""
    axis, window = layer.axis, layer.window
    first, windows, spatial = at[:axis], at[axis + 1 :], shape[axis + 1 :]
    found = []
    for tap in itertools.product(*map(range, window.kernel[: len(spatial)])):
        pixel = [o * s - p + t * d for o, s, p, t, d in zip(windows, window.stride, window.pad, tap, window.dilation)]
        if all(0 <= v < n for v, n in zip(pixel, spatial)):
            found.append((*first, *pixel, *tap))
    return _split(found, axis, len(spatial))


def _lands(layer: Any, shape: Index, at: Index) -> tuple[Array, Array]:
    """The windows that read the pixel `at`, and the taps they read it with. Axes without C."""
    axis, window = layer.axis, layer.window
    first, pixels, windows = at[:axis], at[axis + 1 :], shape[axis + 1 :]
    found = []
    for tap in itertools.product(*map(range, window.kernel[: len(windows)])):
        offset = [v + p - t * d for v, p, t, d in zip(pixels, window.pad, tap, window.dilation)]
        place = [o // s for o, s in zip(offset, window.stride)]
        if all(o % s == 0 and 0 <= v < n for o, s, v, n in zip(offset, window.stride, place, windows)):
            found.append((*first, *place, *tap))
    return _split(found, axis, len(windows))


def _split(found: list[Index], axis: int, spatial: int) -> tuple[Array, Array]:
    rows = np.array(found, int).reshape(len(found), axis + 2 * spatial)
    return rows[:, : axis + spatial], rows[:, axis + spatial :]


def _with_channels(index: Array, taps: Array, channels: range, axis: int) -> tuple[Array, Array]:
    """Every place (T, axes without C) in every channel: index (C * T, axes) and (channel, tap...) (C * T, ...)."""
    every = np.repeat(np.array(channels, int), len(index))
    index, taps = np.tile(index, (len(channels), 1)), np.tile(taps, (len(channels), 1))
    return np.insert(index, axis, every, axis=1), np.column_stack([every, taps])
