"""SigmoidCrossEntropyLoss: cross entropy of independent binary scores against targets from 0 to 1.

    loss = sum(max(x, 0) - x t + log(1 + exp(-|x|))) / divisor        dx = (sigmoid(x) - t) / divisor

With a third bottom w each term is multiplied by its w, and the divisor is sum(w). HED's layer has the same fields, and
multiplies each term by its image's share of targets of the other class; the divisor is the number of images. RCF's is HED's
with 1.1 times the weight of zeros.
Source: Caffe's sigmoid_cross_entropy_loss_layer.cpp; for the third bottom MNC's; s9xie/hed's; yun-liu/RCF's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.launches import launch_loss
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layers.loss.loss import BATCH_SIZE, check_same_size, ignored_label, read_normalization
from minicaffe.layers.neuron.functions import sigmoid

from .loss import Loss

BVLC, HED, RCF = "BVLC", "HED", "RCF"

ZEROS_WEIGHTS = {HED: 1.0, RCF: 1.1}
"""The factors of the weights of zeros."""


class SigmoidCrossEntropyLoss(Forked, Loss):
    """loss = -sum(t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x))) / divisor.

    bottom: x (N, ...) scores, targets with as many values and the same first axis; optionally weights, as many (MNC's),
    whose sum then is the divisor, and a sum of 0 gives a loss of 0. top: loss ().
    loss_param: ignore_label (compared with the target cut to a whole number), normalization (default BATCH_SIZE here),
    normalize, pre_fixed_normalizer. Only x gets a gradient.
    In a net of HED's a target of 1 weighs its image's share of zeros, one of 0 the share of ones, any other nothing; the
    divisor is N, and loss_param has no effect. In a net of RCF's, targets of 0 weigh 1.1 times that.
    Raises LayerError for targets or weights of another size.
    """

    type = "SigmoidCrossEntropyLoss"
    num_bottom = (2, 3)
    index_bottoms: tuple[int, ...] = (1,)
    param_block = ("loss_param",)
    copies = (3.25, 2.25)
    kinds = (
        Kind(BVLC, ("bvlc",), "all targets weigh the same"),
        Kind(HED, ("hed",), "the rarer target weighs more"),
        Kind(RCF, ("rcf",), "as HED's, zeros 1.1 times as much"),
    )

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.zeros_weight = ZEROS_WEIGHTS.get(self.choose_by_fork(), 0.0) if len(bottom) == 2 else 0.0
        """The factor of the weights of zeros if targets are weighted as in HED, else 0."""
        self.normalization = read_normalization(self.param.loss_param, default=BATCH_SIZE)
        self.ignore = ignored_label(self.param.loss_param)
        self.index_bottoms = tuple(range(1, len(bottom)))
        self.divisor = Blob((), np.float64)  # forward's divisor, which backward reads

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        for i in self.index_bottoms:
            check_same_size(self, bottom, i)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        target, weights = self._target(bottom)
        losses = sigmoid_cross_entropy(bottom[0].data, target) * weights
        total = float(weights.sum(dtype=np.float64))
        if self.zeros_weight:
            total = len(weights)
        elif len(bottom) == 2:
            total = self.normalization.divisor(images=len(weights), positions=weights.size, valid=int(total))
        self.divisor.data[...] = total if total > 0 else np.inf
        top[0].data[...] = losses.sum(dtype=np.float64) / self.divisor.read_data()

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom) == 3 or self.zeros_weight:  # the kernels do not support weights
            super().forward_gpu(bottom, top)
            return
        count = bottom[0].count
        fixed = self.normalization.fixed_divisor(bottom[0].shape[0], count)
        kernel = "sigmoid_cross_entropy_loss.sigmoid_cross_entropy"
        launch_loss(kernel, self.dtype, count, *self._given(bottom), loss=top[0], fixed=fixed, divisor=self.divisor)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            target, weights = self._target(bottom)
            scale = float(top[0].diff.item()) / float(self.divisor.read_data())
            bottom[0].diff[...] = (sigmoid(bottom[0].data) - target) * weights * scale

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if len(bottom) == 3 or self.zeros_weight:
            super().backward_gpu(top, propagate_down, bottom)
        elif propagate_down[0]:
            scale = (top[0].device_diff("read"), self.divisor.device_data("read"))
            given = (*self._given(bottom), *scale, bottom[0].device_diff("write"))
            self.launch("sigmoid_cross_entropy_loss.sigmoid_cross_entropy_backward", bottom[0].count, *given)

    def _given(self, bottom: Sequence[Blob]) -> tuple[int, ...]:
        """Return the kernels' first arguments."""
        x, target = (blob.device_data("read") for blob in bottom)
        return bottom[0].count, x, target, self.ignore is not None, self.ignore or 0

    def _target(self, bottom: Sequence[Blob]) -> tuple[Array, Array | NDArray[np.bool_]]:
        """Return the targets, and each target's weight or whether it counts, in x's shape."""
        target = bottom[1].data.reshape(bottom[0].shape)
        if self.zeros_weight:
            return target, balance(target, self.zeros_weight)
        # As Caffe's static_cast<int>.
        kept = np.ones(target.shape, bool) if self.ignore is None else np.trunc(target) != self.ignore
        return target, bottom[2].data.reshape(target.shape) * kept if len(bottom) == 3 else kept


def balance(target: Array, zeros_weight: float) -> Array:
    """Return HED's weight of each target (N, ...): the image's share of zeros for a 1, of ones for a 0, else 0.

    zeros_weight: a factor for the zeros.
    """
    rows = target.reshape(len(target), math.prod(target.shape[1:]))
    classes = [rows == 0, rows == 1]
    zeros, ones = (found.sum(axis=1, keepdims=True) for found in classes)
    weights = (classes[1] * zeros + classes[0] * (ones * zeros_weight)) / np.maximum(zeros + ones, 1)
    return np.asarray(weights.reshape(target.shape).astype(target.dtype))


def sigmoid_cross_entropy(x: Array, target: Array) -> Array:
    """Return -(t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x))) for each element, of x's shape."""
    # Rewritten so that exp sees no positive number.
    return np.asarray(np.maximum(x, 0) - x * target + np.log1p(np.exp(-np.abs(x))))
