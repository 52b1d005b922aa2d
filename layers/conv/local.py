"""Local: a convolution whose kernels differ from place to place.

    y[m, p] = bias[m, p] + sum over c, taps of weight[m, (c, taps), p] * x[c, the taps of window p]

Source: happynear's local_layer.cpp (Taigman et al., 2014).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layer import Costs, Layer

from .im2col import col2im, im2col
from .window import Window


class Local(Layer):
    """y[m, p] = bias[m, p] + weight[m, :, p] . the numbers of window p.

    bottom: x (N, C, H, W). top: y (N, num_output, H', W'). local_param: kernel_size, stride, pad in pixels.
    blobs: weight (num_output, 1, C * kernel_size^2, H' * W'), bias (1, 1, num_output, H' * W').
    Raises LayerError for a bottom without four axes, sizes below 1, a window that does not fit, and a size other than at setup.
    """

    type = "Local"
    num_bottom = 1
    num_top = 1
    param_block = ("local_param",)
    weight_names = ("weight", "bias")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, shape = self.param.local_param, bottom[0].shape
        if len(shape) != 4:
            raise self.error(f"x must be (N, C, H, W), got shape {shape}", "bottom[0]")
        if min(param.num_output, param.kernel_size, param.stride) < 1:
            raise self.error("num_output, kernel_size and stride must be at least 1", "local_param")
        self.map = shape[1:]
        self.output = tuple((size + 2 * param.pad - param.kernel_size) // param.stride + 1 for size in shape[2:])
        if min(shape[2:]) < param.kernel_size:
            raise self.error(
                f"a window of {param.kernel_size} pixels does not fit {shape[2]} x {shape[3]}", "local_param.kernel_size"
            )
        self.window = Window((param.kernel_size,) * 2, (param.stride,) * 2, (param.pad,) * 2, (1, 1))
        places, taps = self.output[0] * self.output[1], shape[1] * param.kernel_size**2
        shapes = [(param.num_output, 1, taps, places), (1, 1, param.num_output, places)]
        self.learn(shapes[: 1 + param.bias_term], [param.weight_filler, param.bias_filler])

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if bottom[0].shape[1:] != self.map:
            raise self.error(f"was set up for maps of {self.map}, the bottom's shape is now {bottom[0].shape}", "bottom[0]")
        top[0].reshape(bottom[0].shape[0], self.param.local_param.num_output, *self.output)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=bottom[0].shape[0] * self.blobs[0].count)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        weight = self.blobs[0].data[:, 0]
        columns = im2col(bottom[0].data, self.window).reshape(len(bottom[0].data), *weight.shape[1:])
        y = top[0].data.reshape(len(columns), *weight.shape[::2])
        np.einsum("mkp,nkp->nmp", weight, columns, out=y)
        if len(self.blobs) > 1:
            y += self.blobs[1].data[0]

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        weight = self.blobs[0].data[:, 0]
        dy = top[0].diff.reshape(len(bottom[0].data), *weight.shape[::2])
        if self.param_propagate_down[0]:
            columns = im2col(bottom[0].data, self.window).reshape(len(dy), *weight.shape[1:])
            self.blobs[0].diff[:, 0] += np.einsum("nmp,nkp->mkp", dy, columns)
        if len(self.blobs) > 1 and self.param_propagate_down[1]:
            self.blobs[1].diff[0, 0] += dy.sum(axis=0)
        if propagate_down[0]:
            given = np.einsum("mkp,nmp->nkp", weight, dy)
            bottom[0].diff[...] = col2im(
                given.reshape(len(dy), self.map[0], *self.window.kernel, *self.output), self.window, self.map[1:]
            )
