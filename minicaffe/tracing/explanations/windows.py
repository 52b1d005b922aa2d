"""Convolution, Deconvolution and Pooling explained: the pixels that a window reads, and the windows that read a pixel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import islice, product
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.conv.convolution import Convolution, DepthwiseConvolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.pool.pooling import AVE, MAX, STOCHASTIC, Pooling
from minicaffe.layers.pool.pooling_methods import max_pool_places
from minicaffe.layers.pool.pooling_of_axes import PoolingOfAxes
from minicaffe.layers.pool.pooling_windows import LOWEST, PoolAxis, window_taps
from minicaffe.mode import TRAIN
from minicaffe.registry import explains, explains_gradient, explains_weight

from .explanation import Case, Explanation, MaxExplanation, dy_terms
from .terms import Index, Terms, indices, number, place


@explains(Convolution, DepthwiseConvolution, Deconvolution)
def convolution(case: Case[Convolution], at: Index) -> Explanation:
    layer, given, reads = case.layer, case.bottoms[case.number], not isinstance(case.layer, Deconvolution)
    index, weight, steps = _connected(layer, given.shape, at, reads, (layer.num_output, layer.channels))
    padding = ~_inside(index, given.shape)
    x = np.where(padding, 0, given[tuple(index.T * ~padding)]).astype(np.float64)
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
    over = "channels and taps" if reads else "the pixels x whose kernel reaches this one"
    return case.sum(at, f"y = the bias + the sum over {over} of weight * x", terms, bias=bias, steps=steps)


@explains_gradient(Convolution, DepthwiseConvolution, Deconvolution)
def convolution_gradient(case: Case[Convolution], at: Index) -> Explanation:
    layer, shape, reads = case.layer, case.dy[case.number].shape, isinstance(case.layer, Deconvolution)
    index, weight, steps = _connected(layer, shape, at, reads, (layer.channels, layer.num_output))
    inside = _inside(index, shape)  # a Deconvolution's top is cropped by its pad
    over = "the pixels that x's kernel reaches" if reads else "the windows that read x"
    terms = dy_terms(case, index[inside], weight[inside], "weight", case.number)
    return case.gradient(at, f"dx = the sum over {over} of dy * weight", terms, steps=steps)


def _inside(index: Array, shape: Index) -> Array:
    """Return a mask (T,) of the indices (T, axes) that lie inside an array of this shape."""
    return np.asarray(((index >= 0) & (index < np.array(shape))).all(axis=1))


def _padding_text(layer: Convolution, padding: Array) -> tuple[str, ...]:
    """Return a sentence on the number of the window's taps that lie on padding, if any do."""
    taps = math.prod(layer.window.kernel[: layer.spatial_axes])
    count = int(padding.sum()) * taps // max(len(padding), 1)
    return (f"{count} of the {taps} taps lie on padding, where x is 0",) if count else ()


def _connected(
    layer: Convolution, shape: Index, at: Index, reads: bool, channels: tuple[int, int]
) -> tuple[Array, Array, tuple[str, ...]]:
    """Return the elements that weights connect with the element `at`.

    They are given as the index (T, axes) into an array of `shape`, the weights (T,), and the group as text. reads: whether `at`
    is a window that reads the elements, instead of a pixel that they read. channels: the numbers of channels of the array of
    `at` and of the elements'.
    """
    index, taps = _places(layer, shape, at, reads)
    channel, (own, per_group) = at[layer.axis], (count // layer.group for count in channels)
    group = channel // own
    others = np.arange(group * per_group, (group + 1) * per_group)
    text = f"group {group} of {layer.group}: channels {group * per_group} to {group * per_group + per_group - 1}"
    every = np.repeat(others, len(index))
    index, taps = (np.tile(array, (len(others), 1)) for array in (index, taps))
    # Weights are (channel of windows, channel of pixels in its group, ...); a Deconvolution's windows are its inputs.
    pair = (channel, every - group * per_group) if reads else (every, channel % own)
    weight = layer.blobs[0].read_data()[pair + tuple(taps.T)]
    return np.insert(index, layer.axis, every, axis=1), weight, (text,) if layer.group > 1 else ()


def _places(layer: Convolution, shape: Index, at: Index, reads: bool) -> tuple[Array, Array]:
    """Return the pixels (T, axes without C) that the window `at` reads, also on padding, and their taps.

    If not reads, return the windows that read the pixel `at`, and their taps.
    """
    axes = zip(layer.window.reads(), at[layer.axis + 1 :], shape[layer.axis + 1 :])
    ends = [list(zip(axis.taps(i), itertools.count())) if reads else axis.readers(i, count) for axis, i, count in axes]
    found = list(itertools.product(*ends))
    pairs, items = (
        np.array(found, int).reshape(len(found), len(ends), 2),
        np.tile(np.array(at[: layer.axis], int), (len(found), 1)),
    )
    return np.hstack([items, pairs[:, :, 0]]), pairs[:, :, 1]


@explains_weight(Convolution, DepthwiseConvolution, Deconvolution)
def of_convolution(case: Case[Convolution], at: Index) -> Explanation:
    if case.number == 1:
        terms = Terms.joined([_bias_terms(case, i, at[0]) for i in range(len(case.tops))])
        return case.gradient(at, "dbias = the sum of dy over all places of the channel", terms)
    transposed = isinstance(case.layer, Deconvolution)
    terms = Terms.joined([_tap_terms(case, i, at, transposed) for i in range(len(case.tops))])
    if transposed:
        return case.gradient(at, "dweight = the sum over the pixels x of dy, where the tap puts weight * x, * x", terms)
    formula = "dweight = the sum over the windows of dy * x, the x that the window's tap reads"
    return case.gradient(at, formula, terms, steps=_tap_steps(case, at, terms))


def _bias_terms(case: Case[Convolution], top: int, channel: int) -> Terms:
    axis, shape = case.layer.axis, case.tops[top].shape
    flat = np.moveaxis(np.arange(case.tops[top].size).reshape(shape), axis, 0)[channel].reshape(-1)
    return Terms.of(case.top_names[top], indices(flat, shape), {}, case.dy[top].reshape(-1)[flat], "dy")


def _channels(layer: Convolution, at: Index, transposed: bool) -> tuple[int, int]:
    """Return the bottom's and the top's channel that a weight connects. transposed: whether the layer is a Deconvolution."""
    outer, inner = (layer.channels, layer.num_output) if transposed else (layer.num_output, layer.channels)
    other = at[0] // (outer // layer.group) * (inner // layer.group) + at[1]
    return (at[0], other) if transposed else (other, at[0])


def _tap_terms(case: Case[Convolution], number: int, at: Index, transposed: bool) -> Terms:
    """Return dy * x for every pair that the weight `at` connects in bottom and top `number`.

    If transposed, pairs outside the top are left out.
    """
    layer, axis, (from_, to) = case.layer, case.layer.axis, _channels(case.layer, at, transposed)
    x, dy = np.take(case.bottoms[number], from_, axis), np.take(case.dy[number], to, axis)
    windows, pixels = (x, dy) if transposed else (dy, x)
    index = np.indices(windows.shape).reshape(windows.ndim, -1).T
    place = index.copy()
    for k, (tap, reads) in enumerate(zip(at[2:], layer.window.reads()), axis):
        place[:, k] = np.array([reads.taps(i)[tap] for i in range(windows.shape[k])])[index[:, k]]
    inside = _inside(place, pixels.shape)
    if transposed:
        return dy_terms(case, np.insert(place[inside], axis, to, axis=1), x[tuple(index[inside].T)], "x", number)
    values = np.where(inside, x[tuple((place * inside[:, None]).T)], 0)
    terms = dy_terms(case, np.insert(index, axis, to, axis=1), values, "x", number)
    return replace(terms, product=np.where(inside, terms.product, 0), padding=~inside)


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


@explains(Pooling)
def pooling(case: Case[Pooling], at: Index) -> Explanation:
    layer, (i, j) = case.layer, at[2:]
    rows, columns = layer.rows, layer.columns
    steps: tuple[str, ...] = (_span_text("rows", rows, i), _span_text("columns", columns, j))
    terms = _pixels(case, at, [range(*_span(rows, i)), range(*_span(columns, j))])
    if layer.method == AVE:
        # BVLC's mean divides by the window clipped to the padded map, though only the part on the map is summed.
        size = int(rows.lengths(int)[i] * columns.lengths(int)[j])
        counted = "padding counted" if layer.counts_padding else "padding not counted"
        return case.sum(at, f"y = the sum over the window / its size, {counted}", terms, divisor=size, steps=steps)
    if layer.method == STOCHASTIC:
        return _drawn(case, at, terms, steps) if layer.phase == TRAIN else _expected(case, at, terms, steps)
    return _greatest(case, at, terms, steps, 2, f"h * {columns.size} + w")


@explains(PoolingOfAxes)
def pooling_of_axes(case: Case[PoolingOfAxes], at: Index) -> Explanation:
    layer, window, own_at = case.layer, case.layer.window, at[case.layer.axis + 1 :]
    taps = [axis.taps(i) for axis, i in zip(window.reads(), own_at)]
    terms = _pixels(case, at, [[tap for tap in own if 0 <= tap < size] for own, size in zip(taps, layer.spatial)])
    read = " x ".join(f"[{own[0]}, {own[-1]}]" + f" by {own.step}" * (own.step > 1) for own in taps)
    steps: tuple[str, ...] = (f"window: {read}, {len(terms)} of its {math.prod(window.kernel)} taps on the map",)
    if layer.param.pooling_param.pool == AVE:
        size = int(layer.divisors()[own_at])
        return case.sum(at, "y = the sum over the window / its taps before the padding's end", terms, divisor=size, steps=steps)
    return _greatest(case, at, terms, steps, layer.spatial_axes, "the flat index in the map")


def _pixels(case: Case[Any], at: Index, places: Sequence[Sequence[int]]) -> Terms:
    """Return the pixels of the map of the window `at` at these places on each axis, in row order, as terms."""
    pixels = np.array(list(product(*places)), int).reshape(-1, len(places))
    index = np.hstack([np.tile(np.array(at[: -len(places)], int), (len(pixels), 1)), pixels])
    return Terms.of(case.bottom_names[0], index, {}, case.x[tuple(index.T)].astype(np.float64), "x")


def _greatest(case: Case[Any], at: Index, terms: Terms, steps: tuple[str, ...], axes: int, flat: str) -> Explanation:
    """Explain MAX or its mask. axes: those of a map; flat: how the mask numbers its pixels."""
    # Caffe starts at -FLT_MAX and takes `>`: NaN never wins; argmax finds the first maximum
    values = terms.product
    winner = int(np.fmax(values, LOWEST).argmax()) if (values > LOWEST).any() else None
    if case.number == 1:
        where = -1 if winner is None else int(np.ravel_multi_index(terms.places[winner][-axes:], case.x.shape[-axes:]))
        steps = (*steps, f"the second top is {flat} of the first maximum")
        formula, computed = "mask = where the greatest x of the window is", float(case.tops[1].dtype.type(where))
    else:
        formula, computed = "y = the greatest x of the window", LOWEST if winner is None else values[winner]
    return MaxExplanation(formula=formula, computed=computed, terms=terms, winner=winner, steps=steps, **case.named(at))


@explains_gradient(Pooling)
def pooling_gradient(case: Case[Pooling], at: Index) -> Explanation:
    layer, (n, c, h, w) = case.layer, at
    rows, columns = layer.rows, layer.columns
    windows = list(product(_windows(rows, h), _windows(columns, w)))
    steps: tuple[str, ...] = (f"{len(windows)} windows read {place(case.bottom_names[0], at)} = {number(case.x[at])}",)
    if layer.method == AVE:
        sizes = np.multiply.outer(rows.lengths(float), columns.lengths(float))
        factors = [1 / sizes[window] for window in windows]
        formula = "dx = the sum over the windows that read x of dy / the window's size"
    elif layer.method == MAX:
        x = case.x[n, c]
        mask = max_pool_places(x, rows, columns, np.empty((rows.pooled, columns.pooled), x.dtype))
        windows = [window for window in windows if mask[window] == h * columns.size + w]
        factors = [1.0] * len(windows)
        formula = "dx = the sum of dy over the windows whose first maximum is x"
        steps = (*steps, f"it is the first maximum of {len(windows)} of them")
    elif layer.phase == TRAIN:
        windows = [window for window in windows if _drawn_pixel(case, (n, c, *window)) == (h, w)]
        factors = [1.0] * len(windows)
        formula = "dx = the sum of dy over the windows that drew x"
        steps = (*steps, f"{len(windows)} of them drew it in this run")
    else:
        return _expected_gradient(case, at, windows, steps)
    index = np.array([(n, c, i, j) for i, j in windows], int).reshape(-1, 4)
    terms = dy_terms(case, index, np.array(factors))
    return case.gradient(at, formula, terms, steps=steps)


@explains_gradient(PoolingOfAxes)
def pooling_of_axes_gradient(case: Case[PoolingOfAxes], at: Index) -> Explanation:
    layer, first = case.layer, case.layer.axis + 1
    axes = zip(layer.window.reads(), at[first:], layer.pooled)
    windows = list(product(*([i for i, _ in axis.readers(pixel, count)] for axis, pixel, count in axes)))
    steps: tuple[str, ...] = (f"{len(windows)} windows read {place(case.bottom_names[0], at)} = {number(case.x[at])}",)
    if layer.param.pooling_param.pool == AVE:
        factors = 1 / layer.divisors()
        formula = "dx = the sum over the windows that read x of dy / the window's size"
    else:
        mask = layer.first_maximum(case.x[at[:first]], np.empty(layer.pooled, case.x.dtype))
        factors = (mask == np.ravel_multi_index(at[first:], layer.spatial)).astype(float)
        windows = [window for window in windows if factors[window]]
        formula = "dx = the sum of dy over the windows whose first maximum is x"
        steps = (*steps, f"it is the first maximum of {len(windows)} of them")
    index = np.array([at[:first] + window for window in windows], int).reshape(-1, len(at))
    terms = dy_terms(case, index, np.array([factors[window] for window in windows]))
    return case.gradient(at, formula, terms, steps=steps)


def _drawn(case: Case[Pooling], at: Index, terms: Terms, steps: tuple[str, ...]) -> Explanation:
    """Explain STOCHASTIC in TRAIN: the value is the pixel that the run drew."""
    pixel = _drawn_pixel(case, at)
    source = at[:2] + pixel
    value = float(case.x[source]) if pixel else 0.0
    total = terms.total()
    chance = f", with the probability {number(value)} / {number(total)} = {number(value / total)}" if total > 0 else ""
    drew = f"this run drew {place(case.bottom_names[0], source)}{chance}" if pixel else "it drew none: 0"
    formula = "y = a pixel x of the window, drawn with probability x / the sum of x"
    return case.function(at, formula, value, 0.0, *steps, f"the sum of x is {number(total)}", drew, terms=terms)


def _drawn_pixel(case: Case[Pooling], at: Index) -> Index:
    """Return the row and column of the pixel that the run drew in the window `at`; () for none."""
    n, c, i, j = at
    tap = int(case.layer.drawn[n * case.x.shape[1] + c, i, j])
    if tap < 0:
        return ()
    (_, *windows), (_, *pixels) = next(islice(window_taps(case.layer.rows, case.layer.columns), tap, None))
    row, column = (p.start + (k - w.start) * p.step for k, w, p in zip((i, j), windows, pixels))
    return row, column


def _expected(case: Case[Pooling], at: Index, terms: Terms, steps: tuple[str, ...]) -> Explanation:
    """Explain STOCHASTIC in TEST: the value is the expectation."""
    total = terms.total()
    squares = Terms.of(terms.blobs[0], terms.places, {"x": terms.product}, np.square(terms.product), "x * x")
    formula = "y = the sum of x * x / the sum of x over the window: the mean of what TRAIN draws"
    if not total > 0:
        return case.function(at, formula, 0.0, 0.0, *steps, "the sum of x is not > 0: 0", terms=squares)
    found = case.sum(at, formula, squares, divisor=total, steps=steps)
    size = terms.size() / total  # the divisor has a rounding error too
    return replace(found, tolerance=found.tolerance * (1 + size))


def _expected_gradient(case: Case[Pooling], at: Index, windows: list[tuple[int, int]], steps: tuple[str, ...]) -> Explanation:
    n, c = at[:2]
    x, factors, sizes = float(case.x[at]), [], []
    for i, j in windows:
        (top, bottom), (left, right) = _span(case.layer.rows, i), _span(case.layer.columns, j)
        own = case.x[n, c, top:bottom, left:right].astype(np.float64)
        total, y = float(own.sum()), float(case.y[n, c, i, j])
        factors.append((2 * x - y) / total if total > 0 else 0.0)
        sizes.append((2 * abs(x) + abs(y)) * float(np.abs(own).sum()) / total**2 if total > 0 else 0.0)
    index = np.array([(n, c, i, j) for i, j in windows], int).reshape(-1, 4)
    formula = "dx = the sum over the windows that read x of dy * (2 x - y) / the sum of x"
    terms = dy_terms(case, index, np.array(factors))
    return case.gradient(at, formula, terms, steps=steps, size=4 * float(np.abs(terms.columns["dy"]) @ np.array(sizes)))


def _span(axis: PoolAxis, i: int) -> Index:
    """Return the ends of window i of a PoolAxis, clipped to the map."""
    start, end = axis.spans()
    first = max(int(start[i]), 0)
    return first, max(min(int(end[i]), axis.size), first)  # a window that lies in the padding is empty


def _windows(axis: PoolAxis, pixel: int) -> list[int]:
    """Return the windows of a PoolAxis that read a pixel."""
    return [i for i in range(axis.pooled) if pixel in range(*_span(axis, i))]


def _span_text(name: str, axis: PoolAxis, i: int) -> str:
    start, end = (int(v[i]) for v in axis.spans())
    begins = f"{i} * stride {axis.stride}" + (f" - pad {axis.pad}" if axis.pad else "") + f" = {start}"
    clipped = _span(axis, i)
    padded = (end - start) - (clipped[1] - clipped[0])
    cut = f", clipped to the map [{clipped[0]}, {clipped[1]}): {padded} on padding" if padded else ""
    return f"{name}: from {begins}, kernel {axis.kernel}: [{start}, {end}){cut}"
