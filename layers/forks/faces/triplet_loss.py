"""An anchor should be nearer to its like than to another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.layers.loss.loss import ImageLoss, Loss, check_same_shape, read_labels


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
        """Twice the losses (N,), and a - p and a - n (N, C)."""
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
        """The terms (N, C), 0 for the own class, and the labels (N, 1)."""
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
