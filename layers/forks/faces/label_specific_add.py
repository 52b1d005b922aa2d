"""LabelSpecificAdd: a bias added to the score of the label, where that is above -bias, in TRAIN.

    y[i, j] = x[i, j] + bias for j = label_i and x[i, j] > -bias; else x[i, j]

With bias_base the bias changes with the iteration t: base + (1 + gamma t)^power - 1, at least bias_min, at most bias_max.
Source: happynear's label_specific_add.cpp (additive margins, Wang et al., 2018); its transform_test has no effect in TEST.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layers.loss.loss_bottoms import read_labels
from minicaffe.mode import TRAIN

from .label_scores import LabelScores


class LabelSpecificAdd(LabelScores):
    """y = x, with the bias added to the scores of the labels in TRAIN; dx = dy.

    bottom: x (N, ...) scores, of which every value after the first axis is a class; labels (N,). top: y (x's shape), may be in
    place; optionally the bias (1,). label_specific_add_param: bias, or bias_base, bias_gamma, bias_power, bias_min, bias_max
    and iteration (the first t). In TEST y = x, whatever transform_test says, as in the original.
    Raises LayerError for another number of labels, and for a label that is not whole or not a class.
    """

    type = "LabelSpecificAdd"
    param_block = ("label_specific_add_param",)
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.iteration = self.param.label_specific_add_param.iteration
        self.in_sequence = self.phase == TRAIN and self.param.label_specific_add_param.HasField("bias_base")

    def bias(self) -> float:
        """The bias of the next forward, which counts the iterations."""
        param = self.param.label_specific_add_param
        if not param.HasField("bias_base"):
            return param.bias
        # NumPy's power is as C's where there is no such number: infinite or NaN
        power = np.float64(1 + param.bias_gamma * self.iteration) ** param.bias_power
        bias = float(param.bias_base + power - 1)
        self.iteration += 1
        return min(max(bias, param.bias_min), param.bias_max)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if top[0] is not bottom[0]:
            top[0].data[...] = bottom[0].data
        bias = self.bias() if self.phase == TRAIN else 0.0
        if len(top) > 1:
            top[1].data[...] = bias
        if self.phase == TRAIN:
            y = top[0].data.reshape(self.split[:2])
            labels, _ = read_labels(self, bottom[1].data, self.split, None)
            own = np.take_along_axis(y, labels, axis=1)
            np.put_along_axis(y, labels, own + np.where(own > -bias, self.dtype.type(bias), 0), axis=1)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0] and top[0] is not bottom[0]:
            bottom[0].diff[...] = top[0].diff
