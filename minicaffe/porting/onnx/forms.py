"""Layers with weights, pooling and normalization."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from minicaffe.layers.conv.convolution import Convolution, DepthwiseConvolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.im2col import Im2col
from minicaffe.layers.conv.inner_product import Embed, InnerProduct
from minicaffe.layers.elementwise.scale import Bias, Scale
from minicaffe.layers.forks.deepdetect import SparseInnerProduct
from minicaffe.layers.forks.flownet.flownet_layers import ChannelNorm
from minicaffe.layers.forks.genet import CuDNNBatchNorm
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.neuron.dropout import Dropout
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.batch_norm_layouts import statistics
from minicaffe.layers.norm.bn import BN, SEGNET
from minicaffe.layers.norm.lrn import LRN
from minicaffe.layers.norm.mvn import MVN
from minicaffe.layers.norm.normalize import LEAST, Normalize
from minicaffe.layers.pool.pooling import AVE, MAX, Pooling
from minicaffe.layers.pool.pooling_windows import PoolAxis
from minicaffe.layers.pool.spp import SPP
from minicaffe.layers.roi.roi_geometry import LOWEST
from minicaffe.registry import exports

from .graph import Dims, Graph, Operand, Value

# Convolution, Im2col, Deconvolution, InnerProduct and Embed as Conv, ConvTranspose, Gemm and Gather.


MOST_AXES = 3
"""The most spatial axes that onnxruntime convolves over."""


@exports(Convolution, DepthwiseConvolution, Deconvolution)
def convolution(g: Graph, layer: Convolution, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Emit a Conv or ConvTranspose for each bottom.

    The axes before the channels are flattened before it and restored after it.
    """
    if layer.spatial_axes > MOST_AXES:
        raise layer.error(f"onnxruntime convolves over {MOST_AXES} axes at most, this layer has {layer.spatial_axes}")
    return [_convolved(g, layer, x, dims) for x, dims in zip(bottom, top, strict=True)]


def _convolved(g: Graph, layer: Convolution, x: Value, dims: Dims) -> str:
    window, axis = layer.window, layer.axis
    flat: str | Value = x
    if axis != 1:
        flat = g.reshape(x, [-1], g.shape(x, axis))
    if not layer.spatial_axes:
        flat = g("Unsqueeze", flat, [2])  # Conv wants at least one spatial axis
    y = g(
        "ConvTranspose" if isinstance(layer, Deconvolution) else "Conv",
        flat,
        g.weight(layer, 0, (*layer.blobs[0].shape[:2], *window.kernel)),
        g.weight(layer, 1) if len(layer.blobs) > 1 else None,
        kernel_shape=list(window.kernel),
        strides=list(window.stride),
        pads=[*window.pad, *window.pad],
        dilations=list(window.dilation),
        group=layer.group,
    )
    if not layer.spatial_axes:
        y = g("Squeeze", y, [2])
    if axis != 1:
        y = g.reshape(y, g.shape(x, 0, axis), g("Shape", y, start=1))
    return y


@exports(Im2col)
def im2col(g: Graph, layer: Im2col, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Emit a Conv whose kernels each have a single 1, one kernel for each place of the window."""
    window, channels = layer.window, bottom[0].dims[1]
    if layer.axis != 1 or len(window.kernel) > MOST_AXES or not isinstance(channels, int):
        raise layer.error(f"has an ONNX form for x (N, C, ...) with up to {MOST_AXES} spatial axes only", "convolution_param")
    size = math.prod(window.kernel)
    kernels = np.tile(np.eye(size, dtype=np.float32).reshape(size, 1, *window.kernel), (channels, *[1] * (bottom[0].rank - 1)))
    return [
        g(
            "Conv",
            bottom[0],
            g.constant(kernels, "places"),
            strides=list(window.stride),
            pads=[*window.pad, *window.pad],
            dilations=list(window.dilation),
            group=channels,
        )
    ]


@exports(InnerProduct, SparseInnerProduct)
def inner_product(g: Graph, layer: InnerProduct, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Emit Flatten and Gemm. The axes before layer.axis are restored."""
    x, axis = bottom[0], layer.axis
    rows = x if x.rank == 2 and axis == 1 else g("Flatten", x, axis=axis)
    bias = g.weight(layer, 1) if len(layer.blobs) > 1 else None
    weight = layer.scaled(layer.blobs[0].read_data()) if layer.normalize else g.weight(layer, 0)
    y = g("Gemm", rows, weight, bias, transB=0 if layer.transpose else 1)
    if axis != 1:
        y = g.reshape(y, g.shape(x, 0, axis), [layer.param.inner_product_param.num_output])
    return [y]


@exports(Embed)
def embed(g: Graph, layer: Embed, bottom: list[Value], top: list[Dims]) -> list[str]:
    y = g("Gather", g.weight(layer, 0), g.cast(bottom[0], np.int64), axis=0)
    return [g("Add", y, g.weight(layer, 1)) if len(layer.blobs) > 1 else y]


# Pooling and SPP as MaxPool and AveragePool.
#
# ceil_mode gives Caffe's windows: the last one may reach past the map, and is dropped if it would start in the end padding.
# A separate node pads the map in three cases:
# - The stride exceeds the kernel: ONNX drops a window that Caffe keeps.
# - The last window of a map of fixed size lies in the padding: ONNX's shape inference keeps it, unlike ONNX's runtime.
# - A mean counts padding: Caffe's divisor ends at H + pad, but onnxruntime before 1.29 counted the whole kernel.


NO_END = 2**40
"""Added to a size that is no bound."""


@exports(Pooling)
def pooling(g: Graph, layer: Pooling, bottom: list[Value], top: list[Dims]) -> list[str]:
    x, axes = bottom[0], _axes(layer, bottom[0])
    if layer.method not in (MAX, AVE):
        raise layer.error("STOCHASTIC pooling has no ONNX form", "pooling_param.pool")
    if layer.param.pooling_param.global_pooling:
        if len(top) > 1:
            raise layer.error("the mask of global pooling has no ONNX form", "top[1]")
        return [g("GlobalMaxPool" if layer.method == MAX else "GlobalAveragePool", x)]
    if not layer.has_even_pads:
        _check_uneven(layer, x)
        axes = tuple(replace(axis, floor=True) for axis in axes)
    # Caffe's divisor counts padding, but not the pixels that ceil adds after it. ONNX lacks this mode.
    padded_mean = layer.method == AVE and layer.counts_padding and any(a.pad and not a.floor for a in axes)
    if padded_mean or any(_needs_padding(a, length) for a, length in zip(axes, x.dims[2:])):
        return _padded(g, layer, x, len(top))
    if layer.method == AVE:
        counts_padding = int(axes[0].floor and layer.counts_padding)
        return [g("AveragePool", x, count_include_pad=counts_padding, **_window(axes, ceil=not axes[0].floor))]
    window = _window(axes, ceil=not axes[0].floor)
    if len(top) == 1:
        return [g("MaxPool", x, **window)]
    y, index = g.several("MaxPool", 2, x, **window)
    # ONNX's index is flat over N and C too
    return [y, g.cast(g("Mod", index, g("Mul", g.number(x, 2), g.number(x, 3))), np.float32)]


def _check_uneven(layer: Pooling, x: Value) -> None:
    """Raise LayerError for padding after the map that differs from the one before it, if ONNX lacks the windows."""
    if max(layer.sizes[1]) == 1:
        return
    if not layer.floor:
        reason = "with other padding after the map than before it has an ONNX form only for a stride of 1, or rounded down"
        raise layer.error(reason, "pooling_param")
    if layer.param.pooling_param.pad_type and not all(isinstance(length, int) for length in x.dims[2:]):
        reason = "with a stride above 1, the padding of pad_type: 1 has an ONNX form only for maps of a fixed size"
        raise layer.error(reason, "pooling_param.pad_type")


def _axes(layer: Pooling, x: Value) -> tuple[PoolAxis, ...]:
    """Return the windows on both axes. A dynamic axis keeps a stride that the layer clips to its map, as it may be longer."""
    axes = (layer.rows, layer.columns)
    return tuple(
        a if isinstance(length, int) else replace(a, stride=stride)
        for a, length, stride in zip(axes, x.dims[2:], layer.sizes[1])
    )


def _needs_padding(axis: PoolAxis, length: int | str) -> bool:
    room = axis.size + axis.pad + axis.end - axis.kernel
    left_out = axis.pooled <= -(-room // axis.stride) and not axis.floor  # Caffe left out a window that ONNX's ceil_mode has
    return (axis.stride > axis.kernel and not axis.clip and not axis.floor) or (isinstance(length, int) and left_out)


def _window(axes: tuple[PoolAxis, ...], *, ceil: bool) -> dict[str, Any]:
    kernel, stride, pad, end = ([getattr(a, what) for a in axes] for what in ("kernel", "stride", "pad", "end"))
    return {"kernel_shape": kernel, "strides": stride, "pads": pad + end, "ceil_mode": int(ceil)}


def _padded(g: Graph, layer: Pooling, x: Value, tops: int) -> list[str]:
    """Emit the pooling of the map, padded up to the end of the last window."""
    if tops > 1:
        raise layer.error("the mask of windows on a padded map has no ONNX form", "top[1]")
    axes = _axes(layer, x)
    kernel, stride, pad = (np.array([getattr(a, what) for a in axes]) for what in ("kernel", "stride", "pad"))
    room = g("Add", g.shape(x, 2), 2 * pad - kernel)
    # In Caffe, the last window begins on the map or in the padding before it, if there is padding.
    most = g("Div", g("Add", g.shape(x, 2), pad - 1 + NO_END * (not pad.any())), stride)
    steps = g("Min", g("Div", g("Add", room, stride - 1), stride), most)  # Div rounds to 0: the room is >= 1 - stride
    past = g("Sub", g("Add", g("Mul", steps, stride), kernel), g("Add", g.shape(x, 2), pad))
    ends = g("Concat", [0, 0, *pad.tolist(), 0, 0], g("Max", past, np.zeros(2, np.int64)), axis=0)
    window = {"kernel_shape": kernel.tolist(), "strides": stride.tolist()}
    if layer.method == MAX:
        return [g("MaxPool", g("Pad", x, ends, np.float32(LOWEST)), **window)]  # LOWEST never wins, as in Caffe
    # Ones mark the pixels that the divisor counts: the map, and its padding if counts_padding.
    counted = pad * layer.counts_padding
    ones = g("Expand", 1.0, g("Concat", [1, 1], g("Add", g.shape(x, 2), 2 * counted), axis=0))
    beyond = g("Sub", ends, np.array([0, 0, *counted, 0, 0, *counted]))
    divisor = g("AveragePool", g("Pad", ones, g("Max", beyond, np.zeros(8, np.int64))), **window)
    return [g("Div", g("AveragePool", g("Pad", x, ends), **window), divisor)]  # sum / size over count / size


@exports(SPP)
def spp(g: Graph, layer: SPP, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Concatenate the flattened pooling of each level, for the net's map size."""
    levels = [pooling(g, level, bottom, [top[0]])[0] for level, _ in layer.levels]
    if len(levels) == 1:
        return levels
    return [g("Concat", *(g("Flatten", y, axis=1) for y in levels), axis=1)]


# BatchNorm, BN, Scale, Bias, LRN, MVN, Normalize, Softmax and Dropout.


@exports(BatchNorm)
def batch_norm(g: Graph, layer: BatchNorm, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Emit BatchNormalization with the stored statistics, or operators with the batch's; and NVIDIA's learnt scale and bias."""
    x, learnt = bottom[0], layer.scale_and_bias()
    if not layer.use_global_stats:
        y = _normalised(g, x, layer.eps)[0]
        if learnt is None:
            g.weightless.add(layer.name)
            return [y]
        along = (1, -1, *[1] * (x.rank - 2))
        scale, bias = (g.constant(a.reshape(along).astype(np.float32), n) for a, n in zip(learnt, ("scale", "bias")))
        return [g("Add", g("Mul", y, scale), bias)]
    mean, var = (np.asarray(a, np.float32) for a in statistics(layer.values()))
    if x.rank == 1 and learnt is None:
        scale = np.float32(1) / np.sqrt(var + np.float32(layer.eps))
        return [g("Mul", g("Sub", x, g.constant(mean, "mean")), g.constant(scale, "scale"))]
    times, plus = learnt or (np.ones_like(mean), np.zeros_like(mean))
    weights = g.constant(times.astype(np.float32), "scale"), g.constant(plus.astype(np.float32), "bias")
    return [g("BatchNormalization", x, *weights, g.constant(mean, "mean"), g.constant(var, "var"), epsilon=float(layer.eps))]


def _normalised(g: Graph, x: Value, eps: float) -> list[str]:
    """Return x normalised by the batch's statistics, the mean and the variance. The latter two keep their axes."""
    axes = [axis for axis in range(x.rank) if axis != 1 or x.rank == 1]
    mean = g("ReduceMean", x, axes)
    centred = g("Sub", x, mean)
    variance = g("ReduceMean", g("Mul", centred, centred), axes)
    return [g("Div", centred, g("Sqrt", g("Add", variance, float(eps)))), mean, variance]


@exports(BN, CuDNNBatchNorm)
def bn(g: Graph, layer: BN, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Emit BatchNormalization with the stored statistics; or operators with the batch's or none, then Mul and Add."""
    layer.check_kind()
    x, channels = bottom[0], layer.blobs[0].count
    if not layer.of_batch and layer.kind != SEGNET:
        weights = [g.weight(layer, i, (channels,)) for i in range(4)]
        return [g("BatchNormalization", x, *weights, epsilon=float(layer.eps))]
    y, *statistics = _normalised(g, x, layer.eps) if layer.of_batch else [x.name]
    slope, bias = (g.weight(layer, i, (channels, *[1] * (x.rank - 2))) for i in range(2))
    shown = [g("Reshape", part, [1, channels, 1, 1]) for part in statistics[: len(top) - 1]]
    return [g("Add", g("Mul", y, slope), bias), *shown]


@exports(Scale)
def scale(g: Graph, layer: Scale, bottom: list[Value], top: list[Dims]) -> list[str]:
    param = layer.param.scale_param
    y = g("Mul", bottom[0], _along(g, layer, bottom, param.axis))
    if param.bias_term:
        shape = bottom[1].rank if len(bottom) == 2 else len(layer.blobs[0].shape)
        y = g("Add", y, _aligned_weight(g, layer, len(layer.blobs) - 1, bottom[0], param.axis, shape))
    return [y]


@exports(Bias)
def bias(g: Graph, layer: Bias, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("Add", bottom[0], _along(g, layer, bottom, layer.param.bias_param.axis))]


def _along(g: Graph, layer: Scale | Bias, bottom: list[Value], axis: int) -> Operand:
    """Return the second bottom or the first learnable blob, with trailing axes of length 1 to broadcast along x from `axis`."""
    x = bottom[0]
    if len(bottom) == 1:
        return _aligned_weight(g, layer, 0, x, axis, len(layer.blobs[0].shape))
    rank = bottom[1].rank
    after = x.rank - axis % max(x.rank, 1) - rank if rank else 0
    return g("Unsqueeze", bottom[1], list(range(rank, rank + after))) if after else bottom[1]


def _aligned_weight(g: Graph, layer: Scale | Bias, i: int, x: Value, axis: int, axes: int) -> str:
    shape = layer.blobs[i].shape
    return g.weight(layer, i, (*shape, *[1] * (x.rank - axis % x.rank - axes)) if axes else ())


@exports(LRN)
def lrn(g: Graph, layer: LRN, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Emit LRN. Within a channel the mean of squares is an AveragePool."""
    x, size = bottom[0], layer.size
    if len(layer.axes) == 1:
        if layer.beta <= 0:
            raise layer.error(f"beta must be > 0 in ONNX, got {layer.beta:g}", "lrn_param.beta")
        alpha = float(layer.param.lrn_param.alpha)  # ONNX divides it by size too
        return [g("LRN", x, size=size, alpha=alpha, beta=float(layer.beta), bias=float(layer.k))]
    # As in Caffe, the divisor is always size^2.
    around = {"kernel_shape": [size, size], "pads": [size // 2] * 4, "strides": [1, 1], "count_include_pad": 1}
    mean = g("AveragePool", g("Mul", x, x), **around)
    scale = g("Add", g("Mul", mean, float(layer.param.lrn_param.alpha)), 1.0)
    return [g("Div", x, g("Pow", scale, float(layer.beta)))]


@exports(MVN)
def mvn(g: Graph, layer: MVN, bottom: list[Value], top: list[Dims]) -> list[str]:
    x = bottom[0]
    if x.rank < 4:
        x = Value(g("Unsqueeze", x, list(range(x.rank, 4))), top[0])
    axes = list(layer.axes)
    y = g("Sub", x, g("ReduceMean", x, axes))
    if not layer.param.mvn_param.normalize_variance:
        return [y]
    deviation = g("Sqrt", g("ReduceMean", g("Mul", y, y), axes))
    return [g("Div", y, g("Add", deviation, float(layer.param.mvn_param.eps)))]


def _norm_by_type(g: Graph, layer: Normalize, x: Value) -> str:
    """Return happynear's norm at each position, (N, 1, ...)."""
    if layer.param.normalize_param.normalize_type == "L1":
        return g("Add", g("ReduceSum", g("Abs", x), [1]), LEAST)
    return g("Sqrt", g("Add", g("ReduceSum", g("Mul", x, x), [1]), LEAST))


@exports(Normalize)
def normalize(g: Graph, layer: Normalize, bottom: list[Value], top: list[Dims]) -> list[str]:
    layer.check_kind()
    if layer.by_type:
        norm = _norm_by_type(g, layer, bottom[0])
        found = [g("Div", bottom[0], norm), norm][: len(top)]
        more = 4 - bottom[0].rank  # axes of 1, as in the fork's tops
        return [g("Unsqueeze", part, list(range(4 - more, 4))) for part in found] if more > 0 else found
    x, param = bottom[0], layer.param.norm_param
    axes = list(range(1, x.rank)) if param.across_spatial else [1]
    length = g("Sqrt", g("Add", g("ReduceSumSquare", x, axes), float(param.eps)))
    scale = g.weight(layer, 0, () if param.channel_shared else (layer.blobs[0].count, *[1] * (x.rank - 2)))
    return [g("Mul", g("Div", x, length), scale)]


@exports(Softmax)
def softmax(g: Graph, layer: Softmax, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("Softmax", bottom[0], axis=layer.param.softmax_param.axis)]


@exports(Dropout)
def dropout(g: Graph, layer: Dropout, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Emit no node; without scale_train, a product with the factor of TEST."""
    if layer.draws:
        why = "a random mask in TEST has no ONNX form: without this field the model gives the mean net's numbers"
        raise layer.error(why, "dropout_param.sample_weights_test")
    return [bottom[0].name if layer.scale_train else g("Mul", bottom[0], float(1 - layer.dropout_ratio))]


@exports(ChannelNorm)
def channel_norm(g: Graph, layer: ChannelNorm, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("ReduceL2", bottom[0], [1])]
