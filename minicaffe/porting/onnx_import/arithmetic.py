"""Add, Sub, Mul, Div and others of two tensors, as Eltwise, Scale, Bias and Power; reductions; ArgMax and ArgMin.

A constant of one number is a Power, one that fits a range of axes a Scale or a Bias with weights. Of two tensors the smaller
one is the second bottom of a Scale or a Bias if it fits a range of axes, else it is tiled.
"""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.proto import caffe_pb2

from .arrangement import permuted
from .builder import Builder, imports, refuse_others
from .neurons import LARGEST, clipped
from .node import Node, RefusedError, Shape

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
    """-x, or 1 / x."""
    return b("Power", [x], scale=-1.0) if adds else b("Power", [x], power=-1.0)


def _with_constant(b: Builder, x: str, shape: Shape, c: Array, adds: bool) -> str:
    """x + c, or x c."""
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
    block = {"axis": first, "num_axes": last - first}
    return b("Bias" if adds else "Scale", [x], [weight.reshape(shape[first:last])], **block)


def _of_two(b: Builder, x: str, y: str, xs: Shape, ys: Shape, adds: bool) -> str:
    """x + y, or x y."""
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
    """x repeated along the axes of length 1 that are longer in `out`."""
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
    """Over height and width a global Pooling, over the last axes a Reduction."""
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
    """Caffe takes the last of equal numbers: for the first one, the axis is reversed, and the index counted from its end."""
    shape, out = b.shape(node.inputs[0]), b.shape(node.outputs[0])
    axis = node.get("axis", 0) % len(shape)
    x = b.blob(node.inputs[0])
    x = _turned(b, x, True) if node.op == "ArgMin" else x
    last = bool(node.get("select_last_index", 0))
    y = b("ArgMax", [x if last else b("Reverse", [x], axis=axis)], axis=axis)
    y = y if last else b("Power", [y], scale=-1.0, shift=shape[axis] - 1.0)
    return [b.reshaped(y, (*shape[:axis], 1, *shape[axis + 1 :]), out)]
