"""BatchNorm, BN, Scale, Bias, LRN, MVN, Normalize, Softmax and Dropout."""

from __future__ import annotations

import numpy as np

from minicaffe.layers.elementwise.scale import Bias, Scale
from minicaffe.layers.forks.flownet.flownet_layers import ChannelNorm
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.neuron.dropout import Dropout
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.batch_norm_layouts import statistics
from minicaffe.layers.norm.bn import BN, SEGNET
from minicaffe.layers.norm.lrn import LRN
from minicaffe.layers.norm.mvn import MVN
from minicaffe.layers.norm.normalize import LEAST, Normalize
from minicaffe.registry import exports

from .graph import Dims, Graph, Operand, Value


@exports(BatchNorm)
def batch_norm(g: Graph, layer: BatchNorm, bottom: list[Value], top: list[Dims]) -> list[str]:
    """BatchNormalization with the stored statistics, or the statistics of the batch; NVIDIA's learnt scale and bias."""
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
    """x normalised by the batch's statistics, mean and variance, which keep their axes."""
    axes = [axis for axis in range(x.rank) if axis != 1 or x.rank == 1]
    mean = g("ReduceMean", x, axes)
    centred = g("Sub", x, mean)
    variance = g("ReduceMean", g("Mul", centred, centred), axes)
    return [g("Div", centred, g("Sqrt", g("Add", variance, float(eps)))), mean, variance]


@exports(BN)
def bn(g: Graph, layer: BN, bottom: list[Value], top: list[Dims]) -> list[str]:
    """BatchNormalization with the stored statistics; or the batch's, or none, and Mul and Add."""
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
    """The second bottom, or the first learnable blob, with trailing axes of length 1 to broadcast along x from `axis` on."""
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
    """LRN; within a channel the mean of squares is an AveragePool."""
    x, size = bottom[0], layer.size
    if len(layer.axes) == 1:
        if layer.beta <= 0:
            raise layer.error(f"beta must be > 0 in ONNX, got {layer.beta:g}", "lrn_param.beta")
        alpha = float(layer.param.lrn_param.alpha)  # ONNX divides it by size too
        return [g("LRN", x, size=size, alpha=alpha, beta=float(layer.beta), bias=float(layer.k))]
    # always size^2, as Caffe
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
    """happynear's norm of each position, (N, 1, ...)."""
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
    """No node; without scale_train, the factor of TEST."""
    return [bottom[0].name if layer.scale_train else g("Mul", bottom[0], float(1 - layer.dropout_ratio))]


@exports(ChannelNorm)
def channel_norm(g: Graph, layer: ChannelNorm, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("ReduceL2", bottom[0], [1])]
