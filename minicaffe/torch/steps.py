"""The types without weights that are one function of tensors, made of the layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from minicaffe.layer import Layer
from minicaffe.layers.elementwise.eltwise import Eltwise
from minicaffe.layers.elementwise.products import Axpy, BroadcastMul, SpatialProduct
from minicaffe.layers.forks.flownet.flownet_layers import ChannelNorm
from minicaffe.layers.loss.euclidean_loss import EuclideanLoss
from minicaffe.layers.loss.sigmoid_cross_entropy_loss import SigmoidCrossEntropyLoss
from minicaffe.layers.loss.smooth_l1_loss import SmoothL1Loss
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.neuron.functions import (
    BNLL,
    ELU,
    MOST,
    SCALE,
    SHIFT,
    AbsVal,
    Clip,
    Exp,
    HardSigmoid,
    Log,
    Power,
    ReLU6,
    Sigmoid,
    Swish,
    TanH,
)
from minicaffe.layers.neuron.relu import ReLU
from minicaffe.layers.norm.lrn import LRN
from minicaffe.layers.roi.deformable_psroi_pooling import DeformablePSROIPooling
from minicaffe.layers.roi.psroi_align import PSROIAlign
from minicaffe.layers.roi.psroi_pooling import PSROIPooling
from minicaffe.layers.roi.roi_align import ROIAlign, ROIAlignGrid, ROIAlignMax, ROIAlignMean
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.layers.roi.roi_pooling import ROIPooling
from minicaffe.layers.roi.roi_warping import ROIWarping
from minicaffe.layers.shape.concat import Concat
from minicaffe.layers.shape.crop import Crop, Padding
from minicaffe.layers.shape.items import Gather, Scatter
from minicaffe.layers.shape.rearranged import Permute, Reorg, Reverse, ShuffleChannel, Transpose
from minicaffe.layers.shape.reduction import Reduction, Tile
from minicaffe.layers.shape.reshape import Flatten, PixelShuffle, Reshape
from minicaffe.layers.shape.split import Silence
from minicaffe.proto import caffe_pb2
from minicaffe.registry import torch_form

from .apply import Step
from .deformed import deformable_psroi_pooling
from .losses import euclidean_loss, sigmoid_cross_entropy_loss, smooth_l1_loss
from .pooling import lrn
from .roi import pooled
from .shapes import crop, flatten, permute, reduction, reorg, reshape, shuffle_channel, tile

Operation = caffe_pb2.EltwiseParameter


def power(layer: Layer) -> Step:
    param = layer.param.power_param

    def run(x: Tensor) -> Tensor:
        if param.power * param.scale == 0:
            # a constant, without a gradient, as the layer
            return torch.full_like(x, param.shift**param.power if param.power else 1)
        y = x * param.scale + param.shift
        return y if param.power == 1 else y**param.power

    return run


def swish(layer: Layer) -> Step:
    beta = layer.param.swish_param.beta
    return lambda x: x * torch.sigmoid(beta * x)


def eltwise(layer: Eltwise) -> Step:
    operation, coeff = layer.param.eltwise_param.operation, layer.coeff

    def run(first: Tensor, *rest: Tensor) -> Tensor:
        y = first if coeff[0] == 1 else coeff[0] * first
        for i, (x, c) in enumerate(zip(rest, coeff[1:])):
            if operation == Operation.PROD:
                y = y * x
            elif operation == Operation.SUM:
                y = y + (x if c == 1 else c * x)
            else:  # of equal ones the gradient goes where Caffe's does: to the second, but to a later one only if greater
                y = torch.where(x > y if i else x >= y, x, y)
        return y

    return run


def roi_layer(layer: RoiLayer) -> Step:
    return partial(pooled, layer.operator)


def roi_align_max(layer: ROIAlignMax) -> Step:
    """A third bottom is the spatial scale."""

    def run(x: Tensor, rois: Tensor, scale: Tensor | None = None) -> Tensor:
        operator = layer.operator
        return pooled(operator if scale is None else replace(operator, spatial_scale=abs(scale.flatten()[0].item())), x, rois)

    return run


def gather(layer: Layer) -> Step:
    return lambda *xs: xs if len(xs) > 1 else xs[0]


FUNCTIONS: dict[type[Layer], Callable[[Any], Step]] = {
    AbsVal: lambda layer: torch.abs,
    Axpy: lambda layer: lambda a, x, y: a.reshape(*x.shape[:2], *[1] * (x.ndim - 2)) * x + y,
    BNLL: lambda layer: functional.softplus,
    BroadcastMul: lambda layer: lambda x, s: x * s.reshape(*x.shape[:2], *[1] * (x.ndim - 2)),
    ChannelNorm: lambda layer: lambda x: torch.linalg.vector_norm(x, dim=1, keepdim=True),
    Clip: lambda layer: lambda x: x.clamp(layer.param.clip_param.min, layer.param.clip_param.max),
    Concat: lambda layer: lambda *xs: torch.cat(xs, layer.axis),
    Crop: crop,
    DeformablePSROIPooling: deformable_psroi_pooling,
    ELU: lambda layer: lambda x: functional.elu(x, layer.param.elu_param.alpha),
    Eltwise: eltwise,
    EuclideanLoss: euclidean_loss,
    Exp: lambda layer: lambda x: torch.exp(layer.scale * x + layer.shift),
    Flatten: flatten,
    Gather: gather,
    HardSigmoid: lambda layer: lambda x: (x * SCALE + SHIFT).clamp(0, 1),
    LRN: lrn,
    Log: lambda layer: lambda x: torch.log(layer.param.log_param.scale * x + layer.param.log_param.shift) * layer.factor,
    PSROIAlign: roi_layer,
    PSROIPooling: roi_layer,
    Padding: lambda layer: lambda x: functional.pad(x, layer.pads * 2),
    Permute: permute,
    PixelShuffle: lambda layer: lambda x: functional.pixel_shuffle(x, layer.factor),
    Power: power,
    ROIAlign: roi_layer,
    ROIAlignGrid: roi_layer,
    ROIAlignMax: roi_align_max,
    ROIAlignMean: roi_layer,
    ROIPooling: roi_layer,
    ROIWarping: roi_layer,
    ReLU: lambda layer: (
        functional.relu if layer.negative_slope == 0 else lambda x: functional.leaky_relu(x, layer.negative_slope)
    ),
    ReLU6: lambda layer: lambda x: functional.leaky_relu(x, layer.negative_slope).clamp(max=MOST),
    Reduction: reduction,
    Reorg: reorg,
    Reshape: reshape,
    Reverse: lambda layer: lambda x: x.flip(layer.axis),
    Scatter: gather,
    ShuffleChannel: shuffle_channel,
    Sigmoid: lambda layer: torch.sigmoid,
    SigmoidCrossEntropyLoss: sigmoid_cross_entropy_loss,
    Silence: lambda layer: lambda *xs: (),
    SmoothL1Loss: smooth_l1_loss,
    Softmax: lambda layer: lambda x: torch.softmax(x, layer.param.softmax_param.axis),
    SpatialProduct: lambda layer: torch.mul,
    Swish: swish,
    TanH: lambda layer: torch.tanh,
    Tile: tile,
    Transpose: permute,
}
"""Types whose function needs to know the layer only. The others are in forms.py."""


def _form(function: Callable[[Any], Step]) -> Callable[..., Step]:
    return lambda layer, bottom, top: function(layer)


for _kind, _function in FUNCTIONS.items():
    torch_form(_kind)(_form(_function))
