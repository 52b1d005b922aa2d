"""Convolutions whose taps are moved, each by its own offset at each window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda import convolution as gpu
from minicaffe.cuda.deformable_convolution import Bottoms, Deformed
from minicaffe.cuda.roi import Scratch as DeviceScratch
from minicaffe.layer import Costs, Layer
from minicaffe.layers.conv.deformed import BLOCK_BYTES, ROW_BYTES, Tables, Wanted, convolve, gradients, samples_of
from minicaffe.layers.conv.window import Window, checked_output, read_window
from minicaffe.layers.elementwise.channels import sum_channels
from minicaffe.threads import get_num_threads


class DeformableConvolution(Layer):
    """Convolution whose taps are moved, each by its own offset at each window.

        y[m, o] = bias[m] + sum over c, taps of weight[m, c, tap] * x[c] at (o * stride - pad + tap * dilation + offset[g, tap,
        o])

    x between pixels is bilinear; g is c's deformable group. Source: Dai et al., Deformable Convolutional Networks (2017);
    deformable_conv_layer.cpp and deformable_im2col.cu of unsky/Deformable-ConvNets-caffe and makefile/frcnn. A sample is 0
    outside [0, H) x [0, W), and between the last pixel's centre and H it is that pixel: torchvision's deform_conv2d is another
    function there.

    bottom: x (N, C, H, W); offset (N, deformable_group * kh * kw * 2, OH, OW) in pixels of the map, of each tap first down,
    then to the right. top: y (N, num_output, OH, OW). Both bottoms get gradients. blobs: weight (num_output, C / group, kh,
    kw), bias (num_output).
    Raises LayerError when the window is invalid or does not fit the map, the offset has another shape, channels are not
    divisible by group and deformable_group or num_output by group, axis is not 1, or the channels change after setup.
    """

    type = "DeformableConvolution"
    num_bottom = 2
    num_top = 1
    param_block: ClassVar[tuple[str, ...]] = ("deformable_convolution_param",)
    weight_names = ("weight", "bias")
    linear = True
    rim: ClassVar[int] = 0
    """Pixels of zeros around the map that a sample may read."""
    uses_kernels = ((samples_of,), (samples_of,))

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        block = self.param_block[0]
        param, shape = getattr(self.param, block), bottom[0].shape
        if len(shape) != 4 or param.axis not in (1, -3):
            raise self.error(f"needs maps (N, C, H, W) and axis 1, got shape {shape} and axis {param.axis}", f"{block}.axis")
        self.window = read_window(self, 2)
        self.channels, self.num_output = shape[1], int(param.num_output)
        self.group, self.deformable_group = int(param.group), int(param.deformable_group)
        if self.num_output < 1:
            raise self.error(f"num_output must be > 0, got {self.num_output}", f"{block}.num_output")
        if self.channels < 1:
            raise self.error(f"the bottom of shape {shape} has no channels", "bottom[0]")
        for what, count, field in (
            ("channels", self.channels, "group"),
            ("num_output", self.num_output, "group"),
            ("channels", self.channels, "deformable_group"),
        ):
            groups = getattr(self, field)
            if groups < 1 or count % groups:
                raise self.error(f"{what} ({count}) must be divisible by {field} ({groups})", f"{block}.{field}")
        shapes = [(self.num_output, self.channels // self.group, *self.window.kernel), (self.num_output,)]
        self.learn(shapes[: 1 + param.bias_term], [param.weight_filler, param.bias_filler])
        self._scratch = DeviceScratch(self.dtype)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != 4 or shape[1] != self.channels:
            raise self.error(f"was set up for {self.channels} channels, the bottom's shape is now {shape}", "bottom[0]")
        output = checked_output(self, self.window, shape[2:])
        wanted = (shape[0], 2 * self.deformable_group * math.prod(self.window.kernel), *output)
        if bottom[1].shape != wanted:
            what = "(N, 2 * deformable_group * kernel_h * kernel_w, output height, output width)"
            raise self.error(f"the offset must have shape {wanted}, {what}, got {bottom[1].shape}", "bottom[1]")
        top[0].reshape(shape[0], self.num_output, *output)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        multiply_adds = top[0].count * (self.blobs[0].count // self.num_output)
        working = self._working_bytes(bottom, top, backward=propagate_down is not None)
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=multiply_adds, working=working)

    def _working_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob], backward: bool) -> int:
        """Return the bytes of an image's padded map, its samples and blocks of columns.

        Each sample needs the indices and shares of its four pixels, and twice that while they are computed. Backward holds all
        columns of an image, and the order in which they are added to pixels.
        """
        size, pixels, windows = self.dtype.itemsize, math.prod(bottom[0].shape[2:]), math.prod(top[0].shape[2:])
        numbers = windows * self.deformable_group * math.prod(self.window.kernel)
        maps, columns = pixels * self.channels * size, windows * self.channels * math.prod(self.window.kernel) * size
        tables = numbers * (1 + 4 * 8 + 2 * size + 4 * (8 + size))
        at_work = get_num_threads() * (max(BLOCK_BYTES, 2 * columns // max(windows, 1)) + ROW_BYTES)
        forward = maps + tables + max(min(at_work, columns + ROW_BYTES), 4 * numbers * 8)
        weights = 2 * self.blobs[0].count * size
        if not backward:
            return forward + weights // 2
        return maps + tables + 2 * weights + columns + max(at_work, maps + 4 * numbers * (4 * 8 + size))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        y, (x, offset, *mask) = top[0].data, (blob.data for blob in bottom)
        convolve(self._rimmed(x), offset, self._tables(), y, *mask)
        if len(self.blobs) > 1:
            y += self.blobs[1].data[:, None, None]

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy, (x, offset, *mask) = top[0].diff, (blob.data for blob in bottom)
        dx, doffset, *dmask = (blob.diff if wants else None for blob, wants in zip(bottom, propagate_down, strict=True))
        dweight = self.blobs[0].diff if self.param_propagate_down[0] else None
        if len(self.blobs) > 1 and self.param_propagate_down[1]:
            self.blobs[1].diff[...] += sum_channels(dy.reshape(*dy.shape[:2], math.prod(dy.shape[2:])))
        x = self._rimmed(x)
        drimmed = np.empty_like(x) if self.rim and dx is not None else dx
        if any(wanted is not None for wanted in (dx, doffset, dweight, *dmask)):
            gradients(x, offset, dy, self._tables(), Wanted(drimmed, doffset, dweight, *dmask), *mask)
        if dx is not None and drimmed is not None and self.rim:
            dx[...] = drimmed[:, :, self.rim : -self.rim, self.rim : -self.rim]

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        given = Bottoms(*(blob.device_data("read") for blob in bottom))
        y = top[0].device_data("write")
        if top[0].count:
            self._deformed(bottom).convolve(given, self.blobs[0].device_data("read"), y)
            if len(self.blobs) > 1:
                gpu.add_bias(self.dtype, top[0].shape, 1, self.blobs[1].device_data("read"), y)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not top[0].count:
            for blob, wants in zip(bottom, propagate_down, strict=True):
                if wants:
                    blob.zero_diff()
            return
        deformed, dy = self._deformed(bottom), top[0].device_diff("read")
        given = Bottoms(*(blob.device_data("read") for blob in bottom))
        if self.param_propagate_down[0]:
            deformed.add_weight_gradient(given, dy, self.blobs[0].device_diff("update"))
        if len(self.blobs) > 1 and self.param_propagate_down[1]:
            gpu.add_bias_gradient(self.dtype, top[0].shape, 1, dy, self.blobs[1].device_diff("update"))
        if any(propagate_down):
            asked = zip(bottom, propagate_down, strict=True)
            wanted = Bottoms(*(blob.device_diff("write") if wants else 0 for blob, wants in asked))
            deformed.gradients(given, self.blobs[0].device_data("read"), dy, wanted)

    def _deformed(self, bottom: Sequence[Blob]) -> Deformed:
        count, channels, *size = bottom[0].shape
        maps = gpu.Maps(self.dtype, self.window, self.group, count, channels, self.num_output, tuple(size))
        return Deformed(maps, self.deformable_group, self._scratch)

    def _tables(self) -> Tables:
        return Tables.of(self.blobs[0].data, self.rimmed_window, self.group)

    def _rimmed(self, x: Array) -> Array:
        """Return x (N, C, H, W) in its border of zeros."""
        ends = (self.rim, self.rim)
        return np.pad(x, ((0, 0), (0, 0), ends, ends)) if self.rim else x

    @property
    def rimmed_window(self) -> Window:
        """Return the window relative to the map in its border."""
        return replace(self.window, pad=tuple(pad - self.rim for pad in self.window.pad))


def convolve_by_definition(x: Array, offset: Array, weight: Array, window: Window, group: int) -> Array:
    """Return y (N, M, OH, OW), without a bias.

    x (N, C, H, W), offset (N, groups * taps * 2, OH, OW), weight (M, C / group, kh, kw).
    """
    channels, (filters, per_group), taps = x.shape[1], weight.shape[:2], math.prod(window.kernel)
    y = np.zeros((len(x), filters, *offset.shape[2:]), x.dtype)
    of_group = channels // (offset.shape[1] // (2 * taps))
    for n, m, i, j in np.ndindex(y.shape):
        for c, tap in np.ndindex(per_group, taps):
            channel, step = m // (filters // group) * per_group + c, divmod(tap, window.kernel[1])
            moves = offset[n, 2 * (channel // of_group * taps + tap) :, i, j]
            h, w = (
                o * stride - pad + step * dilation + move
                for o, stride, pad, step, dilation, move in zip(
                    (i, j), window.stride, window.pad, step, window.dilation, moves[:2], strict=True
                )
            )
            y[n, m, i, j] += weight[m, c].reshape(-1)[tap] * sample_by_definition(x[n, channel], h, w)
    return y


def sample_by_definition(x: Array, h: float, w: float) -> float:
    """Return the value of x (H, W) between pixels: the last pixel past its centre, and 0 outside [0, H) x [0, W)."""
    height, width = x.shape
    if not (0 <= h < height and 0 <= w < width):
        return 0.0
    top, left = math.floor(h), math.floor(w)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    of_row, of_column = h - top, w - left
    above = x[top, left] * (1 - of_column) + x[top, right] * of_column
    below = x[bottom, left] * (1 - of_column) + x[bottom, right] * of_column
    return float(above * (1 - of_row) + below * of_row)


class ModulatedDeformableConvolution(DeformableConvolution):
    """Deformable convolution whose samples are each multiplied by a factor, the mask.

        y[m, o] = bias[m] + sum over c, taps of weight[m, c, tap] * mask[g, tap, o] * x[c] at (o * stride - pad + tap * dilation
                  + offset[g, tap, o])

    x between pixels is bilinear, with zeros around the map; g is c's deformable group. DeformableConvolution ends otherwise: on
    a map with a rim of zeros, one pixel wide, both have the same samples. Source: Zhu et al., Deformable ConvNets v2 (2018);
    modulated_deformable_conv_layer.cpp and modulated_deformable_im2col.cu of zhanglonghao1992/Deformable-ConvNets-v1-v2-caffe.

    bottom: x (N, C, H, W); offset (N, deformable_group * kh * kw * 2, OH, OW) in pixels of the map, of each tap first down,
    then to the right; mask (N, deformable_group * kh * kw, OH, OW). top: y (N, num_output, OH, OW). All bottoms get gradients.
    blobs: weight (num_output, C / group, kh, kw), bias (num_output).
    Raises LayerError as DeformableConvolution, and when the mask has another shape.
    """

    type = "ModulatedDeformableConvolution"
    num_bottom = 3
    param_block: ClassVar[tuple[str, ...]] = ("modulated_deformable_convolution_param",)
    rim = 1

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        count, moves, *output = bottom[1].shape
        if bottom[2].shape != (wanted := (count, moves // 2, *output)):
            what = "(N, deformable_group * kernel_h * kernel_w, output height, output width)"
            raise self.error(f"the mask must have shape {wanted}, {what}, got {bottom[2].shape}", "bottom[2]")

    def _working_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob], backward: bool) -> int:
        """Return DeformableConvolution's bytes, with all maps in a border, an image's mask, and samples for its gradient."""
        count, channels, *size = bottom[0].shape
        rimmed = count * channels * math.prod(n + 2 for n in size) * (1 + backward)
        return super()._working_bytes(bottom, top, backward) + (rimmed + 2 * bottom[2].count) * self.dtype.itemsize
