"""FocalLoss: the cross entropy of softmax, in which easy examples count less. Two forks' layers have this name.

    loss = -sum_i alpha (1 - p_i)^gamma log(max(p_i, FLT_MIN)) / divisor      p_i: the probability of label_i; makefile/frcnn's,
                                                                              py-RFCN-priv's and DeepDetect's; alpha is 0.25
    loss = -sum_i (alpha - p_i)^gamma log(max(p_i, FLT_MIN)) / divisor        happynear's; alpha is 1
    loss = -sum_i (alpha + p_i)^gamma log(max(p_i, FLT_MIN)) / divisor        happynear's ONEADDP

The forks' schemas also have LINEAR, -log(sigmoid(gamma x + beta)) / gamma, but their code computes the above for it.
Source: Lin et al., Focal Loss for Dense Object Detection (2017); focal_loss_layer.cpp of the forks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layer import Costs, data_bytes
from minicaffe.layers.loss.loss import check_label_count, class_axis, ignored_label, read_labels, read_normalization
from minicaffe.proto import caffe_pb2

from .loss import Loss
from .softmax import softmax
from .softmax_with_loss import FLT_MIN

Param = caffe_pb2.FocalLossParameter
TIMES, HAPPYNEAR = "makefile/frcnn", "happynear"


class FocalLoss(Forked, Loss):
    """Cross entropy times a power of the probability's error, of scores along an axis and whole labels.

    bottom: x (N, C, ...) scores, labels (N, ...) one for each position. top: loss (); optionally the probabilities, of
    x's shape, whose diff is not used. The axis is focal_loss_param.axis if given, else softmax_param.axis (default 1).
    loss_param: ignore_label, normalization (default VALID), normalize, pre_fixed_normalizer.
    The kind is happynear's for type ONEADDP, DeepDetect's for axis or engine, else the net's fork's. With alpha 1 both give the
    same number. LINEAR computes what ORIGIN does, as in the forks, with a warning.
    Raises LayerError if the kind is unknown; for gamma < 0, alpha <= 0, happynear's alpha < 1 with a gamma that is not whole;
    for another number of labels, and a label that is not whole or not a class.
    """

    type = "FocalLoss"
    num_top = (1, 2)
    index_bottoms = (1,)
    param_block = ("focal_loss_param", "softmax_param", "loss_param")
    kinds = (
        Kind(TIMES, ("mkfrcnn", "soeaver", "beniz"), "alpha (1 - p)^gamma, alpha 0.25 by default"),
        Kind(HAPPYNEAR, ("happynear",), "(alpha - p)^gamma, alpha 1 by default"),
    )

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.focal_loss_param
        kind = self._kind_given() or self.choose_by_fork()
        if not kind and param.alpha == 1:
            kind = TIMES  # with alpha 1, alpha (1 - p)^gamma equals (alpha - p)^gamma
        if not kind:
            raise self.ambiguous_kind_error()
        self.gamma, self.alpha = param.gamma, 1.0 if kind == HAPPYNEAR and not param.HasField("alpha") else param.alpha
        if self.gamma < 0:
            raise self.error(f"gamma must be >= 0, got {self.gamma:g}", "focal_loss_param.gamma")
        if self.alpha <= 0:
            raise self.error(f"alpha must be > 0, got {self.alpha:g}", "focal_loss_param.alpha")
        self.sign = 1 if param.type == Param.ONEADDP else -1
        self.scale, self.start = (self.alpha, 1.0) if kind == TIMES else (1.0, self.alpha)
        if self.sign < 0 and self.start < 1 and self.gamma != int(self.gamma):
            text = (
                f"alpha must be >= 1 where gamma is not whole, got {self.alpha:g}: (alpha - p)^{self.gamma:g} may have no value"
            )
            raise self.error(text, "focal_loss_param.alpha")
        if param.type == Param.LINEAR:
            self.warn("type LINEAR computes what ORIGIN does, as in the forks' code", "focal_loss_param.type")
        self.normalization = read_normalization(self.param.loss_param)
        self.ignore = ignored_label(self.param.loss_param)
        self.prob = Blob((), self.dtype)

    def _kind_given(self) -> str:
        """Return the kind that the prototxt names, or ""."""
        param = self.param.focal_loss_param
        own = next((name for name in ("axis", "engine") if param.HasField(name)), "")
        if param.type == Param.ONEADDP:
            if own:
                text = f"type ONEADDP is happynear's and {own} DeepDetect's; leave out one"
                raise self.error(text, f"focal_loss_param.{own}")
            return self.choose(HAPPYNEAR, "type ONEADDP")
        return self.choose(TIMES, f"focal_loss_param has {own}") if own else ""

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        param = self.param.focal_loss_param
        if param.HasField("axis"):
            self.split = class_axis(self, bottom[0], param.axis, "focal_loss_param.axis")
        else:
            self.split = class_axis(self, bottom[0], self.param.softmax_param.axis, "softmax_param.axis")
        check_label_count(self, self.split, bottom)
        self.prob.reshape(self.split)
        for blob in top[1:]:
            blob.reshape(bottom[0].shape)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(saved=data_bytes([self.prob]))

    def _divisor(self, kept: NDArray[np.bool_]) -> float:
        return self.normalization.divisor(images=self.split.outer, positions=kept.size, valid=int(kept.sum()))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        prob = softmax(bottom[0].data.reshape(self.split), out=self.prob.data)
        labels, kept = read_labels(self, bottom[1].data, self.split, self.ignore)
        p = true_probability(prob, labels)[kept]
        losses = -(self.scale * (self.start + self.sign * p) ** self.gamma * np.log(np.maximum(p, FLT_MIN)))
        top[0].data[...] = losses.sum() / self._divisor(kept)
        for blob in top[1:]:
            blob.data[...] = prob.reshape(blob.shape)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        prob = self.prob.data
        labels, kept = read_labels(self, bottom[1].data, self.split, self.ignore)
        slope = self.scale * focal_slope(true_probability(prob, labels), self.start, self.sign, self.gamma)
        slope *= kept * (float(top[0].diff.item()) / self._divisor(kept))
        dx = -slope[:, None] * prob
        at = labels[:, None]
        np.put_along_axis(dx, at, np.take_along_axis(dx, at, axis=1) + slope[:, None], axis=1)
        bottom[0].diff[...] = dx.reshape(bottom[0].shape)


def true_probability(prob: Array, labels: NDArray[np.intp]) -> Array:
    """Return the probabilities (outer, inner), in float64, of prob (outer, C, inner) at labels (outer, inner)."""
    return np.take_along_axis(prob, labels[:, None], axis=1)[:, 0].astype(np.float64)


def focal_slope(p: Array, start: float, sign: int, gamma: float) -> Array:
    """Return p times the derivative of -(start + sign p)^gamma log p, for float64 p of any shape."""
    base = start + sign * p
    power = np.zeros_like(p)
    if gamma:  # at base 0 and gamma < 1 the power is infinite and log p is 0; the limit of their product is 0
        np.power(base, gamma - 1, out=power, where=(base != 0) | (gamma >= 1))
    return -(sign * gamma * power * p * np.log(np.maximum(p, FLT_MIN)) + base**gamma)
