"""Concat, Slice, Split, Flatten, Reshape, Embed, Parameter and the rearrangements explained: which element is copied."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minicaffe.layer import Layer
from minicaffe.layers.conv.inner_product import Embed
from minicaffe.layers.data.input import Parameter
from minicaffe.layers.shape.concat import Concat, Slice
from minicaffe.layers.shape.items import Gather, Scatter
from minicaffe.layers.shape.rearranged import Permute, Rearranged, Reorg, Reverse, ShuffleChannel, Transpose
from minicaffe.layers.shape.reshape import Flatten, PixelShuffle, Reshape
from minicaffe.layers.shape.split import Split
from minicaffe.registry import explains, explains_gradient

from .case import Case, one
from .explanation import Explanation
from .terms import Index, Terms
from .text import number, place


def copied(case: Case[Layer], at: Index, source: int, index: Index, step: str) -> Explanation:
    value = float(case.bottoms[source][index])
    copied = f"y = {place(case.bottom_names[source], index)} = {number(value)}"
    return case.function(at, "y = one x, copied", value, 0.0, step, copied)


def _copied_to(case: Case[Layer], at: Index, top: int, index: Index, step: str) -> Explanation:
    return case.gradient(at, "dx = the dy of its copy", one(case, index, 1.0, top=top), steps=(step,), size=0.0)


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
    """The index into the other shape of the same memory."""
    # Blobs are in row order, so the flat index is the same in both shapes.
    flat = int(np.ravel_multi_index(at, shape)) if at else 0
    return tuple(int(i) for i in np.unravel_index(flat, other)), f"both are number {flat} of the same memory"


@explains(Flatten, Reshape)
def reshaped(case: Case[Layer], at: Index) -> Explanation:
    index, step = _same_place(at, case.y.shape, case.x.shape)
    return copied(case, at, 0, index, f"{step}: no number moves, only the shape changes")


@explains_gradient(Flatten, Reshape)
def reshaped_gradient(case: Case[Layer], at: Index) -> Explanation:
    return _copied_to(case, at, 0, *_same_place(at, case.x.shape, case.y.shape))


@explains(Permute, PixelShuffle, Reorg, Reverse, ShuffleChannel, Transpose)
def rearranged(case: Case[Rearranged], at: Index) -> Explanation:
    source = int(_sources(case)[at])
    step = f"y's numbers are x's in another order; this one is number {source} of x's memory"
    return copied(case, at, 0, tuple(int(i) for i in np.unravel_index(source, case.x.shape)), step)


@explains_gradient(Permute, PixelShuffle, Reorg, Reverse, ShuffleChannel, Transpose)
def rearranged_gradient(case: Case[Rearranged], at: Index) -> Explanation:
    sources = _sources(case)
    flat = int(np.flatnonzero(sources == np.ravel_multi_index(at, case.x.shape))[0])
    step = f"y's numbers are x's in another order; this one is number {flat} of y's memory"
    return _copied_to(case, at, 0, tuple(int(i) for i in np.unravel_index(flat, sources.shape)), step)


def _sources(case: Case[Rearranged]) -> NDArray[np.int64]:
    """Of each number of y, its place in x's memory."""
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
