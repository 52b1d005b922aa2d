"""Pooling explained: the pixels that a window reads, and the windows that read a pixel."""

from __future__ import annotations

from itertools import product

import numpy as np

from minicaffe.layers.pool.pooling_loops import LOWEST
from minicaffe.layers.pool.pooling_methods import max_pool_places
from minicaffe.layers.pool.pooling_windows import PoolAxis
from minicaffe.layers.pooling import AVE, MAX, Pooling
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
    if layer.method != MAX:
        raise case.error("explain covers MAX and AVE pooling, not STOCHASTIC")
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
    else:
        raise case.error("explain covers MAX and AVE pooling, not STOCHASTIC")
    index = np.array([(n, c, i, j) for i, j in windows], int).reshape(-1, 4)
    terms = sent(case, index, case.dy[0][tuple(index.T)], np.array(factors))
    return case.gradient(at, formula, terms, steps=steps)


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
    cut = f", clipped to the map [{clipped[0]}, {clipped[1]})" if clipped != (start, end) else ""
    return f"{name}: from {begins}, kernel {axis.kernel}: [{start}, {end}){cut}"
