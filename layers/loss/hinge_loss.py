"""HingeLoss: one-versus-all margins.

    m_ik = max(0, 1 - s_ik x_ik), s = 1 at the true class and -1 elsewhere
    L1: loss = sum(m) / N        L2: loss = sum(m^2) / N

Source: Caffe's hinge_loss_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layers.loss.loss import read_labels
from minicaffe.proto import caffe_pb2

from .loss import ImageLoss


class HingeLoss(ImageLoss):
    """Hinge loss of scores against one whole label an image, with hinge_loss_param.norm L1 (default) or L2.

    bottom: x (N, ...) scores, of which every value after the first axis is a class; labels (N,). top: loss ().
    Raises LayerError for another number of labels, and for a label that is not whole or not a class.
    """

    type = "HingeLoss"
    param_block = ("hinge_loss_param",)
    copies = (3, 5)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.squared = self.param.hinge_loss_param.norm == caffe_pb2.HingeLossParameter.L2

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        margins, _ = self._margins(bottom)
        losses = np.square(margins) if self.squared else margins
        top[0].data[...] = losses.sum(dtype=np.float64) / max(1, self.split.outer)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            margins, sides = self._margins(bottom)
            # the margin is 0 where it does not count, and so is its sign
            slopes = 2 * margins if self.squared else np.sign(margins)
            scale = float(top[0].diff.item()) / max(1, self.split.outer)
            bottom[0].diff[...] = (-sides * slopes * scale).reshape(bottom[0].shape)

    def _margins(self, bottom: Sequence[Blob]) -> tuple[Array, Array]:
        """max(0, 1 - s x) and s, both (N, C)."""
        labels, _ = read_labels(self, bottom[1].data, self.split, None)
        x = bottom[0].data.reshape(self.split[:2])
        sides = np.full(x.shape, -1, x.dtype)
        np.put_along_axis(sides, labels, 1, axis=1)  # 1 at the label, -1 elsewhere: each class against the rest
        return np.maximum(0, 1 - sides * x), sides
