"""SpatialProduct: every channel of x times one map, y[n, c, h, w] = x[n, c, h, w] * s[n, 0, h, w].

Source: hszhao/PSPNet's spatial_product_layer.cpp; MNC (arXiv:1512.04412), where it is called MaskPooling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from minicaffe.blob import Blob

from .broadcast_product import BroadcastProduct


class SpatialProduct(BroadcastProduct):
    """y[n, c, ...] = x[n, c, ...] * s[n, 0, ...]. MaskPooling is the same.

    bottom: x (N, C, ...), s (N, 1, ...). top: y (N, C, ...).
    Raises LayerError when x has fewer than two axes, and when s is not one map for each image.
    """

    type = "SpatialProduct"

    def factor_shape(self, x: tuple[int, ...], s: tuple[int, ...]) -> tuple[int, ...]:
        if len(x) < 2 or s != (x[0], 1, *x[2:]):
            raise self.error(f"bottoms x (N, C, ...) and s (N, 1, ...) are needed, got shapes {x} and {s}", "bottom[1]")
        return s

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, s, y = bottom[0], bottom[1].device_data("read"), top[0].device_data("write")
        self.launch("spatial_product.product", x.count, x.count, *_planes(x), x.device_data("read"), s, y)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        (x, s), dy = bottom, top[0].device_diff("read")
        if propagate_down[0]:
            to = s.device_data("read"), x.device_diff("write")
            self.launch("spatial_product.product", x.count, x.count, *_planes(x), dy, *to)
        if propagate_down[1]:
            to = x.device_data("read"), s.device_diff("write")
            self.launch("spatial_product.map_gradient", s.count, s.count, *_planes(x), dy, *to)


def _planes(x: Blob) -> tuple[int, int]:
    """The channels of x, and the numbers of one."""
    return x.shape[1], math.prod(x.shape[2:])
