"""L1Loss: the mean absolute difference of FlowNet's flows, or the mean end point error.

    loss = sum |d| / N,  d = x - target; with l2_per_location: sum over places of sqrt(s + epsilon) / N, s = sum over c of d^2

A NaN in d counts as 0. Source: FlowNet 2's l1loss_layer.cu (Ilg et al., 2017).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layers.loss.loss import DifferenceLoss, check_same_shape, put_opposite


class L1Loss(DifferenceLoss):
    """loss = sum |d| / divisor, or with l2_per_location the sum of sqrt(s + epsilon) / divisor.

    bottom: x (N, C, H, W), optionally the target of x's shape (otherwise d = x). top: loss (). Both bottoms get gradients.
    l1_loss_param: normalize_by_num_entries (divisor: the numbers that are not NaN, over C; else N); l2_prescale_by_channels (s
    is divided by C); plateau p (|d| < p counts as 0, s < p^2 as s = 0; neither has a gradient); epsilon.
    Raises LayerError for an x without four axes and for a target of another shape.
    """

    type = "L1Loss"
    num_bottom = (1, 2)
    param_block = ("l1_loss_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        if len(bottom[0].shape) != 4:
            raise self.error(f"x must be (N, C, H, W), got shape {bottom[0].shape}", "bottom[0]")
        if len(bottom) > 1:
            check_same_shape(self, bottom, 1)
        self.difference.reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, d = self.param.l1_loss_param, self.difference.data
        np.copyto(d, bottom[0].data)
        if len(bottom) > 1:
            d -= bottom[1].data
        unknown = np.isnan(d)
        d[unknown] = 0
        channels = max(1, d.shape[1])
        self.divisor = (d.size - unknown.sum()) / channels if param.normalize_by_num_entries else d.shape[0]
        terms = np.sqrt(self._squares() + param.epsilon) if param.l2_per_location else np.abs(self._beyond_plateau())
        top[0].data[...] = terms.sum(dtype=np.float64) / self.divisor if self.divisor else 0

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        param, d = self.param.l1_loss_param, self.difference.data
        if param.l2_per_location:
            squares = self._squares()
            share = d.shape[1] if param.l2_prescale_by_channels else 1
            root = share * np.sqrt(squares + param.epsilon)
            dx = np.divide(np.where(squares > 0, d, 0), root, out=np.zeros_like(d), where=root > 0)
        else:
            dx = np.sign(self._beyond_plateau())
        scale = float(top[0].diff.item()) / self.divisor if self.divisor else 0.0
        put_opposite(dx * self.dtype.type(scale), [*propagate_down, False][:2], bottom)

    def _beyond_plateau(self) -> Array:
        """d, with 0 on the plateau."""
        d = self.difference.data
        return np.where(np.abs(d) < self.param.l1_loss_param.plateau, self.dtype.type(0), d)

    def _squares(self) -> Array:
        """s (N, 1, H, W), with 0 on the plateau."""
        param, d = self.param.l1_loss_param, self.difference.data
        squares = np.einsum("nchw,nchw->nhw", d, d)[:, None]
        if param.l2_prescale_by_channels:
            squares /= max(1, d.shape[1])
        return np.asarray(np.where(squares < param.plateau**2, self.dtype.type(0), squares))
