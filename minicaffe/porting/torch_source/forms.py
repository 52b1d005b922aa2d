"""The layers as lines of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.layers.conv.convolution import Convolution, DepthwiseConvolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.inner_product import InnerProduct
from minicaffe.layers.elementwise.eltwise import Eltwise
from minicaffe.layers.elementwise.scale import Bias, Scale
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.neuron.dropout import Dropout
from minicaffe.layers.neuron.functions import Power, ReLU6, Sigmoid, TanH
from minicaffe.layers.neuron.relu import PReLU, ReLU
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.batch_norm_layouts import BVLC
from minicaffe.layers.norm.lrn import LRN, WITHIN_CHANNEL
from minicaffe.layers.norm.normalize import Normalize
from minicaffe.layers.pool.pooling import AVE, Pooling
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.roi.psroi_pooling import PSROIPooling
from minicaffe.layers.roi.roi_pooling import ROIPooling
from minicaffe.layers.shape.concat import Concat, Slice
from minicaffe.layers.shape.rearranged import Permute
from minicaffe.layers.shape.reshape import Flatten, Reshape
from minicaffe.layers.shape.split import Silence
from minicaffe.layers.ssd.detection_output import DetectionOutput
from minicaffe.layers.ssd.prior_box import PriorBox
from minicaffe.proto import caffe_pb2
from minicaffe.registry import Table

from .source import Source, literal

Shapes = Sequence[tuple[int, ...]]
Operation = caffe_pb2.EltwiseParameter

source: Table[Callable[..., Any]] = Table("PyTorch source", "minicaffe.porting.torch_source")
"""By class: (source, layer, the bottoms' variables, the tops' shapes) -> expressions. @source(Mine) adds your own."""


def _weights(layer: Layer, *shapes: Sequence[int] | None) -> dict[str, Array]:
    """weight and bias, as torch names them."""
    names = ("weight", "bias")
    arrays = (np.asarray(blob.read_data()) for blob in layer.blobs)
    return {name: array if shape is None else array.reshape(shape) for name, array, shape in zip(names, arrays, shapes)}


def number(layer: Layer, value: float) -> str:
    """The shortest number that is this one in the layer's type."""
    with np.errstate(over="ignore"):
        typed = layer.dtype.type(value)
    return str(typed) if np.isfinite(typed) and layer.dtype != np.float64 else literal(float(typed))


def line(layer: Layer, x: str, scale: float, shift: float) -> str:
    """scale x + shift, without what changes nothing."""
    scaled = x if scale == 1 else f"{x} * {number(layer, scale)}"
    return scaled if shift == 0 else f"{scaled} + {number(layer, shift)}"


def _sizes(values: Sequence[int]) -> str:
    """3 for equal sizes, (3, 5) for others."""
    return str(values[0]) if len(set(values)) == 1 else str(tuple(int(value) for value in values))


def _options(**given: tuple[Any, Any]) -> str:
    """, name=value for each that is not its default."""
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
    made = s.module(layer, f"{kind}({inputs}, {outputs}, {_sizes(weight[2:])}{options})", _weights(layer, None, None))
    return [f"{made}({x})" for x in bottom]


@source(InnerProduct)
def inner_product(s: Source, layer: InnerProduct, bottom: Sequence[str], top: Shapes) -> str:
    if layer.normalize:
        raise layer.error("normalises its weights, which has no form", "inner_product_param.normalize")
    arrays = _weights(layer, None, None)
    arrays["weight"] = arrays["weight"].T if layer.transpose else arrays["weight"]
    outputs = arrays["weight"].shape[0]
    arrays["weight"] = arrays["weight"].reshape(outputs, layer.inputs)
    made = s.module(layer, f"nn.Linear({layer.inputs}, {outputs}{_options(bias=(len(arrays) > 1, True))})", arrays)
    return f"{made}({bottom[0]}.flatten({layer.axis}))"


@source(Pooling)
def pooling(s: Source, layer: Pooling, bottom: Sequence[str], top: Shapes) -> str:
    param, (kernel, stride, pad) = layer.param.pooling_param, layer.sizes
    if param.pool == caffe_pb2.PoolingParameter.STOCHASTIC:
        raise layer.error("has no form: only MAX and AVE", "pooling_param.pool")
    x, mean = bottom[0], layer.method == AVE
    foreign = any(2 * p > k or step > k for k, step, p in zip(kernel, stride, pad))  # PyTorch has no such windows
    if len(top) > 1 and (param.global_pooling or foreign):
        raise layer.error("with a mask has no form for windows that miss rows or columns, or of the whole map", "pooling_param")
    if param.global_pooling:
        return f"{x}.mean((2, 3), keepdim=True)" if mean else f"F.adaptive_max_pool2d({x}, 1)"
    if foreign:
        if mean and not layer.counts_padding:
            raise layer.error("has no form where its means leave the padding out", "pooling_param")
        s.part("pool_windows")
        sizes = ", ".join(str(tuple(int(value) for value in each)) for each in (kernel, stride, pad))
        return f"pool_windows({x}, {sizes}, mean={mean}, floor={layer.floor})"
    options = _options(padding=(_sizes(pad), 0), ceil_mode=(not layer.floor, False))
    options += _options(count_include_pad=(layer.counts_padding, True)) if mean else ""
    options += ", return_indices=True" if len(top) > 1 else ""
    return f"F.{'avg' if mean else 'max'}_pool2d({x}, {_sizes(kernel)}, stride={_sizes(stride)}{options})"


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
        s.part("batch_statistics")
        return f"normalized_by_batch({bottom[0]}, {number(layer, layer.eps)})"
    mean, variance, factor = (np.asarray(blob.read_data(), np.float64) for blob in layer.blobs)
    inverse = 0 if factor.reshape(-1)[0] == 0 else 1 / factor.reshape(-1)[0]
    kind = layer.blobs[0].dtype
    tensors = {"running_mean": (mean * inverse).astype(kind), "running_var": (variance * inverse).astype(kind)}
    axes = {4: "2d", 5: "3d"}.get(len(top[0]), "1d")
    options = f"eps={number(layer, layer.eps)}, affine=False"
    return f"{s.module(layer, f'nn.BatchNorm{axes}({len(mean)}, {options})', tensors)}({bottom[0]})"


@source(Scale, Bias)
def scale(s: Source, layer: Scale, bottom: Sequence[str], top: Shapes) -> str:
    if len(bottom) > 1:
        raise layer.error("of two bottoms has no form", "bottom[1]")
    only_bias = isinstance(layer, Bias)
    axis = (layer.param.bias_param if only_bias else layer.param.scale_param).axis % len(top[0])
    s.part("scale")
    names = ("bias",) if only_bias else ("weight", "bias")
    tensors = {name: np.asarray(blob.read_data()) for name, blob in zip(names, layer.blobs)}
    shape = tuple(int(length) for length in layer.blobs[0].shape)
    options = _options(axis=(axis, 1), weight=(not only_bias, True), bias=("bias" in tensors, False))
    return f"{s.module(layer, f'Scale({shape}{options})', tensors)}({bottom[0]})"


@source(PReLU)
def prelu(s: Source, layer: PReLU, bottom: Sequence[str], top: Shapes) -> str:
    slopes = layer.blobs[0].count
    return f"{s.module(layer, f'nn.PReLU({slopes})', _weights(layer, (slopes,)))}({bottom[0]})"


@source(ReLU)
def relu(s: Source, layer: ReLU | ReLU6, bottom: Sequence[str], top: Shapes) -> str:
    slope = layer.negative_slope
    return f"F.leaky_relu({bottom[0]}, {number(layer, slope)})" if slope else f"F.relu({bottom[0]})"


@source(Eltwise)
def eltwise(s: Source, layer: Eltwise, bottom: Sequence[str], top: Shapes) -> str:
    operation = layer.param.eltwise_param.operation
    if operation == Operation.PROD:
        return " * ".join(bottom)
    if operation == Operation.SUM:
        terms = (x if c == 1 else f"{number(layer, c)} * {x}" for x, c in zip(bottom, layer.coeff))
        return " + ".join(terms)
    made = bottom[0]
    for i, x in enumerate(bottom[1:]):  # equal numbers: the gradient goes where Caffe's does
        made = f"torch.where({x} {'>' if i else '>='} {made}, {x}, {made})"
    return made


@source(Concat)
def concat(s: Source, layer: Concat, bottom: Sequence[str], top: Shapes) -> str:
    return f"torch.cat([{', '.join(bottom)}], {layer.axis})"


@source(Slice)
def slices(s: Source, layer: Slice, bottom: Sequence[str], top: Shapes) -> str:
    sizes = [shape[layer.axis] for shape in top]
    return f"{bottom[0]}.split({sizes}, {layer.axis})"


@source(Flatten)
def flatten(s: Source, layer: Flatten, bottom: Sequence[str], top: Shapes) -> str:
    param = layer.param.flatten_param
    return f"{bottom[0]}.flatten({param.axis}, {param.end_axis})"


@source(Reshape)
def reshape(s: Source, layer: Reshape, bottom: Sequence[str], top: Shapes) -> str:
    param, dims = layer.param.reshape_param, layer.param.reshape_param.shape.dim
    axes = len(top[0]) - len(dims) + max(0, param.num_axes)  # the bottom's, but those that num_axes: -1 replaces
    start = axes if param.num_axes == -1 else param.axis if param.axis >= 0 else axes + param.axis + 1
    copied = [f"{bottom[0]}.shape[{i}]" for i in range(max(axes, start + len(dims)))]
    new = [str(dim) if dim else copied[start + i] for i, dim in enumerate(dims)]
    return f"{bottom[0]}.reshape({', '.join([*copied[:start], *new, *copied[start + max(0, param.num_axes) : axes]])})"


@source(Permute)
def permute(s: Source, layer: Permute, bottom: Sequence[str], top: Shapes) -> str:
    given = list(layer.param.permute_param.order)
    order = given + [axis for axis in range(len(top[0])) if axis not in given]
    return f"{bottom[0]}.permute({', '.join(map(str, order))})"


@source(Softmax)
def softmax(s: Source, layer: Softmax, bottom: Sequence[str], top: Shapes) -> str:
    return f"{bottom[0]}.softmax({layer.param.softmax_param.axis})"


@source(Power)
def power(s: Source, layer: Power, bottom: Sequence[str], top: Shapes) -> str:
    param = layer.param.power_param
    if param.power * param.scale == 0:
        with np.errstate(all="ignore"):
            constant = np.float64(param.shift) ** param.power if param.power else 1.0
        return f"torch.full_like({bottom[0]}, {number(layer, constant)})"
    shifted = line(layer, bottom[0], param.scale, param.shift)
    return shifted if param.power == 1 else f"({shifted}) ** {number(layer, param.power)}"


@source(Sigmoid)
def sigmoid(s: Source, layer: Sigmoid, bottom: Sequence[str], top: Shapes) -> str:
    return f"torch.sigmoid({bottom[0]})"


@source(TanH)
def tanh(s: Source, layer: TanH, bottom: Sequence[str], top: Shapes) -> str:
    return f"torch.tanh({bottom[0]})"


@source(Dropout)
def dropout(s: Source, layer: Dropout, bottom: Sequence[str], top: Shapes) -> str:
    ratio = layer.param.dropout_param.dropout_ratio
    made = f"F.dropout({bottom[0]}, {number(layer, ratio)}, self.training)"
    scaled = layer.param.dropout_param.scale_train
    return made if scaled else f"{made} * {number(layer, 1 - ratio)}"  # the R-CNN forks': scaled in TEST, not in TRAIN


@source(Silence)
def silence(s: Source, layer: Silence, bottom: Sequence[str], top: Shapes) -> list[str]:
    return []


@source(Normalize)
def normalize(s: Source, layer: Normalize, bottom: Sequence[str], top: Shapes) -> str:
    layer.check_kind()
    if layer.by_type:
        raise layer.error("of caffe-windows has no form", "type")
    s.part("normalize")
    param = layer.param.norm_param
    scales = np.asarray(layer.blobs[0].read_data()).reshape(-1)
    made = f"Normalize({len(scales)}, across_spatial={param.across_spatial}, eps={number(layer, param.eps)})"
    return f"{s.module(layer, made, {'weight': scales})}({bottom[0]})"


@source(ROIPooling)
def roi_pooling(s: Source, layer: ROIPooling, bottom: Sequence[str], top: Shapes) -> str:
    if layer.param.roi_pooling_param.pad_ratio:
        raise layer.error("with pad_ratio has no form", "roi_pooling_param.pad_ratio")
    s.part("roi_pool")
    return f"roi_pool({bottom[0]}, {bottom[1]}, {top[0][2]}, {top[0][3]}, {literal(layer.spatial_scale)})"


@source(PSROIPooling)
def psroi_pooling(s: Source, layer: PSROIPooling, bottom: Sequence[str], top: Shapes) -> str:
    s.part("psroi_pool")
    param = layer.param.psroi_pooling_param
    return f"psroi_pool({bottom[0]}, {bottom[1]}, {param.output_dim}, {param.group_size}, {literal(layer.spatial_scale)})"


@source(Proposal)
def proposal(s: Source, layer: Proposal, bottom: Sequence[str], top: Shapes) -> str:
    if layer.by_param or layer.unnormalise:
        raise layer.error("has no form: only py-faster-rcnn's", "type")
    s.part("proposal")
    anchors = [[float(value) for value in anchor] for anchor in layer.anchors]
    limits = layer.limits
    numbers = (int(layer.stride), limits.pre_nms_top_n, limits.post_nms_top_n, limits.nms_threshold, limits.min_size)
    table = s.constant(f"{layer.name}_anchors", anchors)
    made = f"proposal({', '.join(bottom)}, {table}, {', '.join(map(literal, numbers))})"
    return made if len(top) > 1 else f"{made}[0]"


@source(PriorBox)
def prior_box(s: Source, layer: PriorBox, bottom: Sequence[str], top: Shapes) -> str:
    param = layer.param.prior_box_param
    s.part("prior_boxes")
    lists = [[float(value) for value in each or ()] for each in (layer.variance, layer.step, layer.image)]
    pairs = layer.sides, layer.offsets, layer.shifts if layer.shifts.any() else ()
    sides, places, shifts = ([[float(value) for value in pair] for pair in each] for each in pairs)
    numbers = f"{', '.join(map(literal, (sides, *lists, places, shifts)))}, {param.clip}"
    return f"prior_boxes({', '.join(bottom)}, {numbers})"


@source(DetectionOutput, subclasses=True)
def detection_output(s: Source, layer: DetectionOutput, bottom: Sequence[str], top: Shapes) -> str:
    p = layer.param.detection_output_param
    if layer.of_cells or layer.refines or p.nms_param.eta < 1 or p.code_type != caffe_pb2.PriorBoxParameter.CENTER_SIZE:
        raise layer.error("has no form: only SSD's with CENTER_SIZE codes, and eta 1", "detection_output_param")
    s.part("detection_output")
    least = number(layer, p.confidence_threshold if p.HasField("confidence_threshold") else -np.inf)
    before = p.nms_param.top_k if p.nms_param.HasField("top_k") else -1
    flags = f"{p.num_classes}, {p.background_label_id}, {p.share_location}, {p.variance_encoded_in_target}"
    ends = f"{number(layer, p.nms_param.nms_threshold)}, {before}, {p.keep_top_k}"
    return f"detection_output({', '.join(bottom)}, {flags}, {least}, {ends})"
