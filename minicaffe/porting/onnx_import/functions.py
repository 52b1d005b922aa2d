"""Operators without weights: of one tensor, of two, and those that join, cut, reorder and reshape."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.proto import caffe_pb2

from .builder import Builder, imports, refuse_others
from .graph import Node, RefusedError, Shape

# Element-wise operators of one tensor.


LARGEST = float(np.finfo(np.float32).max)


def _layer(kind: str, **fields: Any) -> Any:
    return lambda b, node: [b(kind, [b.blob(node.inputs[0])], **fields)]


PLAIN: Mapping[str, Any] = {
    "Relu": _layer("ReLU"),
    "Sigmoid": _layer("Sigmoid"),
    "Tanh": _layer("TanH"),
    "Abs": _layer("AbsVal"),
    "Exp": _layer("Exp"),
    "Log": _layer("Log"),
    "Softplus": _layer("BNLL"),
    "HardSwish": _layer("HardSwish"),
    "Mish": _layer("Mish"),
    "Neg": _layer("Power", scale=-1.0),
    "Sqrt": _layer("Power", power=0.5),
    "Reciprocal": _layer("Power", power=-1.0),
    "minicaffe.Swish": _layer("Swish"),
}
for operator, function in PLAIN.items():
    imports(operator)(function)


@imports("LeakyRelu")
def leaky_relu(b: Builder, node: Node) -> list[str]:
    return [b("ReLU", [b.blob(node.inputs[0])], negative_slope=node.get("alpha", 0.01))]


@imports("Elu")
def elu(b: Builder, node: Node) -> list[str]:
    return [b("ELU", [b.blob(node.inputs[0])], alpha=node.get("alpha", 1.0))]


@imports("PRelu")
def prelu(b: Builder, node: Node) -> list[str]:
    """Add a PReLU with one slope, or one for each channel."""
    x, slope = b.shape(node.inputs[0]), b.weight(node.inputs[1])
    shape = (1,) * (len(x) - slope.ndim) + slope.shape
    if slope.size == 1:
        return [b("PReLU", [b.blob(node.inputs[0])], [slope.reshape(())], channel_shared=True)]
    if len(x) < 2 or shape != (1, x[1], *(1,) * (len(x) - 2)):
        raise RefusedError(f"slopes of shape {slope.shape} (PReLU has one a channel)")
    return [b("PReLU", [b.blob(node.inputs[0])], [slope.reshape(-1)])]


@imports("Clip")
def clip(b: Builder, node: Node) -> list[str]:
    low, high = (b.numbers(node, i, name) for i, name in ((1, "min"), (2, "max")))
    return [clipped(b, b.blob(node.inputs[0]), low[0] if low else -LARGEST, high[0] if high else LARGEST)]


def clipped(b: Builder, x: str, low: float, high: float) -> str:
    """Return x within [low, high], as a ReLU or ReLU6 if the limits are theirs."""
    low, high = max(float(low), -LARGEST), min(float(high), LARGEST)
    if low == 0 and high == LARGEST:
        return b("ReLU", [x])
    if low == 0 and high == 6:
        return b("ReLU6", [x])
    return b("Clip", [x], min=low, max=high)


@imports("HardSigmoid")
def hard_sigmoid(b: Builder, node: Node) -> list[str]:
    x, alpha, beta = b.blob(node.inputs[0]), node.get("alpha", 0.2), node.get("beta", 0.5)
    if np.float32(alpha) == np.float32(0.2) and beta == 0.5:
        return [b("HardSigmoid", [x])]
    return [clipped(b, b("Power", [x], scale=alpha, shift=beta), 0, 1)]


@imports("Identity", "Dropout", "Cast")
def same(b: Builder, node: Node) -> list[str]:
    """Return the input: Dropout has no effect in TEST. Raises RefusedError for a Cast to whole numbers."""
    if node.op == "Cast" and node.get("to", 1) not in (1, 10, 11, 16):  # float, float16, double, bfloat16
        raise RefusedError("blobs hold no whole numbers")
    if len(node.outputs) > 1 and node.outputs[1] in b.read:
        raise RefusedError("its mask has no layer")
    return [b.blob(node.inputs[0])]


# Add, Sub, Mul, Div and others of two tensors, as Eltwise, Scale, Bias and Power; reductions; ArgMax and ArgMin.
#
# A constant of one number is a Power, one that fits a range of axes a Scale or a Bias with weights. Of two tensors the smaller
# one is the second bottom of a Scale or a Bias if it fits a range of axes, else it is tiled.


PROD, SUM, MAX = (caffe_pb2.EltwiseParameter.EltwiseOp.Value(name) for name in ("PROD", "SUM", "MAX"))
SUMS = {"ReduceSum": "SUM", "ReduceMean": "MEAN", "ReduceL1": "ASUM", "ReduceSumSquare": "SUMSQ", "ReduceL2": "SUMSQ"}


@imports("Add", "Sub", "Mul", "Div")
def binary(b: Builder, node: Node) -> list[str]:
    x, y = node.inputs
    adds, turned = node.op in ("Add", "Sub"), node.op in ("Sub", "Div")
    if b.is_constant(y) and not b.is_constant(x):
        with np.errstate(divide="ignore"):
            number = b.weight(y) if not turned else -b.weight(y) if adds else 1 / b.weight(y)
        return [_with_constant(b, b.blob(x), b.shape(x), number, adds)]
    if b.is_constant(x):
        return [_with_constant(b, _turned(b, b.blob(y), adds) if turned else b.blob(y), b.shape(y), b.weight(x), adds)]
    a, c, shapes = b.blob(x), b.blob(y), (b.shape(x), b.shape(y))
    if node.op == "Sub" and shapes[0] == shapes[1]:
        return [b("Eltwise", [a, c], operation=SUM, coeff=[1, -1])]
    return [_of_two(b, a, _turned(b, c, adds) if turned else c, *shapes, adds)]


def _turned(b: Builder, x: str, adds: bool) -> str:
    """Return -x if adds is set, else 1 / x."""
    return b("Power", [x], scale=-1.0) if adds else b("Power", [x], power=-1.0)


def _with_constant(b: Builder, x: str, shape: Shape, c: Array, adds: bool) -> str:
    """Return x + c if adds is set, else x c."""
    if c.size == 1:
        number = float(c.reshape(-1)[0])
        if c.ndim > len(shape):
            raise RefusedError(f"a constant of shape {c.shape} gives {shape} more axes")
        if number == (0 if adds else 1):
            return x
        return b("Power", [x], shift=number) if adds else b("Power", [x], scale=number)
    if np.broadcast_shapes(shape, c.shape) != shape:
        raise RefusedError(f"a constant of shape {c.shape} would repeat x of shape {shape}")
    dims = (1,) * (len(shape) - c.ndim) + c.shape
    long = [i for i, d in enumerate(dims) if d > 1]
    first, last = long[0], long[-1] + 1
    weight = np.broadcast_to(c.reshape(dims[first:]), (*shape[first:last], *(1,) * (len(shape) - last)))
    arrays = [weight.reshape(shape[first:last])]
    return b("Bias" if adds else "Scale", [x], arrays, axis=first, num_axes=last - first)


def _of_two(b: Builder, x: str, y: str, xs: Shape, ys: Shape, adds: bool) -> str:
    """Return x + y if adds is set, else x y."""
    out = np.broadcast_shapes(xs, ys)
    if xs != out:
        x, y, xs, ys = y, x, ys, xs
    if xs != out:
        x, xs = _tiled(b, x, xs, out), out
    if ys == out:
        return b("Eltwise", [x, y], operation=SUM if adds else PROD)
    dims = (1,) * (len(out) - len(ys)) + ys
    if max(ys, default=1) == 1 and (len(ys) < len(out) or ys[0] != out[0]):  # one number, not one for each image
        return b("Bias" if adds else "Scale", [x, b.reshaped(y, ys, ())], axis=0)
    # the batch is an axis of both, even if it is 1 here
    first = 0 if len(ys) == len(out) and ys[0] == out[0] else next((i for i, d in enumerate(dims) if d > 1), 0)
    last = max([i + 1 for i, d in enumerate(dims) if d > 1], default=first + 1)
    last = max(last, first + 1)
    if dims[first:last] != out[first:last]:
        return b("Eltwise", [x, _tiled(b, y, ys, out)], operation=SUM if adds else PROD)
    small = b.reshaped(y, ys, out[first:last])
    return b("Bias" if adds else "Scale", [x, small], axis=first)


def _tiled(b: Builder, x: str, shape: Shape, out: Shape) -> str:
    """Return x repeated along the axes of length 1 that are longer in `out`."""
    x = b.reshaped(x, shape, shape := (1,) * (len(out) - len(shape)) + shape)
    for axis, (old, new) in enumerate(zip(shape, out, strict=True)):
        if old != new:
            x = b("Tile", [x], axis=axis, tiles=new)
    return x


@imports("Expand")
def expand(b: Builder, node: Node) -> list[str]:
    return [_tiled(b, b.blob(node.inputs[0]), b.shape(node.inputs[0]), b.shape(node.outputs[0]))]


@imports("Tile")
def tile(b: Builder, node: Node) -> list[str]:
    x = b.blob(node.inputs[0])
    for axis, times in enumerate(b.constant(node.inputs[1]).tolist()):
        if times != 1:
            x = b("Tile", [x], axis=axis, tiles=times)
    return [x]


@imports("Pow")
def power(b: Builder, node: Node) -> list[str]:
    exponent = b.weight(node.inputs[1])
    if exponent.size != 1:
        raise RefusedError(f"exponents of shape {exponent.shape} (Power has one)")
    return [b("Power", [b.blob(node.inputs[0])], power=float(exponent.reshape(-1)[0]))]


@imports("Max", "Min", "Sum", "Mean")
def of_several(b: Builder, node: Node) -> list[str]:
    fixed = [name for name in node.inputs if b.is_constant(name)]
    rest = [name for name in node.inputs if name not in fixed]
    if len(rest) == 1 and len(fixed) == 1 and b.constant(fixed[0]).size == 1 and node.op in ("Max", "Min"):
        bound = float(b.constant(fixed[0]).reshape(-1)[0])
        low, high = (bound, LARGEST) if node.op == "Max" else (-LARGEST, bound)
        return [clipped(b, b.blob(rest[0]), low, high)]
    blobs = [b.blob(name) for name in node.inputs]
    if len({b.shape(name) for name in node.inputs}) > 1:
        raise RefusedError("its inputs differ in shape")
    if len(blobs) == 1:
        return blobs
    if node.op == "Max":
        return [b("Eltwise", blobs, operation=MAX)]
    if node.op == "Min":
        return [_turned(b, b("Eltwise", [_turned(b, x, True) for x in blobs], operation=MAX), True)]
    return [b("Eltwise", blobs, operation=SUM, coeff=[1 / len(blobs)] * len(blobs) if node.op == "Mean" else None)]


@imports(*SUMS, "ReduceMax")
def reduce(b: Builder, node: Node) -> list[str]:
    """Add a global Pooling over height and width, or a Reduction over other axes, permuted to the end."""
    shape, out = b.shape(node.inputs[0]), b.shape(node.outputs[0])
    refuse_others(node, noop_with_empty_axes=0)
    axes = sorted(axis % len(shape) for axis in b.numbers(node, 1, "axes") or range(len(shape)))
    x = b.blob(node.inputs[0])
    if axes == [2, 3] and len(shape) == 4 and node.op in ("ReduceMean", "ReduceMax"):
        kind = caffe_pb2.PoolingParameter.AVE if node.op == "ReduceMean" else caffe_pb2.PoolingParameter.MAX
        return [b.reshaped(b("Pooling", [x], pool=kind, global_pooling=True), (*shape[:2], 1, 1), out)]
    if node.op == "ReduceMax" or axes[0] == 0:
        raise RefusedError(f"over axes {axes} of {shape}")
    order = [axis for axis in range(len(shape)) if axis not in axes]
    x, first = permuted(b, x, order + axes), len(order)
    y = b("Reduction", [x], operation=caffe_pb2.ReductionParameter.ReductionOp.Value(SUMS[node.op]), axis=first)
    y = b("Power", [y], power=0.5) if node.op == "ReduceL2" else y
    return [b.reshaped(y, tuple(shape[axis] for axis in order), out)]


@imports("ArgMax", "ArgMin")
def arg_max(b: Builder, node: Node) -> list[str]:
    """Add an ArgMax. It takes the last of equal numbers: for the first, reverse the axis and count the index from its end."""
    shape, out = b.shape(node.inputs[0]), b.shape(node.outputs[0])
    axis = node.get("axis", 0) % len(shape)
    x = b.blob(node.inputs[0])
    x = _turned(b, x, True) if node.op == "ArgMin" else x
    last = bool(node.get("select_last_index", 0))
    y = b("ArgMax", [x if last else b("Reverse", [x], axis=axis)], axis=axis)
    y = y if last else b("Power", [y], scale=-1.0, shift=shape[axis] - 1.0)
    return [b.reshaped(y, (*shape[:axis], 1, *shape[axis + 1 :]), out)]


# Operators that join, cut, reorder and reshape.


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
    """Add a Slice for each axis. A step along height and width is a convolution with kernels of one 1."""
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


@imports("Gather")
def gather(b: Builder, node: Node) -> list[str]:
    """Add a Slice for constant indices that follow each other, such as the last one."""
    shape, out = b.shape(node.inputs[0]), b.shape(node.outputs[0])
    axis = node.get("axis", 0) % len(shape)
    indices = [int(i) % shape[axis] for i in b.constant(node.inputs[1]).reshape(-1)]
    first, count = (indices or [0])[0], len(indices)
    if not indices or indices != list(range(first, first + count)):
        raise RefusedError(f"indices {indices} along axis {axis} of {shape} (Slice has neighbours)")
    part = b.cut(b.blob(node.inputs[0]), shape, axis, first, first + count)
    return [b.reshaped(part, (*shape[:axis], count, *shape[axis + 1 :]), out)]


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
    """Add a Reshape that splits axes, a Permute, and a Reshape that joins them."""
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
    """Add zeros around each map. A Padding layer adds the same number on both axes; surplus ones are cut off again."""
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
    """Return the pads of a Pad before and after each axis."""
    pads = b.numbers(node, 1, "pads") or [0] * 2 * rank
    axes = [axis % rank for axis in (b.numbers(node, 3, "axes") or range(rank))]
    begin, end = [0] * rank, [0] * rank
    for i, axis in enumerate(axes):
        begin[axis], end[axis] = pads[i], pads[i + len(axes)]
    return begin, end


def _zeros_around(b: Builder, x: str, shape: Shape, begin: list[int], end: list[int]) -> tuple[str, list[tuple[int, int]]]:
    """Return x with as many zeros as any axis needs, and for each axis where x starts and the padded length."""
    before, after = max(*begin, 0), max(*end, 0)
    if not before + after:
        return x, [(0, length) for length in shape]
    padded = b("Padding", [x], pad_beg=before, pad_end=after)
    return padded, [(0, n) for n in shape[:2]] + [(before, before + n + after) for n in shape[2:]]
