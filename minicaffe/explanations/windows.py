"""Convolution, Deconvolution and Pooling explained: the pixels of a window, and the windows of a pixel."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from minicaffe.layers import pooling_methods
from minicaffe.layers.pooling import AVE, MAX

from .case import Array, Case, sent
from .explanation import Explanation, Index, MaxExplanation, Terms
from .text import number, place


def convolution(case: Case, at: Index) -> Explanation:
    layer, weight = case.layer, case.layer.blobs[0].read_data()
    m = at[layer.axis]
    index, taps = _reads(layer, case.bottoms[case.number].shape, at)
    channels, here = _group(layer, layer.channels, layer.num_output, m)
    index, taps = _with_channels(index, taps, channels, layer.axis)
    w = _weights(weight, m, taps[:, 0] - channels.start, taps)
    return _products(case, at, index, w, "the bias + the sum over channels and taps of weight * x", here, m)


def deconvolution(case: Case, at: Index) -> Explanation:
    layer, weight = case.layer, case.layer.blobs[0].read_data()
    m = at[layer.axis]
    index, taps = _lands(layer, case.bottoms[case.number].shape, at)
    channels, here = _group(layer, layer.channels, layer.num_output, m)
    index, taps = _with_channels(index, taps, channels, layer.axis)
    own = m % (layer.num_output // layer.group)
    w = _weights(weight, taps[:, 0], own, taps)
    text = "the bias + the sum over the pixels x whose kernel reaches this one of weight * x"
    return _products(case, at, index, w, text, here, m)


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


def deconvolution_gradient(case: Case, at: Index) -> Explanation:
    layer, weight = case.layer, case.layer.blobs[0].read_data()
    c = at[layer.axis]
    index, taps = _reads(layer, case.dy[case.number].shape, at)
    outputs, here = _group(layer, layer.num_output, layer.channels, c)
    index, taps = _with_channels(index, taps, outputs, layer.axis)
    w = _weights(weight, c, taps[:, 0] - outputs.start, taps)
    terms = sent(case, index, case.dy[case.number][tuple(index.T)], w, "weight", case.number)
    return case.gradient(at, "dx = the sum over the pixels that x's kernel reaches of dy * weight", terms, steps=here)


def _products(case: Case, at: Index, index: Array, weight: Array, text: str, steps: tuple[str, ...], m: int) -> Explanation:
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


# Pooling.


def pooling(case: Case, at: Index) -> Explanation:
    layer, (n, c, i, j) = case.layer, at
    rows, columns = layer.rows, layer.columns
    steps = tuple(_span_text(name, axis, k) for name, axis, k in (("rows", rows, i), ("columns", columns, j)))
    (top, bottom), (left, right) = _span(rows, i), _span(columns, j)
    h, w = np.mgrid[top:bottom, left:right].reshape(2, -1)
    values = case.x[n, c, h, w].astype(np.float64)
    index = np.column_stack([np.full(len(h), n), np.full(len(h), c), h, w])
    terms = Terms.of(case.bottom_names[0], index, {}, values, "x")
    if layer.method == AVE:
        size = int(rows.lengths(int)[i] * columns.lengths(int)[j])
        return case.sum(at, "y = the sum over the window / its size, padding counted", terms, divisor=size, steps=steps)
    if layer.method != MAX:
        raise case.error("explain covers MAX and AVE pooling, not STOCHASTIC")
    winner = int(np.fmax(values, pooling_methods.LOWEST).argmax()) if len(values) else None
    if winner is not None and not values[winner] > pooling_methods.LOWEST:
        winner = None
    if case.number == 1:
        where = -1 if winner is None else int(h[winner] * columns.size + w[winner])
        steps = (*steps, f"the second top is h * {columns.size} + w of the first of the greatest")
        formula, computed = "mask = where the greatest x of the window is", float(case.tops[1].dtype.type(where))
    else:
        formula, computed = "y = the greatest x of the window", pooling_methods.LOWEST if winner is None else values[winner]
    return MaxExplanation(formula=formula, computed=computed, terms=terms, winner=winner, steps=steps, **case.named(at))


def pooling_gradient(case: Case, at: Index) -> Explanation:
    layer, (n, c, h, w) = case.layer, at
    rows, columns = layer.rows, layer.columns
    windows = [
        (i, j)
        for i in range(rows.pooled)
        if _inside(h, _span(rows, i))
        for j in range(columns.pooled)
        if _inside(w, _span(columns, j))
    ]
    steps: tuple[str, ...] = (f"{len(windows)} windows read {place(case.bottom_names[0], at)} = {number(case.x[at])}",)
    if layer.method == AVE:
        sizes = np.multiply.outer(rows.lengths(float), columns.lengths(float))
        factors = [1 / sizes[window] for window in windows]
        formula = "dx = the sum over the windows that read x of dy / the window's size"
    elif layer.method == MAX:
        x = case.x[n, c]
        mask = pooling_methods.max_pool_mask(x, pooling_methods.max_pool(x, rows, columns), rows, columns)
        windows = [window for window in windows if mask[window] == h * columns.size + w]
        factors = [1.0] * len(windows)
        formula = "dx = the sum of dy of the windows in which x is the first of the greatest"
        steps = (*steps, f"it is the first of the greatest in {len(windows)} of them")
    else:
        raise case.error("explain covers MAX and AVE pooling, not STOCHASTIC")
    index = np.array([(n, c, i, j) for i, j in windows], int).reshape(-1, 4)
    terms = sent(case, index, case.dy[0][tuple(index.T)], np.array(factors))
    return case.gradient(at, formula, terms, steps=steps)


def _span(axis: Any, i: int) -> Index:
    """Window i of a PoolAxis, clipped to the map."""
    start, end = axis.spans()
    first = max(int(start[i]), 0)
    return first, max(min(int(end[i]), axis.size), first)


def _inside(pixel: int, span: Index) -> bool:
    return span[0] <= pixel < span[1]


def _span_text(name: str, axis: Any, i: int) -> str:
    start, end = (int(v[i]) for v in axis.spans())
    begins = f"{i} * stride {axis.stride}" + (f" - pad {axis.pad}" if axis.pad else "") + f" = {start}"
    clipped = _span(axis, i)
    cut = f", clipped to the map [{clipped[0]}, {clipped[1]})" if clipped != (start, end) else ""
    return f"{name}: from {begins}, kernel {axis.kernel}: [{start}, {end}){cut}"
