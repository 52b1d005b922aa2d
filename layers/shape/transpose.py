"""Transpose: the axes in another order, y = transpose(x, dim). Source: CTPN's transpose_layer.cpp (Tian et al., 2016)."""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Array, Blob

from .rearranged import Rearranged


class Transpose(Rearranged):
    """y = transpose(x, dim): axis i of y is axis dim[i] of x.

    bottom: x, any shape. top: y, of x's shape in that order. transpose_param.dim lists every axis of x once.
    Raises LayerError for a list that does not.
    """

    type = "Transpose"
    param_block = ("transpose_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.order, axes = list(self.param.transpose_param.dim), len(bottom[0].shape)
        if sorted(self.order) != list(range(axes)):
            wanted = f"dim must list each axis of x of shape {bottom[0].shape} once, 0 to {axes - 1}"
            raise self.error(f"{wanted}; got {self.order}", "transpose_param")
        top[0].reshape(*(bottom[0].shape[axis] for axis in self.order))

    def arranged(self, x: Array) -> Array:
        view: Array = x.transpose(self.order)
        return view
