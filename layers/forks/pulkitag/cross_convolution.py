"""CrossConvolution: one image convolved with the windows of another as its filters.

    y[n, p, o] = sum_k u[n, k, p] v[n, k, o]        u, v: the windows of a and b as columns, as Im2col's

dU = V dy^T and dV = U dy, whose windows are then added up. Source: pulkitag/caffe's cross_convolution_layer.cpp, whose backward
adds the gradients of a of all images before it to each image's, and gives none to b alone. This one is the exact gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from minicaffe.blob import Array, Blob
from minicaffe.layer import Costs, Layer, data_bytes
from minicaffe.layers.conv.im2col import col2im, im2col
from minicaffe.layers.conv.window import checked_output, read_window


class CrossConvolution(Layer):
    """Every window of a against every window of b, of the same size, stride and pad.

    bottom: a, b (N, C, H, W). top: y (N, P, OH, OW), P = OH OW being the windows of a, row by row.
    convolution_param: the window; bias_term must be false, num_output 0 (it is P), group 1.
    Raises LayerError for others, a dilation, and bottoms whose shapes differ or lack four axes or channels.
    """

    type = "CrossConvolution"
    num_bottom = 2
    num_top = 1
    param_block = ("convolution_param",)
    weight_names = ()

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.convolution_param
        for field, value, wanted in (
            ("bias_term", param.bias_term, False),
            ("num_output", param.num_output, 0),
            ("group", param.group, 1),
        ):
            if value != wanted:
                raise self.error(
                    f"{field} must be {str(wanted).lower()}, got {str(value).lower()}", f"convolution_param.{field}"
                )
        self.window = read_window(self, 2)
        if set(self.window.dilation) != {1}:
            raise self.error("takes no dilation", "convolution_param.dilation")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        a, b = (blob.shape for blob in bottom)
        if len(a) != 4:
            raise self.error(f"the bottoms must be (N, C, H, W), got shape {a}", "bottom[0]")
        if not a[1]:
            raise self.error(f"the bottoms have no channels: shape {a}", "bottom[0]")
        if a != b:
            raise self.error(f"the bottoms must have one shape, got {a} and {b}", "bottom[1]")
        output = checked_output(self, self.window, a[2:])
        top[0].reshape(a[0], math.prod(output), *output)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        taps = bottom[0].shape[1] * math.prod(self.window.kernel)
        windows = top[0].shape[0] * top[0].shape[1] * taps * self.dtype.itemsize
        working = windows * (2 if propagate_down is None else 3) + data_bytes(top)
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=top[0].count * taps, working=working)

    def _columns(self, bottom: Blob) -> Array:
        """The windows of a bottom, (N, K, P)."""
        n, c, *size = bottom.shape
        windows = math.prod(self.window.output(size))
        return im2col(bottom.data, self.window).reshape(n, c * math.prod(self.window.kernel), windows)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        u, v = map(self._columns, bottom)
        top[0].data[...] = (u.swapaxes(1, 2) @ v).reshape(top[0].shape)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        n, windows, *output = top[0].shape
        dy = top[0].diff.reshape(n, windows, windows)
        for i, other in ((0, 1), (1, 0)):
            if propagate_down[i]:
                gradient = self._columns(bottom[other]) @ (dy.swapaxes(1, 2) if i == 0 else dy)
                shape = bottom[i].shape
                columns = gradient.reshape(*shape[:2], *self.window.kernel, *output)
                bottom[i].diff[...] = col2im(columns, self.window, shape[2:])
