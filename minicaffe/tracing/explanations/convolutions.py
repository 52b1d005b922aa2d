"""Convolution and Deconvolution explained: the pixels that a window reads, and the windows that read a pixel."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict, replace

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.conv.convolution import Convolution, DepthwiseConvolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.registry import explains, explains_gradient

from .case import Case, sent
from .explanation import Explanation
from .terms import Index, Terms


@explains(Convolution, DepthwiseConvolution)
def convolution(case: Case[Convolution], at: Index) -> Explanation:
    return _sum(case, at, True, "the bias + the sum over channels and taps of weight * x")


@explains(Deconvolution)
def deconvolution(case: Case[Convolution], at: Index) -> Explanation:
    return _sum(case, at, False, "the bias + the sum over the pixels x whose kernel reaches this one of weight * x")


@explains_gradient(Convolution, DepthwiseConvolution)
def convolution_gradient(case: Case[Convolution], at: Index) -> Explanation:
    return _gradient(case, at, False, "dx = the sum over the windows that read x of dy * weight")


@explains_gradient(Deconvolution)
def deconvolution_gradient(case: Case[Convolution], at: Index) -> Explanation:
    return _gradient(case, at, True, "dx = the sum over the pixels that x's kernel reaches of dy * weight")


def _sum(case: Case[Convolution], at: Index, reads: bool, text: str) -> Explanation:
    layer, given = case.layer, case.bottoms[case.number]
    index, weight, steps = _connected(layer, given.shape, at, reads, layer.channels, layer.num_output)
    padding = ~_inside(index, given.shape)
    x = np.where(padding, 0, given[tuple(index.T * ~padding)]).astype(np.float64)  # padding is 0
    with np.errstate(invalid="ignore", over="ignore"):
        product = np.where(padding, 0, x * weight)
    terms = Terms.of(case.bottom_names[case.number], index, {"x": x, "weight": weight}, product)
    terms = replace(terms, padding=padding if padding.any() else None)
    bias = float(layer.blobs[1].read_data()[at[layer.axis]]) if len(layer.blobs) > 1 else None
    sizes = ", ".join(
        f"{name} {'x'.join(map(str, value))}"
        for name, value in asdict(layer.window).items()
        if name == "kernel" or any(v != (name != "pad") for v in value)
    )
    steps = (f"window: {sizes}", *_padding_text(layer, padding), *steps) if layer.spatial_axes else steps
    return case.sum(at, f"y = {text}", terms, bias=bias, steps=steps)


def _inside(index: Array, shape: Index) -> Array:
    """Which (T,) of the places index (T, axes) an array of this shape has."""
    return np.asarray(((index >= 0) & (index < np.array(shape))).all(axis=1))


def _padding_text(layer: Convolution, padding: Array) -> tuple[str, ...]:
    """How many taps of the window lie on padding, if any do."""
    taps = math.prod(layer.window.kernel[: layer.spatial_axes])
    count = int(padding.sum()) * taps // max(len(padding), 1)
    return (f"{count} of the {taps} taps lie on padding, where x is 0",) if count else ()


def _gradient(case: Case[Convolution], at: Index, reads: bool, formula: str) -> Explanation:
    layer, dy = case.layer, case.dy[case.number]
    index, weight, steps = _connected(layer, dy.shape, at, reads, layer.num_output, layer.channels)
    inside = _inside(index, dy.shape)  # a Deconvolution's top is cropped by its pad
    index, weight = index[inside], weight[inside]
    terms = sent(case, index, dy[tuple(index.T)], weight, "weight", case.number)
    return case.gradient(at, formula, terms, steps=steps)


def _connected(
    layer: Convolution, shape: Index, at: Index, reads: bool, others: int, own: int
) -> tuple[Array, Array, tuple[str, ...]]:
    """What weights connect with the element `at`: index (T, axes) into an array of `shape`, weights (T,), the group as text.

    reads: `at` is a window that reads the elements; otherwise a pixel that they read. others, own: the numbers of channels of
    the elements and of the array of `at`.
    """
    index, taps = _places(layer, shape, at, reads)
    channel, per_group = at[layer.axis], others // layer.group
    group = channel // (own // layer.group)
    channels = np.arange(group * per_group, (group + 1) * per_group)
    text = f"group {group} of {layer.group}: channels {group * per_group} to {group * per_group + per_group - 1}"
    every = np.repeat(channels, len(index))
    index, taps = (np.tile(array, (len(channels), 1)) for array in (index, taps))
    # Weights are (channel of windows, channel of pixels in its group, ...); a Deconvolution's windows are its inputs.
    pair = (channel, every - group * per_group) if reads else (every, channel % (own // layer.group))
    weight = layer.blobs[0].read_data()[pair + tuple(taps.T)]
    return np.insert(index, layer.axis, every, axis=1), weight, (text,) if layer.group > 1 else ()


def _places(layer: Convolution, shape: Index, at: Index, reads: bool) -> tuple[Array, Array]:
    """Pixels (T, axes without C) that the window `at` reads, also on padding around the map, or windows that read the pixel
    `at`, and their taps."""
    axis, window = layer.axis, layer.window
    here, sizes = at[axis + 1 :], shape[axis + 1 :]
    found = []
    for tap in itertools.product(*map(range, window.kernel[: len(sizes)])):
        if reads:
            place = [o * s - p + t * d for o, s, p, t, d in zip(here, window.stride, window.pad, tap, window.dilation)]
            at_a_stride = True
        else:
            offset = [v + p - t * d for v, p, t, d in zip(here, window.pad, tap, window.dilation)]
            place = [o // s for o, s in zip(offset, window.stride)]
            at_a_stride = all(o % s == 0 for o, s in zip(offset, window.stride))
        # a window reads padding too; no pixel has a window that is not there
        if at_a_stride and (reads or all(0 <= v < n for v, n in zip(place, sizes))):
            found.append((*at[:axis], *place, *tap))
    rows = np.array(found, int).reshape(len(found), axis + 2 * len(sizes))
    return rows[:, : axis + len(sizes)], rows[:, axis + len(sizes) :]
