"""Scores of the true class, lowered by a margin or scaled.

LabelScores: the frame of layers that change the scores of the labels: LabelSpecificAdd and LabelSpecificRescale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layer import Layer
from minicaffe.layers.loss.loss import ClassAxis, check_label_count, read_labels
from minicaffe.mode import TRAIN


class LabelScores(Layer):
    """bottom: x (N, ...) scores, of which every value after the first axis is a class; labels (N,). top: y (x's shape), may be
    in place; optionally the number that the layer changes scores by, (1,).

    Raises LayerError for another number of labels.
    """

    num_bottom = 2
    num_top = (1, 2)
    in_place = True
    index_bottoms = (1,)
    weight_names = ()

    split: ClassAxis
    """Items and classes."""

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        self.split = ClassAxis(math.prod(shape[:1]), math.prod(shape[1:]), 1)
        check_label_count(self, self.split, bottom)
        top[0].reshape(shape)
        if len(top) > 1:
            top[1].reshape(1)


class LabelSpecificAdd(LabelScores):
    """y = x, with the bias added to the scores of the labels in TRAIN; dx = dy.

    A bias added to the score of the label, where that is above -bias, in TRAIN.

        y[i, j] = x[i, j] + bias for j = label_i and x[i, j] > -bias; else x[i, j]

    With bias_base the bias changes with the iteration t: base + (1 + gamma t)^power - 1, at least bias_min, at most bias_max.
    Source: happynear's label_specific_add.cpp (additive margins, Wang et al., 2018); its transform_test has no effect in TEST.

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


class LabelSpecificRescale(LabelScores):
    """Scores scaled by whether they are the label's, in TRAIN, and in TEST with rescale_test; else y = x.

    The scores of the labels times one number, those of the other classes times another.

        y[i, label_i] = w x + (1 - w with bias_fix), with for_ip only where x > 0        y[i, j] = negative_weight x

    w is positive_weight; with positive_weight_base, in TRAIN, base (1 + gamma t)^-power, at least positive_weight_min, at most
    positive_weight_max; t grows by 1 with each forward, before that. Source: happynear's label_specific_rescale.cpp.

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
