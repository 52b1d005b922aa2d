"""Reverse: one axis back to front, y[i] = x[K - 1 - i] along it. Source: CTPN's reverse_layer.cpp (Tian et al., 2016)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob

from .rearranged import Rearranged


class Reverse(Rearranged):
    """y = x with reverse_param.axis (default 0; negative: from the end) back to front.

    bottom: x (any shape). top: y (the same shape). Raises LayerError when x has no such axis.
    """

    type = "Reverse"
    param_block = ("reverse_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.axis = self.axis_of(self.param.reverse_param.axis, bottom[0], "reverse_param.axis")
        top[0].reshape(bottom[0].shape)

    def arranged(self, x: Array) -> Array:
        return np.flip(x, self.axis)
