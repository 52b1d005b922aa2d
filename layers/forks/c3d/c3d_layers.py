"""Convolutions and pooling of clips, under C3D's names."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layers.conv.convolution import Convolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.window import Window
from minicaffe.layers.pool.pooling_of_axes import PoolingOfAxes
from minicaffe.proto import caffe_pb2


class OfClips(Convolution):
    """A convolution of clips (N, C, L, H, W) with convolution3d_param. List it before other bases."""

    param_block = ("convolution3d_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        given = self.param.convolution3d_param
        if len(bottom[0].shape) != 5:
            raise self.error(f"x must be (N, C, L, H, W), got shape {bottom[0].shape}", "bottom[0]")
        if given.group != 1:
            raise self.error(f"group must be 1, got {given.group}: C3D has none", "convolution3d_param.group")
        param = caffe_pb2.LayerParameter()
        param.CopyFrom(self.param)
        param.convolution_param.num_output, param.convolution_param.bias_term = given.num_output, given.bias_term
        param.convolution_param.weight_filler.CopyFrom(given.weight_filler)
        param.convolution_param.bias_filler.CopyFrom(given.bias_filler)
        self.param = param
        super().setup(bottom, top)

    def _read_window(self) -> Window:
        given = self.param.convolution3d_param
        kernel = given.kernel_depth, given.kernel_size, given.kernel_size
        stride = given.temporal_stride, given.stride, given.stride
        if min(kernel + stride) < 1:
            raise self.error("kernel_depth, kernel_size, stride and temporal_stride must be at least 1", "convolution3d_param")
        return Window(kernel, stride, (given.temporal_pad, given.pad, given.pad), (1, 1, 1))

    def _bias_shape(self) -> tuple[int, ...]:
        return 1, 1, 1, 1, self.num_output


class Convolution3D(OfClips):
    """Convolution's y, with kernels of kernel_depth frames of kernel_size x kernel_size pixels.

    C3D's name for a convolution of clips, with one kernel size, stride and pad in space and one of each in time. Source: Tran
    et al., 2015; C3D's convolution3d_layer.cpp.

    bottom: x (N, C, L, H, W). top: y (N, num_output, L', H', W'). convolution3d_param: stride and pad in pixels,
    temporal_stride and temporal_pad in frames. blobs: weight (num_output, C, kernel_depth,
    kernel_size, kernel_size), bias (1, 1, 1, 1, num_output).
    Raises LayerError as Convolution does, for a bottom without five axes, and for a group, which the original does not compute.
    """

    type = "Convolution3D"


class Deconvolution3D(OfClips, Deconvolution):
    """Deconvolution's y, with kernels of kernel_depth frames of kernel_size x kernel_size pixels.

    C3D's name for the transpose of Convolution3D. Source: C3D's deconvolution3d_layer.cpp.

    bottom: x (N, C, L, H, W). top: y (N, num_output, L', H', W'). convolution3d_param: as Convolution3D's. blobs: weight (C,
    num_output, kernel_depth, kernel_size, kernel_size), bias (1, 1, 1, 1, num_output).
    Raises LayerError as Deconvolution does, for a bottom without five axes, and for a group.
    """

    type = "Deconvolution3D"


MAX, AVE = caffe_pb2.Pooling3DParameter.MAX, caffe_pb2.Pooling3DParameter.AVE


class Pooling3D(PoolingOfAxes):
    """The maximum or mean of each window of kernel_depth x kernel_size x kernel_size in a clip.

    MAX's gradient goes to the first maximum.

        L' = ceil((L - kernel_depth) / temporal_stride) + 1, H' and W' likewise; windows are clipped to the clip

    Source: Tran et al., 2015; C3D's pooling3d_layer.cpp.

    bottom: x (N, C, L, H, W). top: y (N, C, L', H', W'). pooling3d_param: stride in pixels,
    temporal_stride in frames; kernel_l and stride_l are Pseudo-3D ResNet's names of kernel_depth and temporal_stride.
    Raises LayerError for a bottom without five axes, sizes and strides below 1, windows that do not fit, and pad and
    STOCHASTIC, which the original has on a GPU only.
    """

    type = "Pooling3D"
    num_top = 1
    param_block = ("pooling3d_param",)
    lowest = -np.inf

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.pooling3d_param
        if param.pool not in (MAX, AVE):
            raise self.error("pool must be MAX or AVE: STOCHASTIC is not built", "pooling3d_param.pool")
        for name, pad in (("pad", param.pad), ("pad_l", param.pad_l)):
            if pad:
                raise self.error(f"{name} must be 0, got {pad}: it is not built", f"pooling3d_param.{name}")
        kernel = param.kernel_l or param.kernel_depth, param.kernel_size, param.kernel_size
        stride = param.stride_l or param.temporal_stride, param.stride, param.stride
        if min(kernel + stride) < 1:
            raise self.error("kernel_depth, kernel_size, stride and temporal_stride must be at least 1", "pooling3d_param")
        self.maximum, self.floor, self.axis, self.spatial_axes = param.pool == MAX, False, 1, 3
        self._window = Window(kernel, stride, (0, 0, 0), (1, 1, 1))

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != 5:
            raise self.error(f"x must be (N, C, L, H, W), got shape {shape}", "bottom[0]")
        if self._window and any(size < k for size, k in zip(shape[2:], self._window.kernel)):
            raise self.error(f"a window of {self._window.kernel} does not fit a clip of {shape[2:]}", "pooling3d_param")
        super().reshape(bottom, top)

    def _pooled(self, i: int) -> int:
        count = super()._pooled(i)
        # With a stride above the window's size, the last window may lie past the end.
        return count - ((count - 1) * self.window.stride[i] >= self.spatial[i])
