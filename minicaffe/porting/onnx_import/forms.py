"""Operators with weights, and operators of maps: convolutions, products, pooling, normalization and resizing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.pool.pooling_windows import PoolAxis
from minicaffe.layers.shape.interp import Taps
from minicaffe.proto import caffe_pb2

from .builder import Builder, imports, refuse_others
from .functions import permuted
from .graph import Node, RefusedError, Windows, pads_of, pool_windows

# Conv, ConvTranspose, Gemm and MatMul as Convolution, Deconvolution and InnerProduct.
#
# Caffe pads both ends alike. If a node does not, zeros extend the kernel on the side with less padding: the sums are equal.


PER_AXIS = "strides", "dilations"


def one_or_all(numbers: list[int], default: int) -> list[int] | None:
    """Return the numbers of a repeated field: None if all are the default, one if all are equal."""
    if set(numbers) == {default}:
        return None
    return numbers[:1] if len(set(numbers)) == 1 else numbers


@imports("Conv")
def conv(b: Builder, node: Node) -> list[str]:
    weight, size = b.weight(node.inputs[1]), b.shape(node.inputs[0])[2:]
    stride, dilation = (list(node.get(name, [1] * len(size))) for name in PER_AXIS)
    reach = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation)]
    begin, end = pads_of(node, size, reach, stride)
    if min(begin + end) < 0:
        raise RefusedError(f"negative pads {begin + end}")
    if any((e - s) % d for s, e, d in zip(begin, end, dilation)):
        raise RefusedError(f"pads {begin} before and {end} after a map, with dilations {dilation} (Caffe pads both ends alike)")
    return [_convolution(b, "Convolution", node, weight, (begin, end), {"stride": stride, "dilation": dilation})]


@imports("ConvTranspose")
def conv_transpose(b: Builder, node: Node) -> list[str]:
    weight, size = b.weight(node.inputs[1]), b.shape(node.inputs[0])[2:]
    stride, dilation = (list(node.get(name, [1] * len(size))) for name in PER_AXIS)
    if node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or "output_shape" in node.attributes:
        raise RefusedError("auto_pad or output_shape: export the model with explicit pads")
    pads = list(node.get("pads", [0] * 2 * len(size)))
    added = node.get("output_padding", [0] * len(size))
    begin, end = pads[: len(size)], [e - more for e, more in zip(pads[len(size) :], added)]
    if any((e - s) % d for s, e, d in zip(begin, end, dilation)) or min(max(s, e) for s, e in zip(begin, end)) < 0:
        raise RefusedError(f"pads {begin} before and {end} after a map (Caffe cuts off both ends alike)")
    return [_convolution(b, "Deconvolution", node, weight, (begin, end), {"stride": stride, "dilation": dilation})]


def _convolution(
    b: Builder, kind: str, node: Node, weight: Array, pads: tuple[list[int], list[int]], window: Mapping[str, list[int]]
) -> str:
    """Add the layer. Of pads that differ at the two ends, the larger one is its pad."""
    group, more = node.get("group", 1), [(e - s) // d for s, e, d in zip(*pads, window["dilation"])]
    weight = np.pad(weight, [(0, 0), (0, 0), *((max(m, 0), max(-m, 0)) for m in more)])
    window = {**window, "pad": [max(s, e) for s, e in zip(*pads)]}
    channels = weight.shape[0] if kind == "Convolution" else weight.shape[1] * group
    fields: dict[str, Any] = {name: one_or_all(numbers, int(name != "pad")) for name, numbers in window.items()}
    fields |= {"num_output": channels, "kernel_size": one_or_all(list(weight.shape[2:]), 0)}
    fields |= {"bias_term": None if node.input(2) else False, "group": group if group > 1 else None}
    return b(kind, [b.blob(node.inputs[0])], _with_bias(b, node, weight, channels), **fields)


def _with_bias(b: Builder, node: Node, weight: Array, outputs: int, factor: float = 1.0) -> list[Array]:
    """Return the weight, and input 2 as a vector with a number for each output."""
    if not node.input(2):
        return [weight]
    bias = b.weight(node.inputs[2]) * np.float32(factor)
    if bias.size not in (1, outputs) or bias.shape[-1:] not in ((), (1,), (outputs,)):
        raise RefusedError(f"a bias of shape {bias.shape} for {outputs} outputs")
    return [weight, np.broadcast_to(bias.reshape(-1), (outputs,))]


@imports("Gemm")
def gemm(b: Builder, node: Node) -> list[str]:
    refuse_others(node, transA=0)
    weight = b.weight(node.inputs[1]) * np.float32(node.get("alpha", 1.0))
    weight = weight if node.get("transB", 0) else weight.T
    arrays = _with_bias(b, node, weight, len(weight), node.get("beta", 1.0))
    bias = None if len(arrays) > 1 else False
    return [b("InnerProduct", [b.blob(node.inputs[0])], arrays, num_output=len(weight), bias_term=bias)]


@imports("MatMul", "minicaffe.InnerProduct")
def matmul(b: Builder, node: Node) -> list[str]:
    """Multiply x by a constant matrix. The bias comes from a following Add."""
    weight, rank = b.weight(node.inputs[1]), len(b.shape(node.inputs[0]))
    if weight.ndim != 2 or rank < 2:
        raise RefusedError(f"a constant of shape {weight.shape} (InnerProduct has a matrix)")
    arrays = _with_bias(b, node, weight.T, weight.shape[1])
    fields = {"num_output": weight.shape[1], "bias_term": None if len(arrays) > 1 else False}
    return [b("InnerProduct", [b.blob(node.inputs[0])], arrays, axis=rank - 1 if rank > 2 else None, **fields)]


# MaxPool and AveragePool as Pooling: with Caffe's windows, rounded up or down, or with a part of them cut off.
#
# A window's pixels and divisor are compared with ONNX's, so that a Pooling layer stands only where it computes the same.


AVE, MAX = caffe_pb2.PoolingParameter.AVE, caffe_pb2.PoolingParameter.MAX


@imports("GlobalAveragePool", "GlobalMaxPool")
def global_pool(b: Builder, node: Node) -> list[str]:
    if len(b.shape(node.inputs[0])) != 4:
        raise RefusedError(f"x of shape {b.shape(node.inputs[0])} (Pooling has maps)")
    kind = AVE if node.op == "GlobalAveragePool" else MAX
    return [b("Pooling", [b.blob(node.inputs[0])], pool=kind, global_pooling=True)]


@imports("MaxPool", "AveragePool")
def pool(b: Builder, node: Node) -> list[str]:
    shape, kernel = b.shape(node.inputs[0]), list(node.get("kernel_shape", []))
    if len(shape) != 4:
        raise RefusedError(f"x of shape {shape} (Pooling has maps)")
    if len(node.outputs) > 1 and node.outputs[1] in b.read:
        raise RefusedError("its indices count over the whole batch")
    refuse_others(node, dilations=[1, 1])
    if node.get("ceil_mode", 0):
        refuse_others(node, auto_pad="NOTSET")
    wanted = pool_windows(node, shape[2:])
    floor, counted = _matching(wanted, average=node.op == "AveragePool")
    axes = _caffes(wanted, floor)
    sizes = {"kernel": kernel, "stride": [w.stride for w in wanted], "pad": [w.begin for w in wanted]}
    fields: dict[str, Any] = {name: size for what, pair in sizes.items() for name, size in _both(what, pair).items()}
    pooled = b(
        "Pooling",
        [b.blob(node.inputs[0])],
        pool=AVE if node.op == "AveragePool" else MAX,
        round_mode=caffe_pb2.PoolingParameter.FLOOR if floor else None,
        avg_include_pad=None if counted else False,
        **fields,
    )
    made = (*shape[:2], *(axis.pooled for axis in axes))
    for i, windows in enumerate(wanted):  # drops the windows that only Caffe has
        pooled = b.cut(pooled, made, i + 2, 0, windows.count)
        made = (*made[: i + 2], windows.count, *made[i + 3 :])
    return [pooled]


def _caffes(wanted: list[Windows], floor: bool) -> list[PoolAxis]:
    padded = any(w.begin for w in wanted)
    return [PoolAxis(w.size, w.kernel, w.stride, w.begin, floor, clip=padded) for w in wanted]


def _matching(wanted: list[Windows], *, average: bool) -> tuple[bool, bool]:
    """Return whether Caffe's number of windows is rounded down, and whether its average counts padding. Raises RefusedError."""
    exact = [f for f in (False, True) if all(a.pooled == w.count for a, w in zip(_caffes(wanted, f), wanted))]
    enough = [f for f in (False, True) if all(a.pooled >= w.count for a, w in zip(_caffes(wanted, f), wanted))]
    for floor in [*exact, *enough]:
        axes = _caffes(wanted, floor)
        for counted in (True, False):
            if not average or all(
                np.array_equal(replace(a, counts_padding=counted).lengths(np.intp)[: w.count], w.divisors())
                for a, w in zip(axes, wanted)
            ):
                return floor, counted
    pads = [(w.begin, w.end) for w in wanted]
    raise RefusedError(
        f"pads {pads} before and after a map of {' x '.join(str(w.size) for w in wanted)}: Caffe's windows differ"
    )


def _both(name: str, numbers: list[int]) -> dict[str, int]:
    """Return the fields of a pooling_param's size, one for both axes or one for each."""
    if numbers[0] != numbers[1]:
        return {f"{name}_h": numbers[0], f"{name}_w": numbers[1]}
    return {} if numbers[0] == {"stride": 1, "pad": 0}.get(name) else {"kernel_size" if name == "kernel" else name: numbers[0]}


# BatchNormalization as BatchNorm and Scale; LRN, Softmax and LogSoftmax.


@imports("BatchNormalization")
def batch_norm(b: Builder, node: Node) -> list[str]:
    """Add a BatchNorm with the stored statistics, and a Scale unless it would change nothing."""
    refuse_others(node, training_mode=0)
    scale, bias, mean, variance = (b.weight(name) for name in node.inputs[1:5])
    x = b.blob(node.inputs[0])
    arrays = [mean, variance, np.ones(1, np.float32)]
    y = b("BatchNorm", [x], arrays, use_global_stats=True, eps=node.get("epsilon", 1e-5))
    if (scale == 1).all() and (bias == 0).all():
        return [y]
    return [b("Scale", [y], [scale, bias], bias_term=True)]


@imports("InstanceNormalization")
def instance_norm(b: Builder, node: Node) -> list[str]:
    """Normalise each map of each image, then add a Scale."""
    y = _normalised(b, node, 2)
    return [b("Scale", [y], [b.weight(name) for name in node.inputs[1:3]], bias_term=True)]


@imports("LayerNormalization")
def layer_norm(b: Builder, node: Node) -> list[str]:
    """Normalise over the axes from `axis` on, then add a Scale."""
    axis = node.get("axis", -1) % len(b.shape(node.inputs[0]))
    if any(name in b.read for name in node.outputs[1:]):
        raise RefusedError("its mean and deviation have no layer")
    y, shape = _normalised(b, node, axis), b.shape(node.inputs[0])[axis:]
    arrays = [np.broadcast_to(b.weight(name), shape) for name in node.inputs[1:3] if name]
    return [b("Scale", [y], arrays, axis=axis, num_axes=len(shape), bias_term=len(arrays) > 1 or None)]


def _normalised(b: Builder, node: Node, axis: int) -> str:
    """Return x less its mean over its deviation, both over the axes from `axis` on.

    A BatchNorm does it, whose channels are the parts that are normalised. MVN adds eps to the deviation, not to the variance.
    """
    shape = b.shape(node.inputs[0])
    parts, size = shape[:axis], shape[axis:]
    if not parts or not size:
        raise RefusedError(f"x of shape {shape} (there must be axes before and from axis {axis} on)")
    flat = b("Reshape", [b.blob(node.inputs[0])], shape=caffe_pb2.BlobShape(dim=[1, -1, math.prod(size)]))
    y = b("BatchNorm", [flat], use_global_stats=False, eps=node.get("epsilon", 1e-5))
    return b("Reshape", [y], shape=caffe_pb2.BlobShape(dim=[-1, *shape[1:]]))


@imports("MeanVarianceNormalization")
def mean_variance_norm(b: Builder, node: Node) -> list[str]:
    """Add an MVN, with the eps of ONNX's definition."""
    shape = b.shape(node.inputs[0])
    axes = sorted(axis % len(shape) for axis in node.get("axes", [0, 2, 3]))
    if len(shape) != 4 or axes not in ([2, 3], [1, 2, 3]):
        raise RefusedError(f"over axes {axes} of {shape} (MVN normalises a map, or an image)")
    return [b("MVN", [b.blob(node.inputs[0])], across_channels=len(axes) == 3 or None, eps=1e-9)]


LEAST = 1e-37
"""The eps of a Normalize for LpNormalization, which has none: only a sum of 0 notices it."""


@imports("LpNormalization")
def lp_norm(b: Builder, node: Node) -> list[str]:
    """Add a Normalize along axis 1."""
    refuse_others(node, p=2)
    shape = b.shape(node.inputs[0])
    axis = node.get("axis", -1) % len(shape)
    if len(shape) < 2:
        raise RefusedError(f"x of shape {shape} (Normalize has an axis of images and one of channels)")
    order = list(range(len(shape)))
    order[1], order[axis] = order[axis], order[1]  # the same order leads back
    x = permuted(b, b.blob(node.inputs[0]), order)
    y = b("Normalize", [x], [np.ones(())], across_spatial=False, eps=LEAST)
    return [permuted(b, y, order)]


@imports("LRN")
def lrn(b: Builder, node: Node) -> list[str]:
    size = node.attributes["size"]
    if size % 2 == 0:
        raise RefusedError(f"size = {size} (LRN's is odd)")
    given = {name: node.get(name, default) for name, default in (("alpha", 1e-4), ("beta", 0.75))}
    return [b("LRN", [b.blob(node.inputs[0])], local_size=size, k=node.get("bias", 1.0), **given)]


@imports("Softmax", "LogSoftmax")
def softmax(b: Builder, node: Node) -> list[str]:
    """Add a Softmax. Before opset 13 it is over all axes from `axis` on: the later ones must have length 1."""
    shape, before = b.shape(node.inputs[0]), b.graph.opset < 13
    axis = node.get("axis", 1 if before else -1) % len(shape)
    if before and math.prod(shape[axis + 1 :]) != 1:
        raise RefusedError(f"opset {b.graph.opset} takes it over all axes from {axis} on, Caffe over axis {axis}")
    y = b("Softmax", [b.blob(node.inputs[0])], axis=axis)
    return [b("Log", [y]) if node.op == "LogSoftmax" else y]


# Resize and Upsample. Along an axis each is a matrix, which onnxruntime computes. Repeated pixels become Upsample, aligned
# corners Interp, and any other matrix an InnerProduct along the axis.


CLOSE = 1e-6
MOST = 4096
"""The longest axis that is asked about."""


@imports("Resize", "Upsample")
def resize(b: Builder, node: Node) -> list[str]:
    shape, out = b.shape(node.inputs[0]), b.shape(node.outputs[0])
    if len(shape) != 4 or shape[:2] != out[:2] or max(*shape, *out) > MOST:
        raise RefusedError(f"{shape} to {out} (height and width of maps, up to {MOST})")
    x = b.blob(node.inputs[0])
    if shape == out:
        return [x]
    rows, columns = (_matrix(b, node, axis) for axis in (2, 3))
    times = out[2] // shape[2]
    if all(np.array_equal(m, np.repeat(np.eye(m.shape[1]), times, axis=0)) for m in (rows, columns)):
        return [b("Upsample", [x], scale=times)]
    if all(np.abs(m - _interp(*m.shape)).max() <= CLOSE for m in (rows, columns)):
        return [b("Interp", [x], height=out[2], width=out[3])]
    x = _along_last(b, x, columns)
    x = _along_last(b, permuted(b, x, [0, 1, 3, 2]), rows)
    return [permuted(b, x, [0, 1, 3, 2])]


def _along_last(b: Builder, x: str, matrix: Array) -> str:
    return b("InnerProduct", [x], [matrix], num_output=len(matrix), bias_term=False, axis=3)


def _matrix(b: Builder, node: Node, axis: int) -> Array:
    """Return the matrix of a node along an axis (out, size), from its results for single pixels of 1 among zeros."""
    from onnx import helper, numpy_helper
    from onnxruntime import InferenceSession, SessionOptions

    size, length = b.shape(node.inputs[0])[axis], b.shape(node.outputs[0])[axis]
    if node.op == "Resize" and node.get("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        raise RefusedError("tf_crop_and_resize: export the model without it")
    inputs, given = ["x"], []
    for name in node.inputs[1:]:
        values = b.constant(name).reshape(-1) if name else np.zeros(0)
        if len(values) != 4:  # the region of interest, or the unused one of scales and sizes
            along = np.zeros(0, np.float32)
        else:
            along = np.array([size, 1, 1, length] if values.dtype == np.int64 else [1, 1, 1, values[axis]], values.dtype)
        inputs.append(f"i{len(inputs)}")
        given.append(numpy_helper.from_array(along, inputs[-1]))
    one = helper.make_node(node.op, inputs, ["y"], **node.attributes)
    x, y = (helper.make_tensor_value_info(name, 1, dims) for name, dims in (("x", [size, 1, 1, size]), ("y", [None] * 4)))
    opsets = [helper.make_opsetid("", b.graph.opset)]
    model = helper.make_model(helper.make_graph([one], "resize", [x], [y], given), opset_imports=opsets, ir_version=8)
    options = SessionOptions()
    options.log_severity_level = 4
    try:
        session = InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        made = session.run(None, {"x": np.eye(size, dtype=np.float32).reshape(size, 1, 1, size)})
    except Exception as error:  # onnxruntime raises several types
        raise RefusedError(f"onnxruntime cannot run it: {error}") from error
    if made[0].size != size * length:
        raise RefusedError(f"it makes {made[0].size // size} of {size} places, and the model's shapes say {length}")
    matrix: Array = np.asarray(made[0], np.float32).reshape(size, length).T
    return matrix


def _interp(out: int, size: int) -> Array:
    """Return the matrix of an Interp from size to out places."""
    taps, matrix = Taps(size, out), np.zeros((out, size), np.float32)
    places = np.arange(out)
    for at, share in zip((taps.before, taps.after), taps.shares(np.dtype(np.float32))):
        matrix[places, at] += share
    return matrix
