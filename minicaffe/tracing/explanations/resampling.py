"""Interp explained: which four numbers are mixed; Padding, Upsample and Unpooling: which are put or added up where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.pool.unpooling import AVE, MAX, Unpooling, Upsample
from minicaffe.layers.shape.crop import Padding
from minicaffe.layers.shape.interp import Interp, Taps
from minicaffe.registry import explains, explains_gradient

from .case import Case, sent
from .copies import copied
from .explanation import Explanation
from .terms import Index, Terms, indices


def _taps_of(taps: Taps, first: int, i: int, dtype: np.dtype[Any]) -> list[tuple[int, float]]:
    """The places of the bottom that place i reads on an axis, and their shares."""
    before, after = taps.shares(dtype)
    places = [(int(taps.before[i]), float(before[i])), (int(taps.after[i]), float(after[i]))]
    return [(place + first, share) for place, share in (places if taps.size != taps.out else [(i, 1.0)])]


def _product(axes: Sequence[list[tuple[int, float]]], at: Index) -> tuple[Array, Array]:
    """The index (T, 4) and the share (T,) of each pair of a row and a column (axes), in the map of `at`."""
    rows, columns = axes
    pairs = [((*at[:2], r, c), a * b) for r, a in rows for c, b in columns]
    return np.array([index for index, _ in pairs], int).reshape(-1, 4), np.array([share for _, share in pairs])


@explains(Interp)
def interp(case: Case[Interp], at: Index) -> Explanation:
    layer, first = case.layer, -case.layer.pads[0]
    axes = zip((layer.rows, layer.columns), at[2:], strict=True)
    index, share = _product([_taps_of(taps, first, i, layer.dtype) for taps, i in axes], at)
    x = case.x[tuple(index.T)].astype(np.float64)
    terms = Terms.of(case.bottom_names[0], index, {"x": x, "share": share}, x * share)
    return case.sum(at, "y = the sum over up to four neighbours of share * x", terms)


@explains_gradient(Interp)
def interp_gradient(case: Case[Interp], at: Index) -> Explanation:
    layer, first = case.layer, -case.layer.pads[0]
    readers = [
        [(i, share) for i in range(taps.out) for place, share in _taps_of(taps, first, i, layer.dtype) if place == here]
        for taps, here in zip((layer.rows, layer.columns), at[2:], strict=True)
    ]
    index, share = _product(readers, at)
    formula = "dx = the sum over the elements of the top that read it of dy * share"
    return case.gradient(at, formula, sent(case, index, case.dy[0][tuple(index.T)], share, "share"))


@explains(Padding)
def padding(case: Case[Padding], at: Index) -> Explanation:
    index = tuple(i - move for i, move in zip(at, (0, 0, *case.layer.pads[:1] * 2)))
    if all(0 <= i < length for i, length in zip(index, case.x.shape)):
        return copied(case, at, 0, index, f"the map begins at {case.layer.pads[0]} of the top")
    return case.function(at, "y = 0 around the map", 0.0)


@explains_gradient(Padding)
def padding_gradient(case: Case[Padding], at: Index) -> Explanation:
    index = tuple(i + move for i, move in zip(at, (0, 0, *case.layer.pads[:1] * 2)))
    inside = all(0 <= i < length for i, length in zip(index, case.y.shape))
    places = np.array([index] if inside else [], int).reshape(-1, 4)
    terms = sent(case, places, case.dy[0][tuple(places.T)], np.ones(len(places)))
    return case.gradient(at, "dx = the dy of its copy, 0 where it is cut off", terms)


def _targets(case: Case[Unpooling | Upsample]) -> Array:
    """For each number of the bottom, in order, the flat index in the top (K, P) of every pixel that it goes to; -1: none."""
    x, y, layer = case.x.shape, case.y.shape, case.layer
    flat = np.arange(case.y.size).reshape(-1, *y[-2:])
    if len(case.bottoms) == 2 and getattr(layer, "method", MAX) == MAX:
        index = case.bottoms[1].reshape(len(flat), -1).astype(int)
        return np.take_along_axis(flat.reshape(len(flat), -1), index, axis=1).reshape(-1, 1)
    put_once = isinstance(layer, Unpooling) and layer.method == MAX
    kernel, stride = (
        (((1, 1) if put_once else layer.kernel), layer.stride) if isinstance(layer, Unpooling) else (layer.scale,) * 2
    )
    padded = np.full((len(flat), *(n * s + k for n, s, k in zip(x[-2:], stride, kernel))), -1)
    height, width = (min(n, m) for n, m in zip(padded.shape[1:], y[-2:]))
    padded[:, :height, :width] = flat[:, :height, :width]
    starts = [np.arange(n) * s for n, s in zip(x[-2:], stride)]
    if put_once:
        starts = [np.minimum(start, n - 1) for start, n in zip(starts, y[-2:])]
    rows, columns = (np.add.outer(start, np.arange(k)) for start, k in zip(starts, kernel))
    return padded[:, rows[:, None, :, None], columns[None, :, None, :]].reshape(-1, kernel[0] * kernel[1])


def _replaces(case: Case[Unpooling | Upsample]) -> bool:
    return isinstance(case.layer, Upsample) or case.layer.method == MAX


def _divisors(case: Case[Unpooling | Upsample], goes_to: Array) -> Array:
    """What each number of the bottom is divided by."""
    of_window = isinstance(case.layer, Unpooling) and case.layer.method == AVE
    return np.maximum((goes_to >= 0).sum(axis=1), 1) if of_window else np.ones(len(goes_to))


@explains(Unpooling, Upsample)
def put(case: Case[Unpooling | Upsample], at: Index) -> Explanation:
    goes_to = _targets(case)
    here = int(np.ravel_multi_index(at, case.y.shape))
    found = np.flatnonzero((goes_to == here).any(axis=1))
    if _replaces(case):
        found = found[-1:]
    if not len(found):
        return case.function(at, "y = 0: no x goes here", 0.0)
    index, divisor = indices(found, case.x.shape), _divisors(case, goes_to)[found]
    if _replaces(case):
        return copied(case, at, 0, tuple(int(i) for i in index[0]), "the last x that goes here")
    x = case.x[tuple(index.T)].astype(np.float64)
    terms = Terms.of(case.bottom_names[0], index, {"x": x, "divided by": divisor}, x / divisor)
    return case.sum(at, "y = the sum over the windows that cover it of x / divisor", terms)


@explains_gradient(Unpooling, Upsample)
def put_gradient(case: Case[Unpooling | Upsample], at: Index) -> Explanation:
    goes_to = _targets(case)
    here = int(np.ravel_multi_index(at, case.x.shape))
    places = goes_to[here][goes_to[here] >= 0]
    if _replaces(case):
        places = places[[not (goes_to[here + 1 :] == place).any() for place in places]]
    factor = np.full(len(places), 1 / _divisors(case, goes_to)[here])
    terms = sent(case, indices(places, case.y.shape), case.dy[0].reshape(-1)[places], factor)
    return case.gradient(at, "dx = the sum of dy / divisor where this x is in the top", terms)
