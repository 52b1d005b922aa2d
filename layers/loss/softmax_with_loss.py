"""SoftmaxWithLoss: softmax, then the mean negative log probability of the true classes.

    loss = sum_i -log(max(p_i[label_i], FLT_MIN)) / divisor        dx_i = (p_i - onehot(label_i)) / divisor

With SegNet's class weights each term i is multiplied by that of label_i.
Source: Caffe's softmax_loss_layer.cpp, whose gradient does not see the floor FLT_MIN, and caffe-segnet's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.device import current
from minicaffe.cuda.launches import launch_loss, launch_softmax
from minicaffe.layer import Costs, data_bytes
from minicaffe.layers.loss.loss import (
    check_label_count,
    class_axis,
    ignored_label,
    read_labels,
    read_normalization,
    watch_labels,
)

from .loss import Loss
from .softmax import softmax

FLT_MIN = 2.0**-126
"""The smallest normal float32, the lower limit of a probability."""


class SoftmaxWithLoss(Loss):
    """Cross entropy of scores along softmax_param.axis (default 1) against whole labels.

    bottom: x (N, C, ...) scores, labels (N, ...) one for each position. top: loss (); optionally the probabilities, of x's
    shape, and (Cascade R-CNN's) each position's loss, of the labels' shape; their diffs are not used. loss_param: ignore_label,
    normalization (default VALID), normalize, pre_fixed_normalizer; with weight_by_label_freqs one class_weighting for each
    class (SegNet's; the divisor leaves them out). No positions, or none but ignored ones: loss 0.
    Raises LayerError for another number of labels or class weights, and for a label that is not whole or not a class.
    """

    type = "SoftmaxWithLoss"
    num_top = (1, 3)
    index_bottoms: tuple[int, ...] = (1,)
    param_block: ClassVar[tuple[str, ...]] = ("softmax_param", "loss_param")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.normalization = read_normalization(self.param.loss_param)
        self.ignore = ignored_label(self.param.loss_param)
        self.prob = Blob((), self.dtype)
        self.divisor = Blob((), np.float64)  # forward's divisor, which backward reads

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        self.split = class_axis(self, bottom[0], self.param.softmax_param.axis, "softmax_param.axis")
        check_label_count(self, self.split, bottom)
        self.class_weights = self._class_weights()
        self.prob.reshape(self.split)
        for blob, like in zip(top[1:], bottom, strict=False):
            blob.reshape(like.shape)

    def _class_weights(self) -> Array | None:
        """Return SegNet's class weights (C,), or None without weight_by_label_freqs."""
        given, classes = self.param.loss_param.class_weighting, self.split.classes
        if not self.param.loss_param.weight_by_label_freqs:
            return None
        if len(given) != classes:
            message = f"weight_by_label_freqs needs one class_weighting for each of {classes} classes, got {len(given)}"
            raise self.error(message, "loss_param.class_weighting")
        return np.array(given, self.dtype)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(saved=data_bytes([self.prob]))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        prob = softmax(bottom[0].data.reshape(self.split), out=self.prob.data)
        labels, kept = read_labels(self, bottom[1].data, self.split, self.ignore)
        losses = cross_entropy(prob, labels, kept)
        if self.class_weights is not None:
            losses *= self.class_weights[labels]
        self.divisor.data[...] = self.divisor_for(kept)

        top[0].data[...] = losses.sum(dtype=np.float64) / self.divisor.read_data()
        for blob, values in zip(top[1:], (prob, losses), strict=False):
            blob.data[...] = values.reshape(blob.shape)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.class_weights is not None:  # the kernels do not support class weights
            super().forward_gpu(bottom, top)
            return
        outer, classes, inner = self.split
        prob, losses = self.prob.device_data("write"), top[2].device_data("write") if len(top) > 2 else 0
        launch_softmax(self.dtype, *self.split, bottom[0].device_data("read"), prob)
        labels = watch_labels(self, bottom[1], self.split, self.ignore)
        given = (outer * inner, classes, inner, prob, *labels, losses)
        fixed = self.normalization.fixed_divisor(outer, outer * inner)
        launch_loss(
            "softmax_with_loss.cross_entropy", self.dtype, outer * inner, *given, loss=top[0], fixed=fixed, divisor=self.divisor
        )
        for blob in top[1:2]:
            current().copy(blob.device_data("write"), prob, blob.count * self.dtype.itemsize)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        labels, kept = read_labels(self, bottom[1].data, self.split, self.ignore)
        dx = cross_entropy_backward(self.prob.data, labels, kept)
        if self.class_weights is not None:
            dx *= self.class_weights[labels][:, None]
        dx *= float(top[0].diff.item()) / float(self.divisor.read_data())
        bottom[0].diff[...] = dx.reshape(bottom[0].shape)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        if self.class_weights is not None:
            super().backward_gpu(top, propagate_down, bottom)
            return
        count, (_, classes, inner) = bottom[0].count, self.split
        labels = (bottom[1].device_data("read"), self.ignore is not None, self.ignore or 0)
        scale = (top[0].device_diff("read"), self.divisor.device_data("read"))
        given = (count, classes, inner, self.prob.device_data("read"), *labels, *scale, bottom[0].device_diff("write"))
        self.launch("softmax_with_loss.cross_entropy_backward", count, *given)

    def divisor_for(self, kept: NDArray[np.bool_]) -> float:
        """Return the divisor of the sum over kept (outer, inner)."""
        return self.normalization.divisor(images=self.split.outer, positions=kept.size, valid=int(kept.sum()))


def cross_entropy(prob: Array, labels: NDArray[np.intp], kept: NDArray[np.bool_]) -> Array:
    """Return the losses (outer, inner) of prob (outer, C, inner) at labels (outer, inner).

    They are 0 where kept (outer, inner) is False.
    """
    true = np.take_along_axis(prob, labels[:, None], axis=1)[:, 0]
    losses: Array = -np.log(np.maximum(true, prob.dtype.type(FLT_MIN)))  # Caffe's max(p, FLT_MIN) keeps the loss finite
    losses[~kept] = 0
    return losses


def cross_entropy_backward(prob: Array, labels: NDArray[np.intp], kept: NDArray[np.bool_]) -> Array:
    """Return the gradient of cross_entropy's sum in the scores (outer, C, inner). Arguments as in cross_entropy."""
    dx: Array = prob.copy()
    at = labels[:, None]
    np.put_along_axis(dx, at, np.take_along_axis(dx, at, axis=1) - 1, axis=1)
    dx *= kept[:, None]
    return dx
