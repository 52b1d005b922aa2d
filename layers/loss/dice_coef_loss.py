"""DiceCoefLoss: one minus the overlap of a segmentation with its labels.

    loss = 1 - mean over images of (2 sum w x t + s) / (sum w x^2 + sum w t^2 + s),  t = 1 for the label's class, else 0

over classes and pixels, s = 1 / N. With weights w, s = 0 and w[n, c] = (1 + the pixels of class c)^-2 (INVERSE_VOLUME), ^-1
(EQUALIZE_CLASSES) or ^-3 (EXTRA_SMALL_VOLUMES). Source: Milletari, Navab, Ahmadi, 2016; DeepDetect's dice_coef_loss_layer.cpp,
whose backward is not the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layers.loss.loss import ClassAxis, check_label_count, read_labels
from minicaffe.proto import caffe_pb2

from .loss import Loss

Param = caffe_pb2.DiceCoefLossParameter
POWERS = {Param.INVERSE_VOLUME: -2, Param.EQUALIZE_CLASSES: -1, Param.EXTRA_SMALL_VOLUMES: -3}
WEIGHTED = (Param.MULTICLASS_WEIGHTED, Param.MULTICLASS_WEIGHTED_BATCH)


class DiceCoefLoss(Loss):
    """The Dice loss of scores from 0 to 1.

    bottom: x (N, C, ...) scores, labels (N, 1, ...), whole numbers from 0. top: loss (). dice_coef_loss_param: generalization
    (NONE; MULTICLASS knows ignore_label, a class that is left out; MULTICLASS_WEIGHTED, with the weights above, the ignored
    class's near 0; MULTICLASS_WEIGHTED_BATCH, with those of the batch's mean number of pixels), weight_mode.
    Raises LayerError for another number of labels, a label that is not whole or not a class, an ignore_label that is neither
    -1 nor a class (the original writes past its weights), and for MULTICLASS_WEIGHTED_ALL, weights and contour_shape, which
    are not built.
    """

    type = "DiceCoefLoss"
    index_bottoms = (1,)
    param_block = ("dice_coef_loss_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.dice_coef_loss_param
        for name, given in (
            ("generalization", param.generalization == Param.MULTICLASS_WEIGHTED_ALL),
            ("weights", bool(param.weights)),
            ("contour_shape", param.contour_shape != Param.NO),
        ):
            if given:
                raise self.error(f"this {name} is not built", f"dice_coef_loss_param.{name}")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        shape = bottom[0].shape
        if len(shape) < 2:
            raise self.error(f"x must be (N, C, ...), got shape {shape}", "bottom[0]")
        self.split = ClassAxis(shape[0], shape[1], math.prod(shape[2:]))
        check_label_count(self, self.split, bottom)
        param, classes = self.param.dice_coef_loss_param, self.split.classes
        self.ignored = param.ignore_label if param.generalization != Param.NONE else -1
        if not -1 <= self.ignored < classes:
            raise self.error(
                f"ignore_label must be -1, for none, or one of the {classes} classes from 0, got {self.ignored}",
                "dice_coef_loss_param.ignore_label",
            )

    def _terms(self, bottom: Sequence[Blob]) -> tuple[Array, Array, Array, Array]:
        """Return x, t (N, C, P), their weights (N, C, 1), and s (N,)."""
        param, x = self.param.dice_coef_loss_param, bottom[0].data.reshape(self.split)
        labels, _ = read_labels(self, bottom[1].data, self.split, None)
        t = (labels[:, None] == np.arange(self.split.classes)[:, None]).astype(self.dtype)
        weights = np.ones((*self.split[:2], 1), np.float64)
        if param.generalization in WEIGHTED:
            volumes = 1 + t.sum(axis=2, dtype=np.float64, keepdims=True)
            if self.ignored != -1:
                volumes[:, self.ignored] += 1e6 * self.split.inner - 0.0
            if param.generalization == Param.MULTICLASS_WEIGHTED_BATCH:
                volumes[...] = volumes.mean(axis=0)
            weights = volumes ** POWERS[param.weight_mode]
        elif self.ignored != -1 and self.split.classes > 1:
            weights[:, self.ignored] = 0
        smooth = 0.0 if param.generalization in WEIGHTED else 1 / max(1, self.split.outer)
        return x, t, weights, np.full(self.split.outer, smooth)

    def _fractions(self, bottom: Sequence[Blob]) -> tuple[Array, Array]:
        """Return the numerators and denominators (N,)."""
        x, t, weights, smooth = self._terms(bottom)
        over = np.einsum("ncp,ncp,ncq->n", x, t, weights, dtype=np.float64)
        squares = np.einsum("ncp,ncp,ncq->n", x, x, weights, dtype=np.float64) + np.einsum(
            "ncp,ncq->n", t, weights, dtype=np.float64
        )
        return 2 * over + smooth, squares + smooth

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        above, below = self._fractions(bottom)
        top[0].data[...] = 1 - np.divide(above, below).sum() / max(1, len(above))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        x, t, weights, _ = self._terms(bottom)
        above, below = (part[:, None, None] for part in self._fractions(bottom))
        scale = 2 * float(top[0].diff.item()) / max(1, self.split.outer)
        bottom[0].diff[...] = (weights * scale * (x * above / below - t) / below).reshape(bottom[0].shape)
