"""Changes of shape with torch's functions, built from their layers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from minicaffe.layer import Layer
from minicaffe.layers.pool.unpooling import Upsample
from minicaffe.layers.shape.interp import Interp
from minicaffe.layers.shape.rearranged import Permute, Reorg, ShuffleChannel, Transpose
from minicaffe.layers.shape.reshape import Reshape
from minicaffe.proto import caffe_pb2

from .apply import Step

Reduction = caffe_pb2.ReductionParameter


def reshape(layer: Reshape) -> Step:
    return lambda x: x.reshape(layer.new_shape(tuple(x.shape)))


def flatten(layer: Layer) -> Step:
    param = layer.param.flatten_param
    return lambda x: x.flatten(param.axis, param.end_axis)


def permute(layer: Permute | Transpose) -> Step:
    return lambda x: x.permute(layer.order).contiguous()


def shuffle_channel(layer: ShuffleChannel) -> Step:
    return lambda x: x.unflatten(1, (layer.group, -1)).transpose(1, 2).flatten(1, 2)


def reorg(layer: Reorg) -> Step:
    s = layer.stride

    def run(x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        y = x.reshape(n, *layer.split(c, h, w)).permute(0, *layer.order)
        return y.reshape(n, c // (s * s), h * s, w * s) if layer.reverse else y.reshape(n, c * s * s, h // s, w // s)

    return run


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


def interp(layer: Interp) -> Step:
    def run(x: Tensor) -> Tensor:
        start, ends = -layer.pads[0], [size + layer.pads[1] for size in x.shape[2:]]
        x = x[:, :, start : ends[0], start : ends[1]]
        size = [layer.resized(length, axis) for axis, length in enumerate(x.shape[2:])]
        return functional.interpolate(x, size, mode="bilinear", align_corners=True)

    return run


def upsample(layer: Upsample) -> Step:
    rows, columns = layer.scale
    return lambda x: x.repeat_interleave(rows, -2).repeat_interleave(columns, -1)


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
