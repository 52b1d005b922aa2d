"""Operators that join, cut, reorder and reshape."""

from __future__ import annotations

import itertools

import numpy as np

from .builder import Builder, imports, refuse_others
from .node import Node, RefusedError, Shape


@imports("Concat")
def concat(b: Builder, node: Node) -> list[str]:
    names = [name for name in node.inputs if 0 not in b.shape(name)]
    blobs, axis = [b.blob(name) for name in names], node.attributes["axis"] % len(b.shape(node.inputs[0]))
    return blobs if len(blobs) == 1 else [b("Concat", blobs, axis=axis)]


@imports("Split")
def split(b: Builder, node: Node) -> list[str]:
    shape, count = b.shape(node.inputs[0]), len(node.outputs)
    axis = node.get("axis", 0) % len(shape)
    if count == 1:
        return [b.blob(node.inputs[0])]
    sizes = [b.shape(name)[axis] for name in node.outputs]
    points = list(itertools.accumulate(sizes[:-1]))
    return b.several("Slice", [b.blob(node.inputs[0])], tops=count, axis=axis, slice_point=points)


@imports("Slice")
def slice_(b: Builder, node: Node) -> list[str]:
    """A Slice for each axis; a step along height and width is a convolution with kernels of one 1."""
    shape = b.shape(node.inputs[0])
    starts, ends = b.numbers(node, 1, "starts") or [], b.numbers(node, 2, "ends") or []
    axes = b.numbers(node, 3, "axes") or list(range(len(starts)))
    steps = b.numbers(node, 4, "steps") or [1] * len(starts)
    x, strides = b.blob(node.inputs[0]), {}
    for given, axis in zip(zip(starts, ends, steps, strict=True), [axis % len(shape) for axis in axes], strict=True):
        start, end, step = slice(*given).indices(shape[axis])
        if step < 1 or (step > 1 and (axis < 2 or len(shape) != 4)) or start >= end:
            raise RefusedError(f"{':'.join(map(str, given))} along axis {axis} of {shape}")
        x = b.cut(x, shape, axis, start, end)
        shape = (*shape[:axis], end - start, *shape[axis + 1 :])
        strides[axis] = step
    if max(strides.values(), default=1) == 1:
        return [x]
    ones = np.ones((shape[1], 1, 1, 1), np.float32)
    stride = [strides.get(2, 1), strides.get(3, 1)]
    return [
        b("Convolution", [x], [ones], num_output=len(ones), group=len(ones), kernel_size=[1], stride=stride, bias_term=False)
    ]


@imports("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshape(b: Builder, node: Node) -> list[str]:
    old, new = b.shape(node.inputs[0]), b.shape(node.outputs[0])
    target = b.numbers(node, 1, "shape") or [] if node.op == "Reshape" else []
    free = target.index(-1) if -1 in target else 0 if node.op == "Flatten" else None
    return [b.reshaped(b.blob(node.inputs[0]), old, new, free)]


@imports("Transpose")
def transpose(b: Builder, node: Node) -> list[str]:
    shape = b.shape(node.inputs[0])
    return [permuted(b, b.blob(node.inputs[0]), node.get("perm", list(range(len(shape)))[::-1]))]


def permuted(b: Builder, x: str, order: list[int]) -> str:
    return x if order == sorted(order) else b("Permute", [x], order=order)


@imports("minicaffe.ShuffleChannel")
def shuffle(b: Builder, node: Node) -> list[str]:
    return [b("ShuffleChannel", [b.blob(node.inputs[0])], group=node.attributes["group"])]


@imports("DepthToSpace", "SpaceToDepth")
def blocks(b: Builder, node: Node) -> list[str]:
    """A Reshape that splits axes, a Permute, and a Reshape that joins them."""
    (n, c, h, w), s = b.shape(node.inputs[0]), node.attributes["blocksize"]
    if node.op == "SpaceToDepth":
        split, order = (n, c, h // s, s, w // s, s), [0, 3, 5, 1, 2, 4]
    elif node.get("mode", "DCR") == "DCR":
        split, order = (n, s, s, c // s**2, h, w), [0, 3, 4, 1, 5, 2]
    else:
        split, order = (n, c // s**2, s, s, h, w), [0, 1, 4, 2, 5, 3]
    x = b.reshaped(b.blob(node.inputs[0]), (n, c, h, w), split)
    y = b("Permute", [x], order=order)
    return [b.reshaped(y, tuple(split[i] for i in order), b.shape(node.outputs[0]))]


@imports("Pad")
def pad(b: Builder, node: Node) -> list[str]:
    """Zeros around each map; a Padding layer has as many on both axes, so that some may be cut off again."""
    refuse_others(node, mode="constant")
    shape, rank = b.shape(node.inputs[0]), len(b.shape(node.inputs[0]))
    value = node.get("value", 0.0) if not node.input(2) else float(b.constant(node.inputs[2]).reshape(-1)[0])
    begin, end = pads_by_axis(b, node, rank)
    if any(begin[:2] + end[:2]) or (rank != 4 and any(begin + end)):
        raise RefusedError(f"pads {begin} before and {end} after x of shape {shape} (Padding pads height and width)")
    if min(b.shape(node.outputs[0])) < 1:
        raise RefusedError(f"pads {begin} before and {end} after x of shape {shape} leave nothing")
    if value and max(begin + end) > 0:
        raise RefusedError(f"it pads with {value:g} (Padding with 0)")
    x, size = _zeros_around(b, b.blob(node.inputs[0]), shape, begin, end)
    for axis in (2, 3):
        first, last = size[axis][0] - begin[axis], size[axis][0] + shape[axis] + end[axis]
        whole = tuple(length for _, length in size)
        x = b.cut(x, whole, axis, first, last)
        size[axis] = 0, last - first
    return [x]


def pads_by_axis(b: Builder, node: Node, rank: int) -> tuple[list[int], list[int]]:
    """The pads of a Pad before and after each axis."""
    pads = b.numbers(node, 1, "pads") or [0] * 2 * rank
    axes = [axis % rank for axis in (b.numbers(node, 3, "axes") or range(rank))]
    begin, end = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        begin[axis], end[axis] = pads[i], pads[i + len(axes)]
    return begin, end


def _zeros_around(b: Builder, x: str, shape: Shape, begin: list[int], end: list[int]) -> tuple[str, list[tuple[int, int]]]:
    """x with the most zeros that an axis needs, and for each axis where x starts in it and its length."""
    before, after = max(*begin, 0), max(*end, 0)
    if not before + after:
        return x, [(0, length) for length in shape]
    padded = b("Padding", [x], pad_beg=before, pad_end=after)
    return padded, [(0, n) for n in shape[:2]] + [(before, before + n + after) for n in shape[2:]]
