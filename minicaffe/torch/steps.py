"""The types without weights that are one function of tensors, made of the layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from minicaffe.layer import Layer
from minicaffe.layers.roi_align import ROIAlignMean
from minicaffe.proto import caffe_pb2

from .apply import Step
from .pooling import lrn
from .roi import ps_roi_align, ps_roi_pool, roi_align, roi_align_max, roi_pool
from .shapes import crop, flatten, permute, reduction, reshape, tile

Eltwise = caffe_pb2.EltwiseParameter


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


def roi_align_layer(layer: Any) -> Step:
    """Both kinds; a third bottom is the spatial scale."""
    size, fixed = (layer.pooled_h, layer.pooled_w), layer.spatial_scale
    if isinstance(layer, ROIAlignMean):
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
"""Types whose function needs to know the layer only. Slice, Split, Pooling and Dropout are in forms.py."""
