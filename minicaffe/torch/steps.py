"""The types without weights as functions of tensors: neurons, poolings, changes of shape, ROI layers.

Each is made of the layer, its bottoms and its tops, and gives a function of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from minicaffe.layer import Layer
from minicaffe.layers.lrn import WITHIN_CHANNEL
from minicaffe.proto import caffe_pb2

from .roi import ps_roi_align, ps_roi_pool, roi_align, roi_align_max, roi_pool

Step = Callable[..., Any]
Eltwise, Pooling, Reduction = caffe_pb2.EltwiseParameter, caffe_pb2.PoolingParameter, caffe_pb2.ReductionParameter


class Apply(nn.Module):
    """A step without weights."""

    def __init__(self, kind: str, function: Step) -> None:
        super().__init__()
        self.kind, self.function = kind, function

    def forward(self, *x: Tensor) -> Any:
        return self.function(*x)

    def extra_repr(self) -> str:
        return self.kind


class Dropout(nn.Module):
    """Dropout, with torch's own random numbers while the Module trains."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.ratio, self.scale_train = layer.dropout_ratio, layer.scale_train

    def forward(self, x: Tensor) -> Tensor:
        if self.scale_train:
            return functional.dropout(x, self.ratio, self.training)
        return functional.dropout(x, self.ratio) * (1 - self.ratio) if self.training else x * (1 - self.ratio)


def power(layer: Layer) -> Step:
    param = layer.param.power_param

    def run(x: Tensor) -> Tensor:
        if param.power * param.scale == 0:
            return torch.full_like(x, param.shift**param.power if param.power else 1)
        y = x * param.scale + param.shift
        return y if param.power == 1 else y**param.power

    return run


def swish(layer: Layer) -> Step:
    beta = layer.param.swish_param.beta
    return lambda x: x * torch.sigmoid(beta * x)


def pooling(layer: Any) -> Step:
    """MAX with one top, and AVE."""
    param = layer.param.pooling_param
    (kernel, stride, pad) = layer.sizes
    ceil = param.round_mode != Pooling.RoundMode.Value("FLOOR")

    def run(x: Tensor) -> Tensor:
        size = tuple(x.shape[2:]) if param.global_pooling else kernel
        if param.pool == Pooling.AVE:
            x, rest = _padded(x, size, pad, 0.0)
            return functional.avg_pool2d(x, size, stride, rest, ceil_mode=ceil)
        x, rest = _padded(x, size, pad, -torch.inf)
        return functional.max_pool2d(x, size, stride, rest, ceil_mode=ceil)

    return run


def _padded(x: Tensor, kernel: tuple[int, int], pad: tuple[int, int], value: float) -> tuple[Tensor, tuple[int, int]]:
    """x with the padding that torch does not take, more than half a kernel; and what it takes."""
    if all(2 * p <= k for p, k in zip(pad, kernel)):
        return x, pad
    return functional.pad(x, (pad[1], pad[1], pad[0], pad[0]), value=value), (0, 0)


def lrn(layer: Layer) -> Step:
    param = layer.param.lrn_param
    size, alpha, beta = param.local_size, param.alpha, param.beta
    if param.norm_region != WITHIN_CHANNEL:
        return lambda x: functional.local_response_norm(x, size, alpha, beta, param.k)
    return lambda x: x / (1 + alpha * functional.avg_pool2d(x * x, size, 1, size // 2)) ** beta


def eltwise(layer: Any) -> Step:
    operation, coeff = layer.param.eltwise_param.operation, layer.coeff

    def run(first: Tensor, *rest: Tensor) -> Tensor:
        y = first if coeff[0] == 1 else coeff[0] * first
        for i, (x, c) in enumerate(zip(rest, coeff[1:])):
            if operation == Eltwise.PROD:
                y = y * x
            elif operation == Eltwise.SUM:
                y = y + (x if c == 1 else c * x)
            else:  # of equal ones the gradient goes where Caffe's does: to the second, but to a later one only if greater
                y = torch.where(x > y if i else x >= y, x, y)
        return y

    return run


def reshape(layer: Any) -> Step:
    return lambda x: x.reshape(layer.new_shape(tuple(x.shape)))


def flatten(layer: Layer) -> Step:
    param = layer.param.flatten_param
    return lambda x: x.flatten(param.axis, param.end_axis)


def slices(layer: Any, tops: int) -> Step:
    points = list(layer.param.slice_param.slice_point)

    def run(x: Tensor) -> tuple[Tensor, ...]:
        return x.tensor_split(points or tops, layer.axis)

    return run


def permute(layer: Any) -> Step:
    return lambda x: x.permute(layer.order).contiguous()


def crop(layer: Layer) -> Step:
    param = layer.param.crop_param

    def run(x: Tensor, like: Tensor) -> Tensor:
        axis = param.axis % x.ndim
        offsets = list(param.offset) or [0]
        offsets = offsets if len(offsets) == x.ndim - axis else offsets * (x.ndim - axis)
        for i, offset in enumerate(offsets, axis):
            x = x.narrow(i, offset, like.shape[i])
        return x

    return run


def reduction(layer: Layer) -> Step:
    param = layer.param.reduction_param

    def run(x: Tensor) -> Tensor:
        x = x.flatten(param.axis) if x.ndim else x.reshape(1)
        if param.operation == Reduction.MEAN:
            return param.coeff / max(x.shape[-1], 1) * x.sum(-1)
        if param.operation == Reduction.ASUM:
            x = x.abs()
        elif param.operation == Reduction.SUMSQ:
            x = x * x
        return param.coeff * x.sum(-1)

    return run


def tile(layer: Layer) -> Step:
    param = layer.param.tile_param
    return lambda x: torch.cat([x] * param.tiles, param.axis)


def roi_align_layer(layer: Any) -> Step:
    """Both kinds; a third bottom is the spatial scale."""
    size, fixed = (layer.pooled_h, layer.pooled_w), layer.spatial_scale
    if layer.mean:
        return lambda x, rois: roi_align(x, rois, size, fixed, layer.sampling_ratio, layer.aligned)
    return lambda x, rois, *scale: roi_align_max(x, rois, size, abs(scale[0].reshape(-1)[0].item()) if scale else fixed)


FUNCTIONS: dict[str, Callable[[Any], Step]] = {
    "AbsVal": lambda layer: torch.abs,
    "BNLL": lambda layer: functional.softplus,
    "Clip": lambda layer: lambda x: x.clamp(layer.param.clip_param.min, layer.param.clip_param.max),
    "Concat": lambda layer: lambda *xs: torch.cat(xs, layer.axis),
    "Crop": crop,
    "ELU": lambda layer: lambda x: functional.elu(x, layer.param.elu_param.alpha),
    "Eltwise": eltwise,
    "Exp": lambda layer: lambda x: torch.exp(layer.scale * x + layer.shift),
    "Flatten": flatten,
    "LRN": lrn,
    "Log": lambda layer: lambda x: torch.log(layer.param.log_param.scale * x + layer.param.log_param.shift) * layer.factor,
    "PSROIAlign": lambda layer: lambda x, rois: ps_roi_align(x, rois, layer.group_size, layer.spatial_scale, layer.sample_num),
    "PSROIPooling": lambda layer: lambda x, rois: ps_roi_pool(x, rois, layer.group_size, layer.spatial_scale),
    "Permute": permute,
    "Power": power,
    "ROIAlign": roi_align_layer,
    "ROIPooling": lambda layer: lambda x, rois: roi_pool(x, rois, (layer.pooled_h, layer.pooled_w), layer.spatial_scale),
    "ReLU": lambda layer: (
        functional.relu if layer.negative_slope == 0 else lambda x: functional.leaky_relu(x, layer.negative_slope)
    ),
    "Reduction": reduction,
    "Reshape": reshape,
    "Sigmoid": lambda layer: torch.sigmoid,
    "Silence": lambda layer: lambda *xs: (),
    "Softmax": lambda layer: lambda x: torch.softmax(x, layer.param.softmax_param.axis),
    "Swish": swish,
    "TanH": lambda layer: torch.tanh,
    "Tile": tile,
}
"""Types whose function needs to know the layer only. Slice, Split and Pooling are in forms.py."""
