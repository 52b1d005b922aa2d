"""Deconvolution: convolution's transpose. Each pixel of x adds its multiple of a kernel to y, one stride apart.

    y[m] = bias[m] + sum over c, o, taps with o * stride - pad + taps * dilation = this pixel of weight[c, m, taps] * x[c, o]
Source: Caffe's deconv_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from minicaffe.blob import Array, Blob
from minicaffe.cuda import convolution as gpu
from minicaffe.layer import Costs
from minicaffe.layers.elementwise.epilogue import Epilogue
from minicaffe.reads import Axis
from minicaffe.threads import each_block

from .convolution import Convolution
from .convolution_products import Product, add_weight_gradient, convolve, data_gradient
from .winograd_weights import Numbers


class Deconvolution(Convolution):
    """Convolution with forward and backward exchanged: the backward pass of a convolution from y to x.

    bottom: x (N, C, *windows), one or more of the same shape. top: y (N, num_output, *map), map = stride * (windows - 1)
    + dilation * (kernel - 1) + 1 - 2 * pad. blobs: weight (C, num_output / group, *kernel), bias (num_output).
    Raises LayerError as Convolution does, and when the padding leaves nothing of the map.
    """

    type = "Deconvolution"
    keeps_weights = False

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        if b != t or self.axis != 1:
            return super().reads(bottom, top, b, t)
        return self.window.transposed_reads()

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        multiply_adds = sum(blob.count for blob in bottom) * math.prod(self.blobs[0].shape[1:])
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=multiply_adds)

    def _weight_shape(self) -> tuple[int, ...]:
        return (self.channels, self.num_output // self.group, *self.window.kernel[: self.spatial_axes])

    def _output(self, spatial: Sequence[int]) -> tuple[int, ...]:
        output = self.window.input(spatial)
        if min(output) < 1:
            raise self.error(
                f"a bottom of {'x'.join(map(str, spatial))} gives a top of {'x'.join(map(str, output))}: nothing is left of it",
                "convolution_param",
            )
        return output

    def _product(self, x: Array, weight: Array, y: Array, epilogue: Epilogue) -> Product:
        def product(x: Array, weight: Array, y: Array) -> None:
            # The epilogue must wait for the whole product: neighbouring blocks add to the same pixels.
            data_gradient(x, weight, self.window, self.group, y)
            each_block(y.shape, lambda index: epilogue(y[index], index[1]))

        return product

    def _gradients(self, x: Array, dy: Array, weight: Array, dx: Array | None, dweight: Array | None) -> None:
        if dweight is not None:
            add_weight_gradient(dy, x, self.window, self.group, dweight)  # x and dy are exchanged, as in _product
        if dx is not None:
            convolve(dy, weight, self.window, self.group, dx)

    def _winograd_passes(self, x: tuple[int, ...], y: tuple[int, ...]) -> Sequence[Numbers]:
        of_data, forward, of_weight = super()._winograd_passes(y, x)
        return forward, of_data, of_weight

    def _new_maps(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> gpu.Maps:
        shape = top[0].shape
        count, spatial = math.prod(shape[: self.axis]), shape[self.axis + 1 :] or (1,)
        return gpu.Maps(self.dtype, self.window, self.group, count, self.num_output, self.channels, spatial)

    _gpu_products = (
        gpu.data_gradient,
        gpu.convolve,
        lambda maps, x, dy, dweight: gpu.add_weight_gradient(maps, dy, x, dweight),
    )
