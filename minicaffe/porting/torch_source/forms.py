"""Layers with weights, and layers of feature maps and sequences, as lines of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Array, Arrays
from minicaffe.layer import Layer
from minicaffe.layers.conv.convolution import Convolution, DepthwiseConvolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.deformable_convolution import DeformableConvolution, ModulatedDeformableConvolution
from minicaffe.layers.conv.inner_product import Embed, InnerProduct
from minicaffe.layers.elementwise.scale import Bias, Scale
from minicaffe.layers.forks.genet import CuDNNBatchNorm
from minicaffe.layers.neuron.relu import PReLU
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.batch_norm_layouts import BVLC
from minicaffe.layers.norm.bn import BN, SEGNET
from minicaffe.layers.norm.lrn import LRN, WITHIN_CHANNEL
from minicaffe.layers.norm.mvn import MVN
from minicaffe.layers.norm.normalize import Normalize
from minicaffe.layers.pool.pooling import AVE, Pooling
from minicaffe.layers.pool.unpooling import MAX, Unpooling, Upsample
from minicaffe.layers.recurrent.ctc_greedy_decoder import CTCGreedyDecoder
from minicaffe.layers.recurrent.lstm import LSTM, Lstm, LSTMUnit
from minicaffe.layers.recurrent.rnn import RNN, ContinuationIndicator
from minicaffe.layers.shape.interp import Interp
from minicaffe.parameters import weight_name
from minicaffe.proto import caffe_pb2

from .source import Gradient, Shapes, Source, number, source


def _weights(layer: Layer, names: Sequence[str] = ("weight", "bias")) -> Arrays:
    """Return the layer's arrays under these names, by default torch's own."""
    return {name: np.asarray(blob.read_data()) for name, blob in zip(names, layer.blobs)}


def _sizes(values: Sequence[int]) -> str:
    """Return the text of sizes: 3 if they are equal, (3, 5) otherwise."""
    return str(values[0]) if len(set(values)) == 1 else str(tuple(int(value) for value in values))


def _options(**given: tuple[Any, Any]) -> str:
    """Return ", name=value" for each value that is not the default."""
    return "".join(f", {name}={value}" for name, (value, usual) in given.items() if str(value) != str(usual))


@source(Convolution, DepthwiseConvolution, Deconvolution)
def convolution(s: Source, layer: Convolution, bottom: Sequence[str], top: Shapes) -> list[str]:
    if layer.axis != 1 or layer.spatial_axes not in (1, 2, 3):
        raise layer.error("convolves along other axes than PyTorch", "type")
    window, weight = layer.window, layer.blobs[0].shape
    transposed = isinstance(layer, Deconvolution)
    inputs, outputs = (weight[0], weight[1] * layer.group) if transposed else (weight[1] * layer.group, weight[0])
    options = _options(
        stride=(_sizes(window.stride), 1),
        padding=(_sizes(window.pad), 0),
        dilation=(_sizes(window.dilation), 1),
        groups=(layer.group, 1),
        bias=(len(layer.blobs) > 1, True),
    )
    kind = f"nn.Conv{'Transpose' * transposed}{layer.spatial_axes}d"
    made = s.module(layer, f"{kind}({inputs}, {outputs}, {_sizes(weight[2:])}{options})", _weights(layer))
    return [f"{made}({x})" for x in bottom]


@source(DeformableConvolution, ModulatedDeformableConvolution)
def deformable_convolution(s: Source, layer: DeformableConvolution, bottom: Sequence[str], top: Shapes) -> str:
    window = layer.window
    sizes = (window.kernel, window.stride, window.pad, window.dilation)
    written = ", ".join(str(tuple(int(n) for n in size)) for size in sizes)
    options = _options(groups=(layer.group, 1), deformable=(layer.deformable_group, 1), bias=(len(layer.blobs) > 1, True))
    made = s.module(layer, f"DeformableConv2d({layer.channels}, {layer.num_output}, {written}{options})", _weights(layer))
    return f"{made}({', '.join(bottom)})"


@source(InnerProduct)
def inner_product(s: Source, layer: InnerProduct, bottom: Sequence[str], top: Shapes) -> str:
    if layer.normalize:
        raise layer.error("normalises its weights, which has no form", "inner_product_param.normalize")
    arrays = _weights(layer)
    arrays["weight"] = arrays["weight"].T if layer.transpose else arrays["weight"]
    outputs = arrays["weight"].shape[0]
    arrays["weight"] = arrays["weight"].reshape(outputs, layer.inputs)
    made = s.module(layer, f"nn.Linear({layer.inputs}, {outputs}{_options(bias=(len(arrays) > 1, True))})", arrays)
    return f"{made}({bottom[0]}.flatten({layer.axis}))"


@source(Embed)
def embed(s: Source, layer: Embed, bottom: Sequence[str], top: Shapes) -> str:
    arrays = _weights(layer)
    bias = "" if len(arrays) > 1 else ", bias=False"
    return f"{s.module(layer, 'Embed({}, {}{})'.format(*arrays['weight'].shape, bias), arrays)}({bottom[0]})"


@source(Pooling)
def pooling(s: Source, layer: Pooling, bottom: Sequence[str], top: Shapes) -> str:
    param, (kernel, stride, pad) = layer.param.pooling_param, layer.sizes
    if param.pool == caffe_pb2.PoolingParameter.STOCHASTIC:
        raise layer.error("has no form: only MAX and AVE", "pooling_param.pool")
    x, mean = bottom[0], layer.method == AVE
    if not layer.has_even_pads:
        rows, columns = layer.rows, layer.columns
        if mean or len(top) > 1 or max(stride) > 1:
            reason = "with other padding after the map than before it has a form only for MAX with a stride of 1 and one top"
            raise layer.error(reason, "pooling_param")
        padded = f"F.pad({x}, {(columns.pad, columns.end, rows.pad, rows.end)}, value=float('-inf'))"
        return f"F.max_pool2d({padded}, {_sizes(kernel)}, stride=1)"
    foreign = any(2 * p > k or step > k for k, step, p in zip(kernel, stride, pad))  # PyTorch has no such windows
    if len(top) > 1 and (param.global_pooling or foreign):
        raise layer.error("with a mask has no form for windows that miss rows or columns, or of the whole map", "pooling_param")
    if param.global_pooling:
        return f"{x}.mean((2, 3), keepdim=True)" if mean else f"F.adaptive_max_pool2d({x}, 1)"
    if foreign:
        sizes = ", ".join(str(tuple(int(value) for value in each)) for each in (kernel, stride, pad))
        counts = "" if layer.counts_padding else ", counts_padding=False"
        return f"pool_windows({x}, {sizes}, mean={mean}, floor={layer.floor}{counts})"
    options = _options(padding=(_sizes(pad), 0), ceil_mode=(not layer.floor, False))
    options += _options(count_include_pad=(layer.counts_padding, True)) if mean else ""
    options += ", return_indices=True" if len(top) > 1 else ""
    return f"F.{'avg' if mean else 'max'}_pool2d({x}, {_sizes(kernel)}, stride={_sizes(stride)}{options})"


@source(Unpooling)
def unpooling(s: Source, layer: Unpooling, bottom: Sequence[str], top: Shapes) -> str:
    if layer.method != MAX or len(bottom) == 1:
        raise layer.error("has no form: only MAX with a mask", "unpooling_param")
    return _unpool(s, bottom, top)


@source(Upsample)
def upsample(s: Source, layer: Upsample, bottom: Sequence[str], top: Shapes) -> str:
    if len(bottom) == 2:
        return _unpool(s, bottom, top)
    rows, columns = layer.scale
    return f"{bottom[0]}.repeat_interleave({rows}, -2).repeat_interleave({columns}, -1)"


def _unpool(s: Source, bottom: Sequence[str], top: Shapes) -> str:
    return f"unpool({bottom[0]}, {bottom[1]}, {top[0][2]}, {top[0][3]})"


@source(Interp)
def interp(s: Source, layer: Interp, bottom: Sequence[str], top: Shapes) -> str:
    """Return F.interpolate. In float64 it differs by up to 1e-6, because the layer keeps the original's step in float32."""
    param, x, (before, after) = layer.param.interp_param, bottom[0], layer.pads
    cut = f"{-before or ''}:{after or ''}"
    size: object = (param.height, param.width)
    if param.HasField("shrink_factor") or param.HasField("zoom_factor"):
        shrunk = f" // {param.shrink_factor}" * (param.shrink_factor != 1)
        zoomed = f" * {param.zoom_factor}" * (param.zoom_factor != 1)
        size = f"[(n - {1 - before - after}){shrunk}{zoomed} + 1 for n in {x}.shape[2:]]"
    cropped = x if cut == ":" else f"{x}[:, :, {cut}, {cut}]"
    return f'F.interpolate({cropped}, {size}, mode="bilinear", align_corners=True)'


@source(LRN)
def lrn(s: Source, layer: LRN, bottom: Sequence[str], top: Shapes) -> str:
    p = layer.param.lrn_param
    if p.norm_region != WITHIN_CHANNEL:
        numbers = ", ".join(f"{name}={number(layer, getattr(p, name))}" for name in ("alpha", "beta", "k"))
        return f"F.local_response_norm({bottom[0]}, {p.local_size}, {numbers})"
    mean = f"F.avg_pool2d({bottom[0]}.square(), {p.local_size}, stride=1, padding={p.local_size // 2})"
    return f"{bottom[0]} / (1 + {number(layer, p.alpha)} * {mean}) ** {number(layer, p.beta)}"


@source(BatchNorm)
def batch_norm(s: Source, layer: BatchNorm, bottom: Sequence[str], top: Shapes) -> str:
    if layer.layout != BVLC:
        raise layer.error("of NVIDIA's or Intel's forks has no form", "type")
    param = layer.param.batch_norm_param
    if param.HasField("use_global_stats") and not param.use_global_stats:
        return f"F.batch_norm({bottom[0]}, None, None, training=True, eps={number(layer, layer.eps)})"
    mean, variance, factor = (np.asarray(blob.read_data(), np.float64) for blob in layer.blobs)
    inverse = 0 if factor.reshape(-1)[0] == 0 else 1 / factor.reshape(-1)[0]
    kind = layer.blobs[0].dtype
    tensors = {"running_mean": (mean * inverse).astype(kind), "running_var": (variance * inverse).astype(kind)}
    axes = {4: "2d", 5: "3d"}.get(len(top[0]), "1d")
    options = f"eps={number(layer, layer.eps)}, affine=False"
    return f"{s.module(layer, f'nn.BatchNorm{axes}({len(mean)}, {options})', tensors)}({bottom[0]})"


@source(BN, CuDNNBatchNorm)
def bn(s: Source, layer: BN, bottom: Sequence[str], top: Shapes) -> str:
    layer.check_kind()
    if layer.of_batch or len(top) > 1:
        raise layer.error("with the statistics of the batch has no form (bn_mode: INFERENCE has)", "bn_param.bn_mode")
    stored = _weights(layer, ("weight", "bias", "running_mean", "running_var"))
    arrays = {name: array.reshape(-1) for name, array in stored.items()}
    channels = len(arrays["weight"])
    if layer.kind == SEGNET:
        return f"{s.module(layer, f'Scale(({channels},), bias=True)', arrays)}({bottom[0]})"
    axes = {4: "2d", 5: "3d"}.get(len(top[0]), "1d")
    still = ".requires_grad_(False)" if layer.frozen else ""
    made = f"nn.BatchNorm{axes}({channels}, eps={number(layer, layer.eps)}){still}"
    return f"{s.module(layer, made, arrays)}({bottom[0]})"


@source(MVN)
def mvn(s: Source, layer: MVN, bottom: Sequence[str], top: Shapes) -> str:
    param = layer.param.mvn_param
    eps = f", {number(layer, param.eps)}" if param.normalize_variance else ""
    return f"mvn({bottom[0]}, {layer.axes}{eps})"


@source(Normalize)
def normalize(s: Source, layer: Normalize, bottom: Sequence[str], top: Shapes) -> str:
    layer.check_kind()
    if layer.by_type:
        raise layer.error("of caffe-windows has no form", "type")
    param = layer.param.norm_param
    scales = np.asarray(layer.blobs[0].read_data()).reshape(-1)
    made = f"Normalize({len(scales)}, across_spatial={param.across_spatial}, eps={number(layer, param.eps)})"
    return f"{s.module(layer, made, {'weight': scales})}({bottom[0]})"


@source(Scale, Bias)
def scale(s: Source, layer: Scale, bottom: Sequence[str], top: Shapes) -> str:
    only_bias = isinstance(layer, Bias)
    axis = (layer.param.bias_param if only_bias else layer.param.scale_param).axis % len(top[0])
    if not layer.blobs:
        return f"{bottom[0]} {'+' if only_bias else '*'} along({bottom[1]}, {bottom[0]}, {axis})"
    tensors = _weights(layer, ("bias",) if only_bias or len(bottom) > 1 else ("weight", "bias"))
    shape = tuple(int(length) for length in layer.blobs[0].shape)
    options = _options(axis=(axis, 1), weight=("weight" in tensors, True), bias=("bias" in tensors, False))
    return f"{s.module(layer, f'Scale({shape}{options})', tensors)}({', '.join(bottom)})"


@source(PReLU)
def prelu(s: Source, layer: PReLU, bottom: Sequence[str], top: Shapes) -> str:
    slopes = np.asarray(layer.blobs[0].read_data()).reshape(-1)
    return f"{s.module(layer, f'nn.PReLU({slopes.size})', {'weight': slopes})}({bottom[0]})"


def _named(layer: Layer) -> Arrays:
    """Return the layer's arrays under its own names."""
    return _weights(layer, [weight_name(layer, i) for i in range(len(layer.blobs))])


def _torch_lstm(s: Source, layer: LSTM | Lstm, weights: tuple[int, int, int]) -> str:
    """Return torch's LSTM, which begins with states of 0. weights: the indices of weight_x, weight_h and the bias."""

    def of(i: int) -> Gradient:
        return lambda blobs: _torch_gates(blobs[i])

    weight_x, weight_h, bias = (of(i) for i in weights)
    gradients = {"weight_ih_l0": weight_x, "weight_hh_l0": weight_h, "bias_ih_l0": bias, "bias_hh_l0": bias}
    tensors = {key: gradient([blob.read_data() for blob in layer.blobs]) for key, gradient in gradients.items()}
    tensors["bias_hh_l0"] = np.zeros_like(tensors["bias_hh_l0"])  # torch adds both biases
    return s.module(layer, f"nn.LSTM({layer.blobs[weights[0]].shape[1]}, {layer.units})", tensors, gradients)


def _torch_gates(array: Array) -> Array:
    """Return the rows (4 D, ...) of Caffe's gates i, f, o, g in torch's order i, f, g, o."""
    gates: Array = array.reshape(4, -1, *array.shape[1:])[[0, 1, 3, 2]].reshape(array.shape)
    return gates


@source(LSTM, RNN)
def recurrent(s: Source, layer: LSTM | RNN, bottom: Sequence[str], top: Shapes) -> str:
    """Return torch's LSTM for sequences that begin at the first step, else Caffe's steps."""
    kind = type(layer).__name__
    if isinstance(layer, LSTM) and len(bottom) == 2 and isinstance(s.maker(bottom[1]), ContinuationIndicator):
        return f"{_torch_lstm(s, layer, (0, 2, 1))}({bottom[0]}.flatten(2))[0]"
    static = f", static={layer.inputs[1]}" if layer.static else ""
    made = s.module(
        layer,
        f"{kind}({layer.inputs[0]}, {layer.units}{static})",
        _named(layer),
    )
    given = [*bottom[:2], *([f"static={bottom[2]}"] if layer.static else [])]
    given += [f"{name}={value}" for name, value in zip(layer.states, bottom[layer.exposed])]
    return f"{made}({', '.join(given)})" + ("[0]" if len(top) == 1 else "")


@source(Lstm)
def lstm_of_forks(s: Source, layer: Lstm, bottom: Sequence[str], top: Shapes) -> str:
    if len(bottom) > 1 or np.isfinite(layer.bound):
        raise layer.error("with clip or a clipping_threshold has no form", "bottom[1]" if len(bottom) > 1 else "lstm_param")
    param = layer.param.lstm_param
    if param.own_states:
        made = _torch_lstm(s, layer, (0, 1, 2))
    else:
        made = s.module(layer, f"LSTM({layer.inputs}, {layer.units}, first_only=True)", _named(layer))
    if layer.streams_apart:
        return f"{made}({bottom[0]}.flatten(2))[0]"
    return f"{made}({bottom[0]}.reshape(-1, {param.batch_size}, {layer.inputs}))[0].flatten(0, 1)"


@source(LSTMUnit)
def lstm_unit(s: Source, layer: LSTMUnit, bottom: Sequence[str], top: Shapes) -> str:
    return f"lstm_unit({', '.join(bottom)})"


@source(ContinuationIndicator)
def continuation_indicator(s: Source, layer: ContinuationIndicator, bottom: Sequence[str], top: Shapes) -> str:
    param = layer.param.continuation_indicator_param
    if not bottom:
        return f"F.pad(torch.ones({param.time_step - 1}, {param.batch_size}), (0, 0, 1, 0))"
    return f"F.pad({bottom[0]}.new_ones({param.time_step - 1}, {bottom[0]}.shape[{param.axis}]), (0, 0, 1, 0))"


@source(CTCGreedyDecoder)
def ctc_greedy_decoder(s: Source, layer: CTCGreedyDecoder, bottom: Sequence[str], top: Shapes) -> str:
    if layer.accuracy_top:
        raise layer.error("with true labels has no form", f"top[{layer.accuracy_top}]")
    merge = "" if layer.param.ctc_decoder_param.ctc_merge_repeated else ", merge=False"
    if len(bottom) < 2:
        raise layer.error("has no form without the sequences' continuation", "bottom")
    made = f"ctc_greedy({bottom[0]}, {bottom[1]}, {layer.blank}{merge})"
    return made if len(top) > 1 else f"{made}[0]"
