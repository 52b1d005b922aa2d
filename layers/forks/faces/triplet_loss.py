"""TripletLoss: an anchor should be nearer to its like than to another, by a margin.

    loss = sum_i max(0, margin + |a_i - p_i|^2 - |a_i - n_i|^2) / (2 N)

Source: Schroff, Kalenichenko, Philbin, 2015; happynear's triplet_loss_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layers.loss.loss import Loss
from minicaffe.layers.loss.loss_bottoms import check_same_shape


class TripletLoss(Loss):
    """Triplet loss with triplet_loss_param.margin (default 1).

    bottom: a (N, ...) anchors, p of the same kind, n of another, all of one shape. top: loss (). All three get gradients.
    Raises LayerError for other shapes.
    """

    type = "TripletLoss"
    num_bottom = 3
    param_block = ("triplet_loss_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        for i in (1, 2):
            check_same_shape(self, bottom, i)

    def _losses(self, bottom: Sequence[Blob]) -> tuple[Array, Array, Array]:
        """Twice the losses (N,), and a - p and a - n (N, C)."""
        shape = bottom[0].shape
        a, p, n = (blob.data.reshape(math.prod(shape[:1]), math.prod(shape[1:])) for blob in bottom)
        near, far = a - p, a - n
        gap = np.square(near).sum(axis=1) - np.square(far).sum(axis=1)
        return np.maximum(gap + self.dtype.type(self.param.triplet_loss_param.margin), 0), near, far

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        losses = self._losses(bottom)[0]
        top[0].data[...] = losses.sum(dtype=np.float64) / (2 * max(1, len(losses)))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        losses, near, far = self._losses(bottom)
        scale = (losses > 0)[:, None] * self.dtype.type(float(top[0].diff.item()) / max(1, len(losses)))
        for blob, diff, wanted in zip(bottom, (near - far, -near, far), propagate_down):
            if wanted:
                blob.diff[...] = (diff * scale).reshape(blob.shape)
