"""Copies explained: the element that Concat, Slice, Split, Reshape, Embed and the rearrangements copy.

Interp mixes up to four elements; Padding, Upsample and Unpooling put elements, or add them up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.layers.conv.inner_product import Embed
from minicaffe.layers.data.input import Parameter
from minicaffe.layers.forks.brocolli.brocolli_layers import Unsqueeze
from minicaffe.layers.pool.unpooling import AVE, MAX, Unpooling, Upsample
from minicaffe.layers.shape.concat import Concat, Slice
from minicaffe.layers.shape.crop import Padding
from minicaffe.layers.shape.interp import Interp, Taps
from minicaffe.layers.shape.items import Gather, Scatter
from minicaffe.layers.shape.rearranged import Permute, Rearranged, Reorg, Reverse, ShuffleChannel, Transpose
from minicaffe.layers.shape.reshape import Flatten, PixelShuffle, Reshape
from minicaffe.layers.shape.split import Split
from minicaffe.registry import explains, explains_gradient, explains_weight

from .explanation import Case, Explanation, dy_term, dy_terms, summed
from .terms import Index, Terms, flat_index, indices, number, place


def copied(case: Case[Layer], at: Index, source: int, index: Index, step: str) -> Explanation:
    value = float(case.bottoms[source][index])
    copied = f"y = {place(case.bottom_names[source], index)} = {number(value)}"
    return case.function(at, "y = one x, copied", value, 0.0, step, copied)


def _copied_to(case: Case[Layer], at: Index, top: int, index: Index, step: str) -> Explanation:
    return case.gradient(at, "dx = the dy of its copy", dy_term(case, index, 1.0, top=top), steps=(step,), size=0.0)


def _moved(at: Index, axis: int, by: int) -> Index:
    return (*at[:axis], at[axis] + by, *at[axis + 1 :])


@explains(Concat)
def concat(case: Case[Concat], at: Index) -> Explanation:
    axis = case.layer.axis
    ends = np.cumsum([b.shape[axis] for b in case.bottoms])
    # right: an end belongs to the next bottom; empty bottoms are skipped
    source = int(np.searchsorted(ends, at[axis], side="right"))
    start = int(ends[source]) - case.bottoms[source].shape[axis]
    step = f"along axis {axis}, {start} to {ends[source] - 1} are bottom {source}, {case.bottom_names[source]}"
    return copied(case, at, source, _moved(at, axis, -start), step)


@explains_gradient(Concat)
def concat_gradient(case: Case[Concat], at: Index) -> Explanation:
    axis = case.layer.axis
    start = sum(b.shape[axis] for b in case.bottoms[: case.number])
    step = f"along axis {axis}, bottom {case.number} begins at {start} of the top"
    return _copied_to(case, at, 0, _moved(at, axis, start), step)


@explains(Slice)
def slice_(case: Case[Slice], at: Index) -> Explanation:
    axis = case.layer.axis
    start = [0, *case.layer.points][case.number]
    step = f"along axis {axis}, top {case.number}, {case.top_names[case.number]}, begins at {start} of the bottom"
    return copied(case, at, 0, _moved(at, axis, start), step)


@explains_gradient(Slice)
def slice_gradient(case: Case[Slice], at: Index) -> Explanation:
    axis, starts = case.layer.axis, [0, *case.layer.points]
    top = int(np.searchsorted(starts, at[axis], side="right")) - 1
    step = f"along axis {axis}, it is in top {top}, {case.top_names[top]}, which begins at {starts[top]}"
    return _copied_to(case, at, top, _moved(at, axis, -starts[top]), step)


@explains(Split)
def split(case: Case[Layer], at: Index) -> Explanation:
    return copied(case, at, 0, at, "every top of a Split is its bottom")


@explains_gradient(Split)
def split_gradient(case: Case[Layer], at: Index) -> Explanation:
    dy = np.array([diff[at] for diff in case.dy], np.float64)
    terms = Terms(tuple(case.top_names), np.arange(len(dy)), np.array([at] * len(dy)).reshape(len(dy), -1), {}, dy, "dy")
    return case.gradient(at, "dx = the sum of dy of all tops", terms)


@explains(Gather, Scatter)
def gather(case: Case[Gather], at: Index) -> Explanation:
    return copied(case, at, case.number, at, "in one process every top of a Gather or a Scatter is the bottom of its place")


@explains_gradient(Gather, Scatter)
def gather_gradient(case: Case[Gather], at: Index) -> Explanation:
    return _copied_to(case, at, case.number, at, f"top {case.number}, {case.top_names[case.number]}, is this bottom")


def _same_place(at: Index, shape: Index, other: Index) -> tuple[Index, str]:
    """Return the index into the other shape of the same element in memory, and a sentence on it."""
    # Blobs are in row order, so the flat index is the same in both shapes.
    flat = flat_index(at, shape)
    return tuple(int(i) for i in np.unravel_index(flat, other)), f"both are number {flat} of the same memory"


@explains(Flatten, Reshape, Unsqueeze)
def reshaped(case: Case[Layer], at: Index) -> Explanation:
    index, step = _same_place(at, case.y.shape, case.x.shape)
    return copied(case, at, 0, index, f"{step}: no number moves, only the shape changes")


@explains_gradient(Flatten, Reshape, Unsqueeze)
def reshaped_gradient(case: Case[Layer], at: Index) -> Explanation:
    return _copied_to(case, at, 0, *_same_place(at, case.x.shape, case.y.shape))


@explains(PixelShuffle, subclasses=True)
@explains(Permute, Reorg, Reverse, ShuffleChannel, Transpose)
def rearranged(case: Case[Rearranged], at: Index) -> Explanation:
    source = int(_sources(case)[at])
    step = f"y's numbers are x's in another order; this one is number {source} of x's memory"
    return copied(case, at, 0, tuple(int(i) for i in np.unravel_index(source, case.x.shape)), step)


@explains_gradient(PixelShuffle, subclasses=True)
@explains_gradient(Permute, Reorg, Reverse, ShuffleChannel, Transpose)
def rearranged_gradient(case: Case[Rearranged], at: Index) -> Explanation:
    sources = _sources(case)
    flat = int(np.flatnonzero(sources == flat_index(at, case.x.shape))[0])
    step = f"y's numbers are x's in another order; this one is number {flat} of y's memory"
    return _copied_to(case, at, 0, tuple(int(i) for i in np.unravel_index(flat, sources.shape)), step)


def _sources(case: Case[Rearranged]) -> NDArray[np.int64]:
    """Return the flat index into x of each number of y."""
    places: NDArray[np.int64] = case.layer.arranged(np.arange(case.x.size).reshape(case.x.shape)).reshape(case.y.shape)
    return places


@explains(Embed)
def embed(case: Case[Embed], at: Index) -> Explanation:
    layer, row = case.layer, int(case.x[at[:-1]])
    bias = float(layer.blobs[1].read_data()[at[-1]]) if len(layer.blobs) > 1 else None
    value = layer.blobs[0].read_data()[row, at[-1]]
    terms = Terms.of(f"{layer.name}.0", np.array([(row, at[-1])]), {}, value, "weight")
    step = f"x = {place(case.bottom_names[0], at[:-1])} = {row} chooses the row"
    return case.sum(at, "y = weight[x]" + " + bias" * (bias is not None), terms, bias=bias, steps=(step,))


@explains(Parameter)
def parameter(case: Case[Parameter], at: Index) -> Explanation:
    value = float(case.layer.blobs[0].read_data()[at])
    return case.function(at, "y = the layer's blob", value, 0.0, f"y = {place(f'{case.layer.name}.0', at)} = {number(value)}")


@explains_weight(Embed)
def of_embed(case: Case[Embed], at: Index) -> Explanation:
    wide = case.y.shape[-1]
    if case.number == 1:
        return summed(case, at, np.arange(case.x.size) * wide + at[0], None, "dbias = the sum of dy over all numbers x")
    rows = np.flatnonzero(case.x.reshape(-1) == at[0])
    step = f"{len(rows)} of the {case.x.size} numbers of {case.bottom_names[0]} are {at[0]}"
    return summed(case, at, rows * wide + at[1], None, "dweight = the sum of dy over the x that chose this row", "", step)


@explains_weight(Parameter)
def of_parameter(case: Case[Parameter], at: Index) -> Explanation:
    flat = np.array([flat_index(at, case.y.shape)])
    return summed(case, at, flat, None, "dparameter = the dy of its copy")


def _taps_of(taps: Taps, first: int, i: int, dtype: np.dtype[Any]) -> list[tuple[int, float]]:
    """Return (place, share) of each place of the bottom that place i reads along an axis."""
    before, after = taps.shares(dtype)
    places = [(int(taps.before[i]), float(before[i])), (int(taps.after[i]), float(after[i]))]
    return [(place + first, share) for place, share in (places if taps.size != taps.out else [(i, 1.0)])]


def _product(axes: Sequence[list[tuple[int, float]]], at: Index) -> tuple[Array, Array]:
    """Return the index (T, 4) and the share (T,) of each pair of a row and a column in the map of `at`. axes: both lists."""
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
    return case.gradient(at, formula, dy_terms(case, index, share, "share"))


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
    terms = dy_terms(case, places, np.ones(len(places)))
    return case.gradient(at, "dx = the dy of its copy, 0 where it is cut off", terms)


def _targets(case: Case[Unpooling | Upsample]) -> Array:
    """Return the flat indices in the top (K, P) to which each number of the bottom goes, in order; -1 for none."""
    layer, flat = case.layer, np.arange(case.y.size).reshape(-1, *case.y.shape[-2:])
    parts = []
    if len(case.bottoms) == 2 and _replaces(case):
        mask: Array | None = case.bottoms[1]
    else:
        mask = layer.first.read_data() if isinstance(layer, Unpooling) and layer.method == MAX else None
    if mask is not None:
        index = mask.reshape(-1, math.prod(case.x.shape[-2:])).astype(int)
        parts.append(np.take_along_axis(flat.reshape(len(flat), -1), index, axis=1))
    elif isinstance(layer, Upsample):
        parts += [flat[:, row :: layer.scale[0], column :: layer.scale[1]] for row, column in np.ndindex(layer.scale)]
    else:
        for (rows, columns), (to_rows, to_columns) in layer.windows(case.x):
            parts.append(np.full((len(flat), *case.x.shape[-2:]), -1))
            parts[-1][:, rows, columns] = flat[:, to_rows, to_columns]
    targets: Array = np.array([part.reshape(-1) for part in parts], int).reshape(len(parts), case.x.size).T
    return targets


def _replaces(case: Case[Unpooling | Upsample]) -> bool:
    return isinstance(case.layer, Upsample) or case.layer.method == MAX


def _divisors(case: Case[Unpooling | Upsample], goes_to: Array) -> Array:
    """Return the divisor of each number of the bottom: for AVE, how many places it goes to; otherwise 1."""
    of_window = isinstance(case.layer, Unpooling) and case.layer.method == AVE
    return np.maximum((goes_to >= 0).sum(axis=1), 1) if of_window else np.ones(len(goes_to))


@explains(Unpooling, Upsample)
def put(case: Case[Unpooling | Upsample], at: Index) -> Explanation:
    goes_to = _targets(case)
    here = flat_index(at, case.y.shape)
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
    here = flat_index(at, case.x.shape)
    places = goes_to[here][goes_to[here] >= 0]
    if _replaces(case):
        places = places[[not (goes_to[here + 1 :] == place).any() for place in places]]
    factor = np.full(len(places), 1 / _divisors(case, goes_to)[here])
    terms = dy_terms(case, indices(places, case.y.shape), factor)
    return case.gradient(at, "dx = the sum of dy / divisor where this x is in the top", terms)
