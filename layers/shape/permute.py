"""Permute: the axes in another order, y = transpose(x, order). Source: the SSD fork's permute_layer.cpp."""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Array, Blob

from .rearranged import Rearranged


class Permute(Rearranged):
    """y = transpose(x, order): axis i of y is axis order[i] of x.

    bottom: x, any shape. top: y, of x's shape in that order. permute_param.order lists axes; those it leaves out follow
    in order, so that `order: 0 order: 2 order: 3 order: 1` makes (N, C, H, W) into (N, H, W, C).
    Raises LayerError for an axis that x does not have, or that is listed twice.
    """

    type = "Permute"
    param_block = ("permute_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        axes, given = len(bottom[0].shape), list(self.param.permute_param.order)
        for i, axis in enumerate(given):
            if axis >= axes:
                raise self.error(f"order has axis {axis}; x of shape {bottom[0].shape} has {axes}", "permute_param.order")
            if axis in given[:i]:
                raise self.error(f"order lists axis {axis} twice", "permute_param.order")
        self.order = given + [axis for axis in range(axes) if axis not in given]
        top[0].reshape(*(bottom[0].shape[axis] for axis in self.order))

    def arranged(self, x: Array) -> Array:
        view: Array = x.transpose(self.order)
        return view
