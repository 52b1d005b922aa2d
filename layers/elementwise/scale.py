"""Scale and Bias: products and sums with values along some of x's axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from minicaffe.blob import Blob
from minicaffe.cuda.convolution import DeviceEpilogue
from minicaffe.cuda.device import current
from minicaffe.cuda.launches import data_pair, diff_pair, launch_planes, launch_sums
from minicaffe.fillers import fill
from minicaffe.layer import Costs, Layer, data_bytes
from minicaffe.layers.elementwise.channels import affine, sum_channels, sum_products
from minicaffe.layers.elementwise.epilogue import Epilogue, epilogue_step
from minicaffe.layers.elementwise.fusion import Channelwise, vector
from minicaffe.layers.neuron.neuron import SavedInput


class Bias(Channelwise):
    """y[..., s, ...] = x[..., s, ...] + bias[s], s an index on the axes from `axis` on.

    Source: Caffe's bias_layer.hpp.

    bottom: x (any shape) [, bias]. top: y (x's shape); may be in place.
    One bottom: the bias is a learnt blob over num_axes axes (-1: all that follow; 0: one number), filled with zeros unless
    `filler` says otherwise. Two bottoms: the second is the bias, its shape that of x's axes from `axis` on.
    Raises LayerError when axis or num_axes lead past x's axes, or the bias's shape is not that of x's axes.
    """

    type = "Bias"
    num_bottom = (1, 2)
    num_top = 1
    same_positions = True
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

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=0)

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
            bottom[0].diff[...] = top[0].diff  # in place, both are the same blob

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
    """Return the shape of a blob along num_axes axes of x from axis on. Raises LayerError if x has fewer axes."""
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
    """Return x's shape as (axes before, axes of weight, axes after). weight starts at axis.

    Raises LayerError if they do not match.
    """
    start = layer.axis_of(axis, x, field) if weight.shape else 0  # a scalar lies along no axis, so any axis is valid
    end = start + len(weight.shape)
    if x.shape[start:end] != weight.shape:
        raise layer.error(f"shape {weight.shape} does not lie along axis {start} on of the bottom's shape {x.shape}", field)
    return math.prod(x.shape[:start]), weight.count, math.prod(x.shape[end:])


def is_by_channel(split: tuple[int, int, int], shape: tuple[int, ...]) -> bool:
    """Return whether split of x (N, M, ...) has exactly one value for each channel."""
    return len(shape) > 1 and split == (shape[0], shape[1], math.prod(shape[2:]))


class Scale(Channelwise):
    """y[..., s, ...] = x[..., s, ...] * scale[s] (+ bias[s]), s an index on the axes from `axis` on.

    Source: Caffe's scale_layer.hpp.

    bottom: x (any shape) [, scale]. top: y (x's shape); may be in place.
    One bottom: scale is a learnt blob over num_axes axes (-1: all that follow; 0: one number), ones unless `filler` says
    otherwise. Two bottoms: the second is the scale, its shape that of x's axes from `axis` on. bias_term: one more learnt
    blob, of scale's shape, the last in blobs; zeros unless `bias_filler` says otherwise.
    Raises LayerError when axis or num_axes lead past x's axes, or scale's shape is not that of x's axes.
    """

    type = "Scale"
    num_bottom = (1, 2)
    num_top = 1
    same_positions = True
    in_place = True
    param_block = ("scale_param",)
    weight_names: tuple[str, ...] = ("scale", "bias")
    keeps_input = True
    copies = (0, 0)
    uses_kernels = ((epilogue_step,), ())
    channelwise = True
    split: tuple[int, int, int]
    """x's elements before the axes of the scale, along them, and after them."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.scale_param
        self._input = SavedInput(self)
        if len(bottom) == 2:
            self.weight_names = ("bias",)  # the second bottom is the scale
        if self.blobs:
            return
        shape = (
            bottom[1].shape if len(bottom) == 2 else learnt_shape(self, bottom[0], param.axis, param.num_axes, "scale_param")
        )
        if len(bottom) == 1:
            scale = self.blobs.add_blob(*shape).data
            if param.HasField("filler"):
                fill(scale, param.filler)
            else:
                scale[...] = 1
        if param.bias_term:
            fill(self.blobs.add_blob(*shape).data, param.bias_filler)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        scale, param = self._scale(bottom), self.param.scale_param
        self.split = split_shape(self, bottom[0], scale, param.axis, "scale_param.axis")
        if param.bias_term and self.blobs[-1].count != scale.count:
            raise self.error(f"the second bottom has shape {scale.shape}, the learnt bias {self.blobs[-1].shape}", "bottom[1]")
        top[0].reshape(bottom[0].shape)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        saved = data_bytes(bottom[:1]) if self.overwrites_what_backward_reads(bottom, top) else 0
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=top[0].count, saved=saved)

    def overwrites_what_backward_reads(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> bool:
        """Return whether x must be kept: in place y overwrites it, and the gradient of scale reads it."""
        return top[0] is bottom[0] and (len(bottom) == 2 or self.param_propagate_down[0])

    def _read(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> Blob:
        """Return x for backward."""
        return self._input.read() if self.overwrites_what_backward_reads(bottom, top) else bottom[0]

    def _scale(self, bottom: Sequence[Blob]) -> Blob:
        return bottom[1] if len(bottom) == 2 else self.blobs[0]

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = (blob.data.reshape(self.split) for blob in (bottom[0], top[0]))
        kept = self._input.array(bottom[0]) if self.overwrites_what_backward_reads(bottom, top) else None
        bias = self.blobs[-1].data.reshape(-1) if self.param.scale_param.bias_term else None
        copy = None if kept is None else kept.reshape(self.split)
        affine(x, y, times=self._scale(bottom).data.reshape(-1), plus=bias, kept=copy)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        copy = self._input.address(bottom[0]) if self.overwrites_what_backward_reads(bottom, top) else 0
        scale = self._scale(bottom).device_data("read")
        bias = self.blobs[-1].device_data("read") if self.param.scale_param.bias_term else 0
        x, y = data_pair(bottom[0], top[0])
        before, lanes, after = self.split
        launch_planes("scale.scale", self.dtype, before * lanes, after, lanes, x, scale, bias, y, copy)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        scale, dy = self._scale(bottom), top[0].diff.reshape(self.split)
        if self.param.scale_param.bias_term and self.param_propagate_down[-1]:
            self.blobs[-1].diff[...] += sum_channels(dy).reshape(self.blobs[-1].shape)
        learnt = len(bottom) == 1
        if self.param_propagate_down[0] if learnt else propagate_down[1]:
            # Before dx, which overwrites dy in place.
            x = self._read(bottom, top).read_data().reshape(self.split)
            dscale = sum_products(dy, x).reshape(scale.shape)
            # weight gradients accumulate; a bottom's is overwritten
            scale.diff[...] = scale.diff + dscale if learnt else dscale
        if propagate_down[0]:
            affine(dy, bottom[0].diff.reshape(self.split), times=scale.data.reshape(-1))

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        before, lanes, after = self.split
        scale, learnt, dy = self._scale(bottom), len(bottom) == 1, top[0].device_diff("read")
        wanted = self.param_propagate_down[0] if learnt else propagate_down[1]
        bias_wanted = self.param.scale_param.bias_term and self.param_propagate_down[-1]
        x = self._read(bottom, top).device_data("read") if wanted else 0
        dscale = scale.device_diff("update" if learnt else "write") if wanted else 0
        dbias = self.blobs[-1].device_diff("update") if bias_wanted else 0
        if wanted or bias_wanted:
            sizes = lanes, before * after, before * after, lanes, after
            launch_sums("scale.scale_sums", self.dtype, *sizes, dy, x, dscale, learnt, dbias, 1)
        if propagate_down[0]:
            dy, dx = diff_pair(top[0], bottom[0])
            launch_planes("scale.scale", self.dtype, before * lanes, after, lanes, dy, scale.device_data("read"), 0, dx, 0)

    def epilogue(self, shape: tuple[int, ...]) -> Epilogue | None:
        if not is_by_channel(self.split, shape):
            return None
        return Epilogue(vector(self.blobs[0]), vector(self.blobs[1]) if self.param.scale_param.bias_term else None)

    def gradient(self) -> Epilogue:
        return Epilogue(vector(self.blobs[0]))

    def device_epilogue(self, before: DeviceEpilogue, shape: tuple[int, ...]) -> DeviceEpilogue | None:
        if not is_by_channel(self.split, shape) or before.scale is not None or before.addend is not None:
            return None
        return replace(before, scale=self.blobs[0], shift=self.blobs[1] if self.param.scale_param.bias_term else None)
