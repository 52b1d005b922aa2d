"""Convolution: y[m] = bias[m] + sum over c, taps of weight[m, c, taps] * x[c, o * stride - pad + taps * dilation].

Source: Caffe's conv_layer.hpp and base_conv_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda import convolution as gpu
from minicaffe.cuda.convolution import DeviceEpilogue
from minicaffe.forked import LayoutFromWeights
from minicaffe.layer import AsManyAsBottoms, Costs, data_bytes
from minicaffe.layers.conv import winograd_weights
from minicaffe.layers.conv.convolution_products import Product, WeightCache, chosen, factors_bytes, panels_bytes, supports
from minicaffe.layers.conv.convolve import BLOCK_BYTES, LEAST
from minicaffe.layers.conv.gradients import gradients
from minicaffe.layers.conv.window import Window, checked_output, folded, read_window
from minicaffe.layers.conv.winograd_weights import Numbers
from minicaffe.layers.elementwise.channels import sum_channels
from minicaffe.layers.elementwise.epilogue import NOTHING, Epilogue, joined
from minicaffe.layers.elementwise.fusion import Fusing
from minicaffe.mode import TEST, TRAIN
from minicaffe.reads import UNREAD, Axis
from minicaffe.threads import get_num_threads

MOST_MAPS = 32
"""Most shapes for which a layer keeps the facts that the GPU's products need."""

PIXEL = Window(kernel=(1,), stride=(1,), pad=(0,), dilation=(1,))
"""The window of a convolution without spatial axes: a matrix product."""


class Convolution(Fusing):
    """Cross-correlation of n-d maps with learned kernels, in groups of channels.

    bottom: x (N, C, *map), one or more of the same shape, sharing the weights. top: y (N, num_output, *windows), one
    for each bottom. Kernel, stride, pad and dilation in pixels. convolution_param.axis is C's axis; the axes before
    it are all images; no axis need follow. blobs: weight (num_output, C / group, *kernel), bias (num_output).
    Raises LayerError when the window is invalid or does not fit the map, there are no channels, channels or num_output are not
    divisible by group, bottoms differ, or the channels change after setup.
    """

    type = "Convolution"
    num_bottom = (1, None)
    num_top = AsManyAsBottoms()
    param_block: ClassVar[tuple[str, ...]] = ("convolution_param",)
    weight_names = ("weight", "bias")
    linear = True
    fuses = True

    keeps_weights: ClassVar[bool] = True
    """True if the layer keeps in TEST the factors or panels that it makes of the weights."""

    _checked: list[tuple[int, ...]] | None = None
    """The bottoms' shapes for which _top_shape is right."""
    _top_shape: tuple[int, ...] = ()

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.convolution_param
        self.axis = self.axis_of(param.axis, bottom[0], "convolution_param.axis")
        self.spatial_axes = len(bottom[0].shape) - self.axis - 1
        # Without spatial axes the layer is an inner product.
        self.window = self._read_window() if self.spatial_axes else PIXEL
        self.channels, self.num_output = bottom[0].shape[self.axis], param.num_output
        if self.channels < 1:
            raise self.error(f"the bottom of shape {bottom[0].shape} has no channels", "bottom[0]")
        if self.num_output < 1:
            raise self.error(f"num_output must be > 0, got {self.num_output}", "convolution_param.num_output")
        self.group = self._group(self.channels)
        for what, count in (("channels", self.channels), ("num_output", self.num_output)):
            if self.group < 1 or count % self.group:
                raise self.error(f"{what} ({count}) must be divisible by group ({self.group})", "convolution_param.group")
        shapes = [self._weight_shape(), self._bias_shape()][: 1 + param.bias_term]
        self.learn(shapes, [param.weight_filler, param.bias_filler])
        # In TRAIN the weights change in every step.
        self._kept = WeightCache() if self.phase == TEST and self.keeps_weights else None
        self._gpu_maps: dict[tuple[int, ...], gpu.Maps] = {}

    def _read_window(self) -> Window:
        return read_window(self, self.spatial_axes)

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        if b != t:  # each bottom has its own top
            return (UNREAD,) * self.spatial_axes
        return self.window.reads() if self.axis == 1 else None

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        multiply_adds = sum(blob.count for blob in top) * (self.blobs[0].count // self.num_output)
        cached, working = self._cached_bytes(bottom, top), self._working_bytes(bottom, top, propagate_down)
        return Costs(multiply_adds, 0, cached, working)

    def _cached_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        """Return the bytes of Winograd's factors or of panels, cached in TEST."""
        if self._kept is None:
            return 0
        if self._by_winograd(bottom[0], top[0]):
            weight = self.blobs[0].data_memory
            return factors_bytes(self._weight_shape(), self.window, self.group, weight.on_host and weight.has_views())
        shapes = self._maps_shape(bottom[0]), self._weight_shape(), self._maps_shape(top[0])
        return panels_bytes(shapes, self.window, self.group, self.dtype)

    def _working_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None) -> int:
        """Return the bytes of Winograd's passes, or of columns, products and two copies for a weight gradient."""
        x, y = self._maps_shape(bottom[0]), self._maps_shape(top[0])
        if self._by_winograd(bottom[0], top[0]):
            forward, of_data, of_weight = self._winograd_passes(x, y)
            backward = [] if propagate_down is None else [of_data, of_weight] if any(propagate_down) else [of_weight]
            return winograd_weights.working_bytes([forward, *backward])
        filters, *of_filter = self._weight_shape()
        columns = min(LEAST, math.prod(x[2:]), math.prod(y[2:]))  # at least those of one block
        column_bytes = (math.prod(of_filter) + filters // self.group) * self.dtype.itemsize
        blocks = get_num_threads() * 2 * max(BLOCK_BYTES, columns * column_bytes)
        return blocks + (0 if propagate_down is None else 2 * data_bytes(self.blobs[:1]))

    def _by_winograd(self, x: Blob, y: Blob) -> bool:
        """Return whether Winograd computes y from x. Reads only types and shapes and allocates nothing."""
        if self.spatial_axes != 2:
            return False
        shapes = self._maps_shape(x), self.blobs[0].shape, self._maps_shape(y)
        maps, weight, out = (np.broadcast_to(np.zeros((), self.dtype), shape) for shape in shapes)
        return supports(maps, weight, self.window, self.group, out, self._kept is not None)

    def _maps_shape(self, blob: Blob) -> tuple[int, ...]:
        """Return the shape of _maps."""
        return math.prod(blob.shape[: self.axis]), *blob.shape[self.axis :], *(() if self.spatial_axes else (1,))

    def _group(self, channels: int) -> int:
        return self.param.convolution_param.group

    def _weight_shape(self) -> tuple[int, ...]:
        return (self.num_output, self.channels // self.group, *self.window.kernel[: self.spatial_axes])

    def _bias_shape(self) -> tuple[int, ...]:
        return (self.num_output,)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shapes = [blob.shape for blob in bottom]
        if shapes != self._checked:
            self._top_shape, self._checked = self._check_bottoms(bottom), shapes
        for blob in top:
            blob.reshape(self._top_shape)

    def _check_bottoms(self, bottom: Sequence[Blob]) -> tuple[int, ...]:
        """Return the tops' shape. Raises LayerError if the bottoms' channels or axes do not match."""
        shape = bottom[0].shape
        spatial = shape[self.axis + 1 :]
        if len(spatial) != self.spatial_axes or shape[self.axis] != self.channels:
            raise self.error(
                f"was set up for {self.channels} channels at axis {self.axis} and {self.spatial_axes} spatial axes, "
                f"the bottom's shape is now {shape}",
                "bottom[0]",
            )
        for i, blob in enumerate(bottom):
            if blob.shape != shape:
                raise self.error(
                    f"all bottoms must have the shape of the first, {shape}; bottom {i} has {blob.shape}", f"bottom[{i}]"
                )
        output = self._output(spatial) if spatial else ()
        return *shape[: self.axis], self.num_output, *output

    def _output(self, spatial: Sequence[int]) -> tuple[int, ...]:
        return checked_output(self, self.window, spatial)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.ready(bottom, top, NOTHING)()

    def may_fuse(self) -> bool:
        return self.axis == 1  # an Epilogue needs its channels on axis 1

    def fuses_on_device(self) -> bool:
        return self.spatial_axes <= gpu.MOST_AXES

    def ready(self, bottom: Sequence[Blob], top: Sequence[Blob], epilogue: Epilogue) -> Callable[[], None]:
        return self.running(self.product(bottom[0], top[0], epilogue), bottom, top)

    def running(self, product: Product, bottom: Sequence[Blob], top: Sequence[Blob]) -> Callable[[], None]:
        """Return a function that runs a product on all bottoms."""
        weight = self.blobs[0]

        def run() -> None:
            numbers = weight.data_for_loops()
            for x, y in zip(bottom, top, strict=True):
                product(self._maps(x.data), numbers, self._maps(y.data))

        return run

    def product(self, x: Blob, y: Blob, epilogue: Epilogue) -> Product:
        """Return the product that computes y, then the epilogue, for these blobs or for others of the same shapes."""
        weight, *bias = self.blobs
        if bias:  # the bias comes first, because it is part of y
            epilogue = joined([Epilogue(shift=bias[0].read_data().reshape(-1).copy()), epilogue], self.dtype)
        if self._kept is not None:
            self._kept.look_at(weight)
        return self._product(self._maps(x.data), weight.data_for_loops(), self._maps(y.data), epilogue)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.spatial_axes > gpu.MOST_AXES:
            super().forward_gpu(bottom, top)
            return
        self.forward_gpu_with_epilogue(bottom, top, None)

    def forward_gpu_with_epilogue(self, bottom: Sequence[Blob], top: Sequence[Blob], after: DeviceEpilogue | None) -> None:
        """Run forward_gpu on maps of at most MOST_AXES axes, then apply the epilogue, with the bias, to the tops."""
        maps, weight = self._maps_gpu(bottom, top), self.blobs[0].device_data("read")
        bias = self.blobs[1].device_data("read") if len(self.blobs) > 1 else 0
        for x, y in zip(bottom, top, strict=True):
            to = y.device_data("write")
            self._gpu_products[0](maps, x.device_data("read"), weight, to)
            if after is not None:
                after(self.dtype, y.shape, to, to, bias)
            elif bias:
                gpu.add_bias(self.dtype, y.shape, self.axis, bias, to)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        for x, y, wanted in zip(bottom, top, propagate_down, strict=True):
            dy, weight = self._maps(y.diff), self.blobs[0]
            if len(self.blobs) > 1 and self.param_propagate_down[1]:
                self.blobs[1].diff[...] += sum_channels(dy.reshape(*dy.shape[:2], math.prod(dy.shape[2:])))
            dx, dweight = self._maps(x.diff) if wanted else None, weight.diff if self.param_propagate_down[0] else None
            self._gradients(self._maps(x.data), dy, weight.data, dx, dweight)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if self.spatial_axes > gpu.MOST_AXES:
            super().backward_gpu(top, propagate_down, bottom)
            return
        _, of_data, of_weight = self._gpu_products
        maps = self._maps_gpu(bottom, top)
        for x, y, wanted in zip(bottom, top, propagate_down, strict=True):
            dy = y.device_diff("read")
            if self.param_propagate_down[0]:
                of_weight(maps, x.device_data("read"), dy, self.blobs[0].device_diff("update"))
            if len(self.blobs) > 1 and self.param_propagate_down[1]:
                gpu.add_bias_gradient(self.dtype, y.shape, self.axis, dy, self.blobs[1].device_diff("update"))
            if wanted:
                of_data(maps, dy, self.blobs[0].device_data("read"), x.device_diff("write"))

    def _maps(self, x: Array) -> Array:
        """Return x (..., C, *map) as a view (N, C, *map). Without spatial axes maps have one pixel: (N, C, 1)."""
        maps = x if self.axis == 1 else folded(x, self.axis)
        return maps if self.spatial_axes else maps[:, :, None]  # PIXEL needs one spatial axis

    # Methods that Deconvolution reverses.

    def _product(self, x: Array, weight: Array, y: Array, epilogue: Epilogue) -> Product:
        return chosen(x, weight, self.window, self.group, y, epilogue, self._kept)

    def _gradients(self, x: Array, dy: Array, weight: Array, dx: Array | None, dweight: Array | None) -> None:
        gradients(x, dy, weight, self.window, self.group, dx, dweight)

    def _winograd_passes(self, x: tuple[int, ...], y: tuple[int, ...]) -> Sequence[Numbers]:
        """Return the counts of Winograd's forward, data gradient and weight gradient for maps of these shapes."""
        return winograd_weights.of_passes((x, self._weight_shape(), y), self.window, self.group, made=self.phase == TRAIN)

    def _maps_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> gpu.Maps:
        shape = bottom[0].shape
        if shape not in self._gpu_maps:
            if len(self._gpu_maps) == MOST_MAPS:
                self._gpu_maps.clear()
            self._gpu_maps[shape] = self._new_maps(bottom, top)
        return self._gpu_maps[shape]

    def _new_maps(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> gpu.Maps:
        shape = bottom[0].shape
        count, spatial = math.prod(shape[: self.axis]), shape[self.axis + 1 :] or (1,)
        return gpu.Maps(self.dtype, self.window, self.group, count, self.channels, self.num_output, spatial)

    _gpu_products: ClassVar[tuple[gpu.Product, gpu.Product, gpu.Product]] = (
        gpu.convolve,
        gpu.data_gradient,
        gpu.add_weight_gradient,
    )


class DepthwiseConvolution(LayoutFromWeights, Convolution):
    """Convolution with one group for each channel. ConvolutionDepthwise is the same.

        y[c J + j] = bias[c J + j] + sum over taps of weight[c J + j, 0, taps] * x[c, o * stride - pad + taps * dilation]
    Source: the layer of the MobileNet and ShuffleNet forks of Caffe, where it is also called ConvolutionDepthwise.

    bottom: x (N, C, *map), one or more of the same shape. top: y (N, num_output, *windows), one for each bottom;
    num_output is a multiple of C. convolution_param as Convolution's; group need not be given. Another group than C has no
    effect on ConvolutionDepthwise. DepthwiseConvolution stores weight (num_output, C / group, *kernel) then, and its code reads
    the first num_output * kernel values: the layer takes these from stored weights, with a warning.
    blobs: weight (num_output, 1, *kernel), bias (num_output).
    Raises LayerError as Convolution does, and for a group of DepthwiseConvolution that does not divide C.
    """

    type = "DepthwiseConvolution"
    fuses = True

    def _group(self, channels: int) -> int:
        given = self.param.convolution_param.group
        if given in (1, channels):
            return channels
        field = "convolution_param.group"
        if self.type != "ConvolutionDepthwise" and (given < 1 or channels % given or self.num_output % given):
            counts = f"channels ({channels}) and num_output ({self.num_output})"
            raise self.error(f"{counts} must be divisible by group ({given})", field)
        self.warn(f"group {given} has no effect: as in the fork's code, each of the {channels} channels is a group", field)
        return channels

    def takes_part_of(self, i: int, shape: Sequence[int]) -> bool:
        group, (filters, _, *kernel) = self.param.convolution_param.group, self._weight_shape()
        wide = (filters, self.channels // max(group, 1), *kernel)
        return i == 0 and self.type != "ConvolutionDepthwise" and group > 1 and tuple(shape) == wide
