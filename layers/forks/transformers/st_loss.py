"""STLoss: how far the places of a spatial transformer are outside of its map.

    loss = the sum over images and grid places of (max(0, |row| - 1)^2 + max(0, |column| - 1)^2) / 2, over their number

with (row, column) = theta (y, x, 1), as SpatialTransformer's. Source: daerduoCarey's st_loss_layer.cu.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob, checked_shape
from minicaffe.layers.loss.loss import Loss

from .spatial_transformer import grid


class STLoss(Loss):
    """loss = the mean over N images and output_H x output_W places of half the squared distances from [-1, 1].

    bottom: theta (N, 6). top: loss ().
    Raises LayerError for other shapes, and for an output_H or output_W below 1.
    """

    type = "STLoss"
    num_bottom = 1
    param_block = ("st_loss_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        param, shape = self.param.st_loss_param, bottom[0].shape
        if not shape or bottom[0].count != 6 * shape[0]:
            raise self.error(f"theta must be (N, 6), got shape {shape}", "bottom[0]")
        if min(param.output_H, param.output_W) < 1:
            raise self.error("needs output_H > 0 and output_W > 0", "st_loss_param")
        checked_shape((2, shape[0], param.output_H, param.output_W))  # the places, which the original keeps in a blob

    def _grid(self) -> Array:
        param = self.param.st_loss_param
        return grid((param.output_H, param.output_W), self.dtype)

    def _beyond(self, bottom: Sequence[Blob], places: Array) -> Array:
        """How far each place (3, P) of the grid comes beyond -1 or 1, (N, 2, P)."""
        moved = bottom[0].data.reshape(-1, 2, 3) @ places
        return np.asarray(moved - moved.clip(-1, 1))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        beyond = self._beyond(bottom, self._grid())
        top[0].data[...] = np.square(beyond).sum(dtype=np.float64) / max(1, beyond.size)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            places = self._grid()
            beyond = self._beyond(bottom, places)
            scale = 2 * float(top[0].diff.item()) / max(1, beyond.size)
            bottom[0].diff[...] = (beyond @ places.T * self.dtype.type(scale)).reshape(bottom[0].shape)
