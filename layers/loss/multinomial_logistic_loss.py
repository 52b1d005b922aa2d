"""MultinomialLogisticLoss: the mean negative log of given probabilities at the true classes.

    loss = -sum_i log(max(p_i[label_i], 1e-20)) / N        dp_i[label_i] = -1 / (N max(p_i[label_i], 1e-20))

Source: Caffe's multinomial_logistic_loss_layer.cpp; its gradient does not see the floor 1e-20.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob

from .loss import ImageLoss
from .loss_bottoms import read_labels

LOG_THRESHOLD = 1e-20
"""A probability below it counts as it."""


class MultinomialLogisticLoss(ImageLoss):
    """loss = -sum(log p[label]) / N.

    bottom: p (N, ...) probabilities, of which every value after the first axis is a class; labels (N,). top: loss ().
    Raises LayerError for another number of labels, and for a label that is not whole or not a class.
    """

    type = "MultinomialLogisticLoss"
    copies = (0, 0)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        true, _ = self._true(bottom)
        top[0].data[...] = -np.log(true).sum(dtype=np.float64) / max(1, self.split.outer)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            true, labels = self._true(bottom)
            scale = float(top[0].diff.item()) / max(1, self.split.outer)
            bottom[0].diff[...] = 0
            np.put_along_axis(bottom[0].diff.reshape(self.split[:2]), labels, -scale / true, axis=1)

    def _true(self, bottom: Sequence[Blob]) -> tuple[Array, NDArray[np.intp]]:
        """The true classes' probabilities, no less than LOG_THRESHOLD, and the labels, both (N, 1)."""
        labels, _ = read_labels(self, bottom[1].data, self.split, None)
        true = np.take_along_axis(bottom[0].data.reshape(self.split[:2]), labels, axis=1)
        return np.maximum(true, LOG_THRESHOLD), labels
