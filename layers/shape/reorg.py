"""Reorg: an image's numbers in darknet's order, as more channels of a smaller map (YOLO's passthrough layer), and back.

With s = stride and K = C / s^2, for an image x (C, H, W):
    reorg     x's memory read as (K, H, s, W, s), its axes in the order 2, 4, 0, 1, 3; y is (C s^2, H / s, W / s)
    reverse   x's memory read as (s, s, K, H, W), its axes in the order 2, 3, 0, 4, 1; y is (C / s^2, H s, W s)
This is not space-to-depth, which would read x as (C, H / s, s, W / s, s): darknet takes the sizes of the other side.

Source: darknet's reorg_cpu (Redmon and Farhadi, YOLO9000, arXiv:1612.08242); MobileNet-YOLO's reorg_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Array, Blob

from .rearranged import Rearranged


class Reorg(Rearranged):
    """The numbers of x in darknet's order, as C s^2 channels of a map s times smaller each way; with reverse, larger.

    bottom: x (N, C, H, W). top: y (N, C s^2, H / s, W / s), or with reorg_param.reverse (N, C / s^2, H s, W s); s is
    reorg_param.stride. Raises LayerError without a stride, when x has not four axes, s^2 does not divide C, or s not H and W.
    """

    type = "Reorg"
    param_block = ("reorg_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.stride, self.reverse = self.param.reorg_param.stride, self.param.reorg_param.reverse
        if not self.stride:
            raise self.error("needs stride > 0", "reorg_param")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, s = bottom[0].shape, self.stride
        if len(shape) != 4:
            raise self.error(f"x must be (N, C, H, W), got shape {shape}", "bottom[0]")
        n, c, h, w = shape
        if c % (s * s):
            raise self.error(f"stride {s} needs a multiple of {s * s} channels, got {c}", "reorg_param.stride")
        if not self.reverse and (h % s or w % s):
            raise self.error(f"stride {s} divides no map of {h} x {w}", "reorg_param.stride")
        top[0].reshape(*((n, c // (s * s), h * s, w * s) if self.reverse else (n, c * s * s, h // s, w // s)))

    def arranged(self, x: Array) -> Array:
        n, c, h, w = x.shape
        view: Array = x.reshape(n, *self.split(c, h, w)).transpose(0, *self.order)
        return view

    def split(self, c: int, h: int, w: int) -> tuple[int, ...]:
        """The five axes as which an image's memory is read."""
        s, k = self.stride, c // (self.stride * self.stride)
        return (s, s, k, h, w) if self.reverse else (k, h, s, w, s)

    @property
    def order(self) -> tuple[int, ...]:
        """The order of those axes, counted from 1."""
        return (3, 4, 1, 5, 2) if self.reverse else (3, 5, 1, 2, 4)
