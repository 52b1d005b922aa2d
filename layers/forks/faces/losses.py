"""Losses of features: an anchor should be near its class's centre or a sample of its class, and far from others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.layer import Costs
from minicaffe.layers.loss.loss import ClassAxis, ImageLoss, Loss, check_label_count, check_same_shape, read_labels


class CenterLoss(Loss):
    """Half the mean squared distance of features to the centre of their class, and centres that follow.

    As in the originals, the loss counts only with an explicit loss_weight.

        loss = sum_i |x_i - c[label_i]|^2 / (2 N), or with L1 sum_i |x_i - c[label_i]|_1 / N

    The centres' diff is no gradient, on purpose: the sum over their features of (c - x), or its sign, over 1 + their number,
    whatever the loss weight is. Source: Wen et al., 2016; caffe-face's and happynear's center_loss_layer.cpp.

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
        """Return x - c[label] (N, K) and the labels (N,)."""
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


class GeneralContrastiveLoss(ImageLoss):
    """The contrastive loss of distances to all classes.

    Distances to the own class pulled below a margin, those to the others pushed above another.

        loss = sum(|p| own + |q| other) / N        p, q = positive_weight, negative_weight
        own[i] = min(max(x[i, label_i] - positive_margin, 0), positive_outlier_thresh)
        other[i, j] = max(negative_margin - x[i, j], 0), j not label_i; with exp_negative_weight exp(-x[i, j]) below the margin

        positive_first       other[i] = 0 where x[i, label_i] > positive_upper_bound
        max_negative_only    of other[i] the largest alone; class 0's must also exceed its own term, or none counts
        max_positive_only    of own the smallest alone, in spite of its name
        add_intra_mae        negative_margin grows by a moving mean of own, m = 0.99 m + 0.01 mean(own),
                             at most max_negative_margin

    Source: happynear's general_constrastive_loss_layer.cpp (Wang et al., NormFace, arXiv:1704.06369), whose backward takes x
    below positive_outlier_thresh for x - positive_margin below it. This one is the exact gradient, at fixed choices.

    bottom: x (N, ...) distances, of which every value after the first axis is a class; labels (N,). top: loss (); the means of
    own, of max(negative_margin - x, 0) over the other classes, and with add_intra_mae m (2,) or (3,), without gradients. square
    has no effect.
    Raises LayerError for normalize_negative (another gradient, not built in), another number of labels, and a label that is not
    whole or not a class.
    """

    type = "GeneralContrastiveLoss"
    num_top = (1, 2)
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
        self.stateful = self.param.general_contrastive_loss_param.add_intra_mae

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
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
        """Return which of the terms (N, C) count; own (N,) are the distances to the labels' classes."""
        param, rows = self.param.general_contrastive_loss_param, np.arange(len(terms))
        kept = np.ones(terms.shape, bool)
        if param.max_positive_only and len(terms):
            kept &= others | (rows == terms[rows, labels].argmin())[:, None]
        if param.max_negative_only and len(terms):
            first = np.arange(terms.shape[1]) == 0  # the search begins there, even at the own class
            largest = np.where(others | first, terms, -np.inf).argmax(axis=1)
            kept &= ~others | (np.arange(terms.shape[1]) == largest[:, None])
        if param.positive_first:
            kept &= ~others | (own <= param.positive_upper_bound)[:, None]
        return kept

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = (self.slope * self.dtype.type(top[0].diff.item())).reshape(bottom[0].shape)


class TripletLoss(Loss):
    """Triplet loss with triplet_loss_param.margin (default 1).

    An anchor should be nearer to its like than to another, by a margin.

        loss = sum_i max(0, margin + |a_i - p_i|^2 - |a_i - n_i|^2) / (2 N)

    Source: Schroff, Kalenichenko, Philbin, 2015; happynear's triplet_loss_layer.cpp.

    bottom: a (N, ...) anchors, p of the same kind, n of another, all of one shape. top: loss (). All three get gradients.
    Raises LayerError for other shapes.
    """

    type = "TripletLoss"
    num_bottom = 3
    param_block = ("triplet_loss_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        for i in (1, 2):
            check_same_shape(self, bottom, i)

    def _losses(self, bottom: Sequence[Blob]) -> tuple[Array, Array, Array]:
        """Return twice the losses (N,), and a - p and a - n (N, C)."""
        shape = bottom[0].shape
        a, p, n = (blob.data.reshape(math.prod(shape[:1]), math.prod(shape[1:])) for blob in bottom)
        near, far = a - p, a - n
        gap = np.square(near).sum(axis=1) - np.square(far).sum(axis=1)
        return np.maximum(gap + self.dtype.type(self.param.triplet_loss_param.margin), 0), near, far

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        losses = self._losses(bottom)[0]
        top[0].data[...] = losses.sum(dtype=np.float64) / (2 * max(1, len(losses)))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        losses, near, far = self._losses(bottom)
        scale = (losses > 0)[:, None] * self.dtype.type(float(top[0].diff.item()) / max(1, len(losses)))
        for blob, diff, wanted in zip(bottom, (near - far, -near, far), propagate_down):
            if wanted:
                blob.diff[...] = (diff * scale).reshape(blob.shape)


class GeneralTripletLoss(ImageLoss):
    """Triplet loss of distances to the classes' centres.

    The distance to the own class should be below those to the others, by a margin.

        loss = sum over i, j != label_i of negative_weight max(0, d[i, label_i] + margin - d[i, j]) / N

    Source: happynear's general_triplet_loss_layer.cpp, whose backward is not the gradient: it gives the own distance
    positive_weight, however many others are too near.

    bottom: d (N, C) distances; labels (N,). top: loss (); optionally the mean distance to the own class, and to the others
    (2,), which has no gradient. general_triplet_loss_param: margin, negative_weight; hardest_only: of each image the largest
    term alone; positive_first: no term of an image whose own distance is above positive_upper_bound. add_center_loss and
    positive_weight, which change the original's backward alone, have no effect.
    Raises LayerError for another number of labels, a label that is not whole or not a class, and fewer than two classes.
    """

    type = "GeneralTripletLoss"
    num_top = (1, 2)
    param_block = ("general_triplet_loss_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        if self.split.classes < 2:
            raise self.error(f"d needs at least two classes, got shape {bottom[0].shape}", "bottom[0]")
        if len(top) > 1:
            top[1].reshape(2)

    def _terms(self, bottom: Sequence[Blob]) -> tuple[Array, NDArray[np.intp]]:
        """Return the terms (N, C), 0 for the own class, and the labels (N, 1)."""
        param, d = self.param.general_triplet_loss_param, bottom[0].data.reshape(self.split[:2])
        labels, _ = read_labels(self, bottom[1].data, self.split, None)
        own = np.take_along_axis(d, labels, axis=1)
        terms = np.maximum(own + self.dtype.type(param.margin) - d, 0) * self.dtype.type(param.negative_weight)
        np.put_along_axis(terms, labels, 0, axis=1)
        if param.hardest_only and len(terms):
            hardest = terms.argmax(axis=1)[:, None]
            terms = np.where(np.arange(terms.shape[1]) == hardest, terms, 0)
        if param.positive_first:
            terms[own[:, 0] > param.positive_upper_bound] = 0
        return terms, labels

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        terms, labels = self._terms(bottom)
        images = max(1, len(terms))
        top[0].data[...] = terms.sum(dtype=np.float64) / images
        if len(top) > 1:
            d = bottom[0].data.reshape(terms.shape)
            own = np.take_along_axis(d, labels, axis=1).sum(dtype=np.float64)
            top[1].data[...] = own / images, (d.sum(dtype=np.float64) - own) / images / (self.split.classes - 1)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        terms, labels = self._terms(bottom)
        weight = self.param.general_triplet_loss_param.negative_weight
        scale = float(top[0].diff.item()) * weight / max(1, len(terms))
        dd = np.where(terms != 0, self.dtype.type(-scale), self.dtype.type(0))
        np.put_along_axis(dd, labels, -dd.sum(axis=1, keepdims=True), axis=1)
        bottom[0].diff[...] = dd.reshape(bottom[0].shape)
