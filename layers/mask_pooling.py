"""MaskPooling: every channel times the image's mask, y[n, c, h, w] = x[n, c, h, w] m[n, 0, h, w].

Source: Dai et al., MNC (arXiv:1512.04412); caffe-mnc's mask_pooling_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layer import Layer


class MaskPooling(Layer):
    """y[n, c] = x[n, c] m[n, 0]; dx = dy m, dm = the sum over the channels of dy x.

    bottom: x (N, C, H, W), m (N, 1, H, W). top: y (x's shape). Both bottoms get gradients.
    Raises LayerError for other shapes.
    """

    type = "MaskPooling"
    num_bottom = 2
    num_top = 1
    weight_names = ()
    copies = (0, 1)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, mask = bottom[0].shape, bottom[1].shape
        if len(x) != 4 or mask != (x[0], 1, *x[2:]):
            raise self.error(f"needs x (N, C, H, W) and a mask (N, 1, H, W), got shapes {x} and {mask}", "bottom[1]")
        top[0].reshape(x)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        np.multiply(bottom[0].data, bottom[1].data, out=top[0].data)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy = top[0].diff
        if propagate_down[0]:
            np.multiply(dy, bottom[1].data, out=bottom[0].diff)
        if propagate_down[1]:
            np.sum(dy * bottom[0].data, axis=1, keepdims=True, out=bottom[1].diff)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, mask, y = bottom[0], bottom[1].device_data("read"), top[0].device_data("write")
        self.launch("mask_pooling.mask_pooling", x.count, x.count, *_planes(x), x.device_data("read"), mask, y)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        (x, mask), dy = bottom, top[0].device_diff("read")
        if propagate_down[0]:
            to = mask.device_data("read"), x.device_diff("write")
            self.launch("mask_pooling.mask_pooling", x.count, x.count, *_planes(x), dy, *to)
        if propagate_down[1]:
            to = x.device_data("read"), mask.device_diff("write")
            self.launch("mask_pooling.mask_gradient", mask.count, mask.count, *_planes(x), dy, *to)


def _planes(x: Blob) -> tuple[int, int]:
    """The channels of x, and the numbers of one."""
    return x.shape[1], math.prod(x.shape[2:])
