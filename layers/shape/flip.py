"""Flip: maps mirrored, y[h, w] = x[h, W - 1 - w]. Source: happynear/caffe-windows' flip_layer.cpp."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob

from .rearranged import Rearranged


class Flip(Rearranged):
    """y = x with its last axis back to front (flip_param.flip_width, the default), its last but one (flip_height), or both.

    bottom: x (N, C, H, W). top: y (the same shape). Raises LayerError for another number of axes.
    """

    type = "Flip"
    param_block = ("flip_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom[0].shape) != 4:
            raise self.error(f"x must be (N, C, H, W), got shape {bottom[0].shape}", "bottom[0]")
        top[0].reshape(bottom[0].shape)

    def arranged(self, x: Array) -> Array:
        param = self.param.flip_param
        axes = (2,) * param.flip_height + (3,) * param.flip_width
        return np.flip(x, axes)
