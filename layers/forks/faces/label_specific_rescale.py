"""LabelSpecificRescale: the scores of the labels times one number, those of the other classes times another.

    y[i, label_i] = w x + (1 - w with bias_fix), with for_ip only where x > 0        y[i, j] = negative_weight x

w is positive_weight; with positive_weight_base, in TRAIN, base (1 + gamma t)^-power, at least positive_weight_min, at most
positive_weight_max; t grows by 1 with each forward, before that. Source: happynear's label_specific_rescale.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layers.loss.loss_bottoms import read_labels
from minicaffe.mode import TRAIN

from .label_scores import LabelScores


class LabelSpecificRescale(LabelScores):
    """Scores scaled by whether they are the label's, in TRAIN, and in TEST with rescale_test; else y = x.

    bottom: x (N, ...) scores, of which every value after the first axis is a class; labels (N,). top: y (x's shape), may be in
    place; optionally w (1,). positive_lower_bound and negative_upper_bound have no effect, as in the original.
    Raises LayerError for power_on_positive, a gamma below 0, another number of labels, and a label that is not whole
    or not a class.
    """

    type = "LabelSpecificRescale"
    param_block = ("label_specific_rescale_param",)
    copies = (1, 1)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.label_specific_rescale_param
        if param.power_on_positive:
            wrong = (
                "power_on_positive is not built in: the fork's code for the CPU and that for the GPU compute different things"
            )
            raise self.error(wrong, "label_specific_rescale_param.power_on_positive")
        if param.HasField("positive_weight_base") and param.gamma < 0:
            # 1 + gamma t becomes 0, and less
            raise self.error(f"gamma must be >= 0, got {param.gamma:g}", "label_specific_rescale_param.gamma")
        self.weight, self.iteration = param.positive_weight, param.iteration
        self.in_sequence = self.phase == TRAIN and param.HasField("positive_weight_base")

    def _next_weight(self) -> float:
        """w of the next forward, which counts the iterations."""
        param = self.param.label_specific_rescale_param
        self.iteration += 1
        weight = float(param.positive_weight_base * np.float64(1 + param.gamma * self.iteration) ** -param.power)
        if param.HasField("positive_weight_min"):
            weight = max(weight, param.positive_weight_min)
        return min(weight, param.positive_weight_max) if param.HasField("positive_weight_max") else weight

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, x, y = self.param.label_specific_rescale_param, bottom[0].data, top[0].data
        if self.in_sequence:
            self.weight = self._next_weight()
        if len(top) > 1:
            top[1].data[...] = self.weight
        self.scale = None
        if self.phase != TRAIN and not param.rescale_test:
            y[...] = x
            return
        labels, _ = read_labels(self, bottom[1].data, self.split, None)
        self.scale = np.full(self.split[:2], param.negative_weight, self.dtype)
        own = np.take_along_axis(x.reshape(self.split[:2]), labels, axis=1)
        scaled = own > 0 if param.for_ip else np.ones(own.shape, bool)
        np.put_along_axis(self.scale, labels, np.where(scaled, self.weight, 1).astype(self.dtype), axis=1)
        np.multiply(x, self.scale.reshape(x.shape), out=y)
        if param.bias_fix:
            rows = y.reshape(self.split[:2])
            rows[np.arange(len(rows)), labels[:, 0]] += np.where(scaled, 1 - self.weight, 0)[:, 0].astype(self.dtype)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            dy = top[0].diff
            bottom[0].diff[...] = dy if self.scale is None else dy * self.scale.reshape(dy.shape)
