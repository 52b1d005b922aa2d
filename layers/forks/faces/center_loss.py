"""CenterLoss: the distance of features to the centre of their class, and centres that follow.

    loss = sum_i |x_i - c[label_i]|^2 / (2 N), or with L1 sum_i |x_i - c[label_i]|_1 / N

The centres' diff is no gradient, on purpose: the sum over their features of (c - x), or its sign, over 1 + their number,
whatever the loss weight is. Source: Wen et al., 2016; caffe-face's and happynear's center_loss_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.layer import Costs
from minicaffe.layers.loss.loss import ClassAxis, Loss, check_label_count, read_labels


class CenterLoss(Loss):
    """Half the mean squared distance of features to the centre of their class. As in the originals, it counts only with an
    explicit loss_weight.

    bottom: x (N, ...) features, which are one vector from center_loss_param.axis on; labels (N,). top: loss ().
    blobs: centre (num_output, K). distance_type: L2 or L1.
    Raises LayerError for num_output 0, another distance_type, another number of labels or features, and a label that is not
    whole or beyond the centres.
    """

    type = "CenterLoss"
    index_bottoms = (1,)
    is_loss = False
    param_block = ("center_loss_param",)
    weight_names = ("center",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.center_loss_param
        if not param.num_output:
            raise self.error("num_output must be > 0, got 0", "center_loss_param.num_output")
        if param.distance_type not in ("L1", "L2"):
            raise self.error(f"distance_type must be L1 or L2, got {param.distance_type}", "center_loss_param.distance_type")
        self.axis = self.axis_of(param.axis, bottom[0], "center_loss_param.axis")
        self.features = math.prod(bottom[0].shape[self.axis :])
        self.learn([(param.num_output, self.features)], [param.center_filler])

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        shape = bottom[0].shape
        if math.prod(shape[self.axis :]) != self.features:
            raise self.error(f"was set up for {self.features} features, the bottom's shape is now {shape}", "bottom[0]")
        self.split = ClassAxis(math.prod(shape[: self.axis]), self.param.center_loss_param.num_output, 1)
        check_label_count(self, self.split, bottom)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=bottom[0].count)

    def _difference(self, bottom: Sequence[Blob]) -> tuple[Array, NDArray[np.intp]]:
        """x - c[label] (N, K), and the labels (N,)."""
        labels = read_labels(self, bottom[1].data, self.split, None)[0][:, 0]
        return bottom[0].data.reshape(self.split.outer, self.features) - self.blobs[0].data[labels], labels

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        d, _ = self._difference(bottom)
        l1 = self.param.center_loss_param.distance_type == "L1"
        total = np.abs(d).sum(dtype=np.float64) if l1 else np.square(d).sum(dtype=np.float64) / 2
        top[0].data[...] = total / max(1, len(d))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        d, labels = self._difference(bottom)
        if self.param.center_loss_param.distance_type == "L1":
            d = np.sign(d)
        if self.param_propagate_down[0]:
            moves = np.zeros_like(self.blobs[0].data)
            np.subtract.at(moves, labels, d)
            self.blobs[0].diff[...] += moves / (1 + np.bincount(labels, minlength=len(moves)).astype(self.dtype))[:, None]
        if propagate_down[0]:
            scale = self.dtype.type(float(top[0].diff.item()) / max(1, len(d)))
            bottom[0].diff[...] = (d * scale).reshape(bottom[0].shape)
