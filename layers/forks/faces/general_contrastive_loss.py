"""GeneralContrastiveLoss: distances to the own class pulled below a margin, those to the others pushed above another.

    loss = sum(|p| own + |q| other) / N        p, q = positive_weight, negative_weight
    own[i] = min(max(x[i, label_i] - positive_margin, 0), positive_outlier_thresh)
    other[i, j] = max(negative_margin - x[i, j], 0), j not label_i; with exp_negative_weight exp(-x[i, j]) below the margin

    positive_first       other[i] = 0 where x[i, label_i] > positive_upper_bound
    max_negative_only    of other[i] the largest alone; of class 0 that must also be larger than its own term, or none counts
    max_positive_only    of own the smallest alone, in spite of its name
    add_intra_mae        negative_margin grows by a moving mean of own, m = 0.99 m + 0.01 mean(own), at most max_negative_margin

Source: happynear's general_constrastive_loss_layer.cpp (Wang et al., NormFace, arXiv:1704.06369), whose backward takes x below
positive_outlier_thresh for x - positive_margin below it. This one is the exact gradient, at fixed choices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import Costs
from minicaffe.layers.loss.loss import ClassAxis, Loss, check_label_count, read_labels


class GeneralContrastiveLoss(Loss):
    """The contrastive loss of distances to all classes.

    bottom: x (N, ...) distances, of which every value after the first axis is a class; labels (N,). top: loss (); the means of
    own, of max(negative_margin - x, 0) over the other classes, and with add_intra_mae m (2,) or (3,), without gradients. square
    has no effect.
    Raises LayerError for normalize_negative (another gradient, not built in), another number of labels, and a label that is not
    whole or not a class.
    """

    type = "GeneralContrastiveLoss"
    num_bottom = 2
    num_top = (1, 2)
    index_bottoms = (1,)
    param_block = ("general_contrastive_loss_param",)
    copies = (3, 1)

    def connect(self, bottom: Sequence[Blob], top: Sequence[Blob], is_set_up: Callable[[], None] | None = None) -> None:
        if len(bottom) == 3:
            theirs = "happynear's takes the values from bottom 2 and gives bottom 0 their gradient"
            raise self.error(f"takes 2 bottoms, got 3; {theirs}, which is not built in", "bottom")
        super().connect(bottom, top, is_set_up)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        if self.param.general_contrastive_loss_param.HasField("normalize_negative"):
            wrong = "normalize_negative changes the gradient alone, which is not built in"
            raise self.error(wrong, "general_contrastive_loss_param.normalize_negative")
        self.mean_own = 0.0
        self.in_sequence = self.param.general_contrastive_loss_param.add_intra_mae

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        shape = bottom[0].shape
        self.split = ClassAxis(math.prod(shape[:1]), math.prod(shape[1:]), 1)
        check_label_count(self, self.split, bottom)
        if len(top) > 1:
            top[1].reshape(2 + self.param.general_contrastive_loss_param.add_intra_mae)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(saved=bottom[0].count * self.dtype.itemsize)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, x = self.param.general_contrastive_loss_param, bottom[0].data.reshape(self.split[:2])
        labels, _ = read_labels(self, bottom[1].data, self.split, None)
        items, rows = max(1, len(x)), np.arange(len(x))
        margin = param.negative_margin + param.add_intra_mae * self.mean_own
        own = (x[rows, labels[:, 0]] - param.positive_margin).clip(0, param.positive_outlier_thresh)
        others = np.arange(x.shape[1]) != labels
        below = others & (x < margin)
        terms = np.where(below, np.exp(-x) if param.exp_negative_weight else margin - x, 0) * param.negative_weight
        means = [own.sum() / items, np.where(below, margin - x, 0).sum() / items / max(1, x.shape[1] - 1)]
        terms[rows, labels[:, 0]] = own * param.positive_weight
        kept = self._kept(x[rows, labels[:, 0]], labels[:, 0], terms, others)
        top[0].data[...] = np.abs(terms[kept]).sum(dtype=np.float64) / items
        self.mean_own = min(0.99 * self.mean_own + 0.01 * float(means[0]), param.max_negative_margin)
        if len(top) > 1:
            top[1].data[...] = [*means, self.mean_own][: len(top[1].data)]
        slope = np.where(below & kept, -np.exp(-x) if param.exp_negative_weight else -1, 0) * abs(param.negative_weight)
        inside = (own > 0) & (own < param.positive_outlier_thresh) & kept[rows, labels[:, 0]]
        slope[rows, labels[:, 0]] = inside * abs(param.positive_weight)
        self.slope = slope.astype(self.dtype) / items

    def _kept(self, own: Array, labels: Array, terms: Array, others: Array) -> Array:
        """Which of the terms (N, C) count; own (N,) are the distances to the labels' classes."""
        param, rows = self.param.general_contrastive_loss_param, np.arange(len(terms))
        kept = np.ones(terms.shape, bool)
        if param.max_positive_only and len(terms):
            kept &= others | (rows == terms[rows, labels].argmin())[:, None]
        if param.max_negative_only and len(terms):
            first = np.arange(terms.shape[1]) == 0  # where the search begins, also where that is the own class
            largest = np.where(others | first, terms, -np.inf).argmax(axis=1)
            kept &= ~others | (np.arange(terms.shape[1]) == largest[:, None])
        if param.positive_first:
            kept &= ~others | (own <= param.positive_upper_bound)[:, None]
        return kept

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = (self.slope * self.dtype.type(top[0].diff.item())).reshape(bottom[0].shape)
