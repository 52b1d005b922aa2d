"""ChannelScale: every pixel of x times one number, y[n, c, p] = x[n, c, p] * s[n, p]. Source: happynear's
channel_scale_layer.cpp."""

from __future__ import annotations

import math
from collections.abc import Sequence

from minicaffe.blob import Blob

from .broadcast_product import BroadcastProduct


class ChannelScale(BroadcastProduct):
    """y[n, c, ...] = x[n, c, ...] * s[n, ...].

    bottom: x (N, C, ...), s (N, ...) or (N, 1, ...). top: y (N, C, ...).
    Raises LayerError for other shapes; for global_scale, whose number is not learned but set from outside; and for do_forward,
    do_backward_feature and do_backward_scale of false, whose backward is not the gradient.
    """

    type = "ChannelScale"
    param_block = ("channel_scale_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.channel_scale_param
        if param.global_scale:
            raise self.error("global_scale is not built", "channel_scale_param.global_scale")
        if not (param.do_forward and param.do_backward_feature and param.do_backward_scale):
            raise self.error("do_forward, do_backward_feature and do_backward_scale must be true", "channel_scale_param")

    def factor_shape(self, x: tuple[int, ...], s: tuple[int, ...]) -> tuple[int, ...]:
        if len(x) < 2 or s[:1] != x[:1] or math.prod(s) != x[0] * math.prod(x[2:]):
            raise self.error(f"bottoms x (N, C, ...) and s (N, ...) are needed, got shapes {x} and {s}", "bottom[1]")
        return x[0], 1, *x[2:]
