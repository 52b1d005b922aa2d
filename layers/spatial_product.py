"""SpatialProduct: every channel of x times one map, y[n, c, h, w] = x[n, c, h, w] * s[n, 0, h, w].

Source: hszhao/PSPNet's spatial_product_layer.cpp; MNC (arXiv:1512.04412), where it is called MaskPooling.
"""

from __future__ import annotations

from .elementwise.broadcast_product import BroadcastProduct


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
