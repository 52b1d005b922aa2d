"""Bias: y = x + bias, the bias laid along some of x's axes. Source: Caffe's bias_layer.hpp."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from minicaffe.blob import Blob
from minicaffe.cuda.blocks import launch_planes, launch_sums
from minicaffe.cuda.device import current
from minicaffe.cuda.pairs import data_pair
from minicaffe.layer import Layer

from .channels import affine, sum_channels
from .epilogue import Epilogue, epilogue_step
from .fusion import Channelwise, DeviceEpilogue, vector


class Bias(Channelwise):
    """y[..., s, ...] = x[..., s, ...] + bias[s], s an index on the axes from `axis` on.

    bottom: x (any shape) [, bias]. top: y (x's shape); may be in place.
    One bottom: the bias is a learnt blob over num_axes axes (-1: all that follow; 0: one number), filled with zeros unless
    `filler` says otherwise. Two bottoms: the second is the bias, its shape that of x's axes from `axis` on.
    Raises LayerError when axis or num_axes lead past x's axes, or the bias's shape is not that of x's axes.
    """

    type = "Bias"
    num_bottom = (1, 2)
    num_top = 1
    keeps_places = True
    in_place = True
    param_block = ("bias_param",)
    weight_names = ("bias",)
    copies = (0, 0)
    uses_kernels = ((epilogue_step,), ())
    channelwise = True
    split: tuple[int, int, int]
    """x's elements before the axes of the bias, along them, and after them."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.bias_param
        if len(bottom) == 1:
            self.learn([learnt_shape(self, bottom[0], param.axis, param.num_axes, "bias_param")], [param.filler])

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.split = split_shape(self, bottom[0], self._bias(bottom), self.param.bias_param.axis, "bias_param.axis")
        top[0].reshape(bottom[0].shape)

    def multiply_adds(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        return 0

    def _bias(self, bottom: Sequence[Blob]) -> Blob:
        return bottom[1] if len(bottom) == 2 else self.blobs[0]

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = (blob.data.reshape(self.split) for blob in (bottom[0], top[0]))
        affine(x, y, plus=self._bias(bottom).data.reshape(-1))

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        (before, lanes, after), bias = self.split, self._bias(bottom).device_data("read")
        x, y = data_pair(bottom[0], top[0])
        launch_planes("scale.scale", self.dtype, before * lanes, after, lanes, x, 0, bias, y, 0)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy = top[0].diff.reshape(self.split)
        if len(bottom) == 2:
            if propagate_down[1]:
                bottom[1].diff[...] = sum_channels(dy).reshape(bottom[1].shape)
        elif self.param_propagate_down[0]:
            self.blobs[0].diff[...] += sum_channels(dy).reshape(self.blobs[0].shape)
        if propagate_down[0] and bottom[0] is not top[0]:
            bottom[0].diff[...] = top[0].diff  # in place it is one blob

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        before, lanes, after = self.split
        dy, bias, learnt = top[0].device_diff("read"), self._bias(bottom), len(bottom) == 1
        if self.param_propagate_down[0] if learnt else propagate_down[1]:
            dbias = bias.device_diff("update" if learnt else "write")
            sizes = lanes, before * after, before * after, lanes, after
            launch_sums("scale.scale_sums", self.dtype, *sizes, dy, 0, 0, 0, dbias, learnt)
        if propagate_down[0] and bottom[0] is not top[0]:
            current().copy(bottom[0].device_diff("write"), dy, top[0].count * self.dtype.itemsize)

    def epilogue(self, shape: tuple[int, ...]) -> Epilogue | None:
        return Epilogue(shift=vector(self.blobs[0])) if is_by_channel(self.split, shape) else None

    def gradient(self) -> Epilogue:
        return Epilogue()

    def device_epilogue(self, before: DeviceEpilogue, shape: tuple[int, ...]) -> DeviceEpilogue | None:
        may = is_by_channel(self.split, shape) and before.addend is None
        return replace(before, addend=self.blobs[0]) if may else None


def learnt_shape(layer: Layer, x: Blob, axis: int, num_axes: int, block: str) -> tuple[int, ...]:
    """The shape of a blob laid along num_axes axes of x from axis on. Raises LayerError if x has fewer axes."""
    if num_axes < -1:
        raise layer.error(f"num_axes must be >= -1, got {num_axes}", f"{block}.num_axes")
    if num_axes == 0:
        return ()
    start = layer.axis_of(axis, x, f"{block}.axis")
    if num_axes == -1:
        return x.shape[start:]
    if start + num_axes > len(x.shape):
        raise layer.error(
            f"num_axes {num_axes} from axis {start} on leads past the {len(x.shape)} axes of shape {x.shape}",
            f"{block}.num_axes",
        )
    return x.shape[start : start + num_axes]


def split_shape(layer: Layer, x: Blob, weight: Blob, axis: int, field: str) -> tuple[int, int, int]:
    """x's shape as (before, along weight's axes, after), weight starting at axis. Raises LayerError where they do not match."""
    start = layer.axis_of(axis, x, field) if weight.shape else 0  # a scalar lies along no axis, so that axis may be any
    end = start + len(weight.shape)
    if x.shape[start:end] != weight.shape:
        raise layer.error(f"shape {weight.shape} does not lie along axis {start} on of the bottom's shape {x.shape}", field)
    return math.prod(x.shape[:start]), weight.count, math.prod(x.shape[end:])


def is_by_channel(split: tuple[int, int, int], shape: tuple[int, ...]) -> bool:
    """Whether what lies along split of x (N, M, ...) is a number for each channel, and nothing else."""
    return len(shape) > 1 and split == (shape[0], shape[1], math.prod(shape[2:]))
