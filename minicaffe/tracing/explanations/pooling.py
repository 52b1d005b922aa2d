"""Pooling explained: the pixels that a window reads, and the windows that read a pixel."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice, product

import numpy as np

from minicaffe.layers.pool.pooling import AVE, MAX, STOCHASTIC, Pooling
from minicaffe.layers.pool.pooling_methods import max_pool_places
from minicaffe.layers.pool.pooling_windows import LOWEST, PoolAxis, window_taps
from minicaffe.mode import TRAIN
from minicaffe.registry import explains, explains_gradient

from .case import Case, sent
from .explanation import Explanation, MaxExplanation
from .terms import Index, Terms
from .text import number, place


@explains(Pooling)
def pooling(case: Case[Pooling], at: Index) -> Explanation:
    layer, (n, c, i, j) = case.layer, at
    rows, columns = layer.rows, layer.columns
    steps: tuple[str, ...] = (_span_text("rows", rows, i), _span_text("columns", columns, j))
    (top, bottom), (left, right) = _span(rows, i), _span(columns, j)
    h, w = np.mgrid[top:bottom, left:right].reshape(2, -1)  # in row order: argmax finds the first maximum as Caffe does
    values = case.x[n, c, h, w].astype(np.float64)
    index = np.column_stack([np.full(len(h), n), np.full(len(h), c), h, w])
    terms = Terms.of(case.bottom_names[0], index, {}, values, "x")
    if layer.method == AVE:
        # BVLC's mean divides by the window clipped to the padded map, though only the part on the map is summed.
        size = int(rows.lengths(int)[i] * columns.lengths(int)[j])
        counted = "padding counted" if layer.counts_padding else "padding not counted"
        return case.sum(at, f"y = the sum over the window / its size, {counted}", terms, divisor=size, steps=steps)
    if layer.method == STOCHASTIC:
        return _drawn(case, at, terms, steps) if layer.phase == TRAIN else _expected(case, at, terms, steps)
    # Caffe starts at -FLT_MAX and takes `>`: NaN never wins
    winner = int(np.fmax(values, LOWEST).argmax()) if (values > LOWEST).any() else None
    if case.number == 1:
        where = -1 if winner is None else int(h[winner] * columns.size + w[winner])
        steps = (*steps, f"the second top is h * {columns.size} + w of the first maximum")
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
    terms = sent(case, index, case.dy[0][tuple(index.T)], np.array(factors))
    return case.gradient(at, formula, terms, steps=steps)


def _drawn(case: Case[Pooling], at: Index, terms: Terms, steps: tuple[str, ...]) -> Explanation:
    """STOCHASTIC in TRAIN: the pixel that the run drew."""
    pixel = _drawn_pixel(case, at)
    source = at[:2] + pixel
    value = float(case.x[source]) if pixel else 0.0
    total = terms.total()
    chance = f", with the probability {number(value)} / {number(total)} = {number(value / total)}" if total > 0 else ""
    drew = f"this run drew {place(case.bottom_names[0], source)}{chance}" if pixel else "it drew none: 0"
    formula = "y = a pixel x of the window, drawn with probability x / the sum of x"
    return case.function(at, formula, value, 0.0, *steps, f"the sum of x is {number(total)}", drew, terms=terms)


def _drawn_pixel(case: Case[Pooling], at: Index) -> Index:
    """Row and column of the pixel that the window at drew; () for none."""
    n, c, i, j = at
    tap = int(case.layer.drawn[n * case.x.shape[1] + c, i, j])
    if tap < 0:
        return ()
    (_, *windows), (_, *pixels) = next(islice(window_taps(case.layer.rows, case.layer.columns), tap, None))
    row, column = (p.start + (k - w.start) * p.step for k, w, p in zip((i, j), windows, pixels))
    return row, column


def _expected(case: Case[Pooling], at: Index, terms: Terms, steps: tuple[str, ...]) -> Explanation:
    """STOCHASTIC in TEST: the expectation."""
    total = terms.total()
    squares = Terms.of(terms.blobs[0], terms.places, {"x": terms.product}, np.square(terms.product), "x * x")
    formula = "y = the sum of x * x / the sum of x over the window: the mean of what TRAIN draws"
    if not total > 0:
        return case.function(at, formula, 0.0, 0.0, *steps, "the sum of x is not > 0: 0", terms=squares)
    found = case.sum(at, formula, squares, divisor=total, steps=steps)
    size = terms.size() / total  # what the divisor is off by
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
    dy = case.dy[0][tuple(index.T)]
    formula = "dx = the sum over the windows that read x of dy * (2 x - y) / the sum of x"
    terms = sent(case, index, dy, np.array(factors))
    return case.gradient(at, formula, terms, steps=steps, size=4 * float(np.abs(dy) @ np.array(sizes)) if sizes else 0.0)


def _span(axis: PoolAxis, i: int) -> Index:
    """Window i of a PoolAxis, clipped to the map."""
    start, end = axis.spans()
    first = max(int(start[i]), 0)
    return first, max(min(int(end[i]), axis.size), first)  # a window that lies in the padding is empty


def _windows(axis: PoolAxis, pixel: int) -> list[int]:
    """The windows of a PoolAxis that read a pixel."""
    return [i for i in range(axis.pooled) if pixel in range(*_span(axis, i))]


def _span_text(name: str, axis: PoolAxis, i: int) -> str:
    start, end = (int(v[i]) for v in axis.spans())
    begins = f"{i} * stride {axis.stride}" + (f" - pad {axis.pad}" if axis.pad else "") + f" = {start}"
    clipped = _span(axis, i)
    padded = (end - start) - (clipped[1] - clipped[0])
    cut = f", clipped to the map [{clipped[0]}, {clipped[1]}): {padded} on padding" if padded else ""
    return f"{name}: from {begins}, kernel {axis.kernel}: [{start}, {end}){cut}"
