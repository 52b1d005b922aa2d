"""BroadcastMul: every map of x times one number, y[n, c, h, w] = x[n, c, h, w] * s[n, c].

Source: beniz/caffe's broadcast_mul_layer.cpp.
"""

from __future__ import annotations

from .broadcast_product import BroadcastProduct


class BroadcastMul(BroadcastProduct):
    """y[n, c, ...] = x[n, c, ...] * s[n, c].

    bottom: x (N, C, ...), s (N, C) or (N, C, 1, ...). top: y (N, C, ...).
    Raises LayerError when x has fewer than two axes, and when s is not one number for each map.
    """

    type = "BroadcastMul"

    def factor_shape(self, x: tuple[int, ...], s: tuple[int, ...]) -> tuple[int, ...]:
        if len(x) < 2 or s != x[:2] + (1,) * (len(s) - 2):
            raise self.error(f"bottoms x (N, C, ...) and s (N, C) are needed, got shapes {x} and {s}", "bottom[1]")
        return x[:2] + (1,) * (len(x) - 2)
