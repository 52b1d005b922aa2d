"""EuclideanLossWithIgnore: EuclideanLoss over the items whose target says that they count.

    loss = sum_i s_i / (2 K)        s_i = sum((x_i - t_i)^2), K: how many items count

With is_normalized s_i is divided by z_i = sum(x_i^2), or with normalize_choice 1 sum(t_i^2), where that is not 0:
    dx_i = ((x_i - t_i) - x_i s_i / z_i) / (z_i K)        with choice 0; with 1 the second term is the target's

Source: pulkitag/caffe's euclidean_loss_with_ignore_layer.cpp, whose backward multiplies by z_i. This one is the exact gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layers.loss.loss import Loss


class EuclideanLossWithIgnore(Loss):
    """Half the mean squared distance of the items that count: those whose target has 1 after its last number.

    bottom: x (N, C, ...); target (N, C + 1, ...), of which the last channel says by its first number whether the item counts.
    top: loss (), 0 if none does. Both bottoms get gradients. euclideanloss_param: is_normalized, normalize_choice.
    Raises LayerError for other shapes, and a normalize_choice that is neither 0 nor 1.
    """

    type = "EuclideanLossWithIgnore"
    num_bottom = 2
    param_block = ("euclideanloss_param",)
    copies = (2, 3)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        choice = self.param.euclideanloss_param.normalize_choice
        if choice > 1:
            raise self.error(f"normalize_choice must be 0 or 1, got {choice}", "euclideanloss_param.normalize_choice")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        shape, target = (blob.shape for blob in bottom)
        if len(shape) < 2 or target != (shape[0], shape[1] + 1, *shape[2:]):
            raise self.error(f"for x of shape {shape} the target must have one channel more, got {target}", "bottom[1]")

    def _read(self, bottom: Sequence[Blob]) -> tuple[Array, Array, Array, Array, Array]:
        """x and the target (N, K), and of each item (N,) whether it counts, s, and z, 0 where s is not divided by it."""
        items, each = bottom[0].shape[0], math.prod(bottom[0].shape[1:])
        x = bottom[0].data.reshape(items, each)
        rows = bottom[1].data.reshape(items, math.prod(bottom[1].shape[1:]))
        target, counts = rows[:, :each], (rows[:, each : each + 1] == 1).any(axis=1)  # of no numbers, none counts
        param = self.param.euclideanloss_param
        z = np.square(target if param.normalize_choice else x).sum(axis=1) * x.dtype.type(param.is_normalized)
        return x, target, counts, np.square(x - target).sum(axis=1), z

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        _, _, counts, square, z = self._read(bottom)
        losses = np.divide(square, z, out=square.copy(), where=z > 0)
        top[0].data[...] = losses[counts].sum(dtype=np.float64) / max(1, 2 * int(counts.sum()))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        x, target, counts, square, z = self._read(bottom)
        scale = counts * (float(top[0].diff.item()) / max(1, int(counts.sum()))) / np.where(z > 0, z, 1)
        through_z = np.divide(square, z, out=np.zeros_like(square), where=z > 0)[:, None]
        for i, one, other in ((0, x, target), (1, target, x)):
            if propagate_down[i]:
                slope = one - other - through_z * one * (self.param.euclideanloss_param.normalize_choice == i)
                diff = bottom[i].diff.reshape(len(x), math.prod(bottom[i].shape[1:]))
                diff[:, : x.shape[1]] = slope * scale[:, None]
                diff[:, x.shape[1] :] = 0
