"""EuclideanLoss and ContrastiveLoss: losses of distances."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.launches import launch_loss
from minicaffe.layers.loss.loss import (
    DifferenceLoss,
    check_first_axis,
    check_same_shape,
    check_same_size,
    device_diffs,
    put_opposite,
)


class EuclideanLoss(DifferenceLoss):
    """Half the mean squared distance: loss = sum((x - target)^2) / (2 N).

        loss = sum((x - target)^2) / (2 N)        dx = (x - target) / N = -dtarget

    Source: Caffe's euclidean_loss_layer.cpp.

    bottom: x (N, ...), target with as many values and the same first axis. top: loss (). Both bottoms get gradients.
    Raises LayerError for a target of another size.
    """

    type = "EuclideanLoss"
    copies = (1, 2)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        check_same_size(self, bottom, 1)
        self.difference.reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        d = self.difference.data
        np.subtract(bottom[0].data, bottom[1].data.reshape(d.shape), out=d)
        top[0].data[...] = np.square(d).sum(dtype=np.float64) / (2 * max(1, bottom[0].shape[0]))

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count, fixed = bottom[0].count, 2.0 * max(1, bottom[0].shape[0])
        x, target = (blob.device_data("read") for blob in bottom)
        given = (count, x, target, self.difference.device_data("write"))
        launch_loss("euclidean_loss.euclidean_loss", self.dtype, count, *given, loss=top[0], fixed=fixed)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        scale = float(top[0].diff.item()) / max(1, bottom[0].shape[0])
        put_opposite(self.difference.data * scale, propagate_down, bottom)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        count, images = bottom[0].count, max(1.0, bottom[0].shape[0])
        given = (count, self.difference.device_data("read"), top[0].device_diff("read"), images)
        self.launch("euclidean_loss.euclidean_loss_backward", count, *given, *device_diffs(bottom[:2], propagate_down))


class ContrastiveLoss(DifferenceLoss):
    """Contrastive loss of pairs of features, with contrastive_loss_param.margin (default 1) and legacy_version.

    It pulls pairs of the same kind together, and pushes others apart up to a margin.

        d_i = |a_i - b_i|        loss = sum_i (y_i d_i^2 + (1 - y_i) max(margin - d_i, 0)^2) / (2 N)
        legacy_version: max(margin - d_i^2, 0) in place of max(margin - d_i, 0)^2

    Source: Hadsell, Chopra, LeCun, CVPR 2006; Caffe's contrastive_loss_layer.cpp, whose gradient divides by d + 1e-4; for a
    fourth bottom happynear's.

    bottom: a (N, C), b (N, C), y (N,): 0 for pairs of different kinds, anything from 1 up for the same kind. top: loss ().
    With a fourth bottom (happynear's) the last two are the labels of a and b, which are equal for the same kind.
    a and b get gradients. Trailing axes of 1 count as absent.
    Raises LayerError for other shapes.
    """

    type = "ContrastiveLoss"
    num_bottom = (3, 4)
    index_bottoms = (2, 3)
    param_block = ("contrastive_loss_param",)
    copies = (1, 2)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        check_same_shape(self, bottom, 1)
        if bottom[0].height * bottom[0].width != 1:
            raise self.error(f"takes features of shape (N, C), got {bottom[0].shape}", "bottom[0]")
        for i, blob in enumerate(bottom[2:], 2):
            check_first_axis(self, bottom, i)
            if blob.count != bottom[0].num:
                raise self.error(f"takes one y for each of {bottom[0].num} pairs, got shape {blob.shape}", f"bottom[{i}]")
        self.difference.reshape(bottom[0].num, bottom[0].channels)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        d = self.difference.data
        np.subtract(bottom[0].data.reshape(d.shape), bottom[1].data.reshape(d.shape), out=d)
        param = self.param.contrastive_loss_param
        losses = contrastive(d, same_kind(bottom[2:]), param.margin, param.legacy_version)
        top[0].data[...] = losses.sum(dtype=np.float64) / (2 * max(1, len(d)))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        d, param = self.difference.data, self.param.contrastive_loss_param
        da = contrastive_backward(d, same_kind(bottom[2:]), param.margin, param.legacy_version)
        da *= float(top[0].diff.item()) / max(1, len(d))
        put_opposite(da.reshape(bottom[0].shape), propagate_down, bottom)


def same_kind(given: Sequence[Blob]) -> NDArray[np.bool_]:
    """Return which pairs (N,) are of the same kind.

    They are if y is not 0, or if their two labels are equal; all are cut to whole numbers.
    """
    first, *second = (np.trunc(blob.data.reshape(-1)) for blob in given)  # Caffe's static_cast<int>
    return np.asarray(first == second[0] if second else first != 0)


def contrastive(d: Array, same: NDArray[np.bool_], margin: float, legacy: bool = False) -> Array:
    """Return twice the losses (N,) of differences d (N, C). same: (N,)."""
    squared = np.square(d).sum(axis=1)
    gap = np.maximum(margin - squared, 0) if legacy else np.square(np.maximum(margin - np.sqrt(squared), 0))
    return np.asarray(np.where(same, squared, gap))


def contrastive_backward(d: Array, same: NDArray[np.bool_], margin: float, legacy: bool = False) -> Array:
    """Return the gradient (N, C) in d of half the sum of contrastive's losses."""
    squared = np.square(d).sum(axis=1)
    distance = np.sqrt(squared)
    # 1e-4 is Caffe's; it keeps the quotient finite for two equal features.
    apart = -(squared < margin).astype(d.dtype) if legacy else -np.maximum(margin - distance, 0) / (distance + 1e-4)
    return np.asarray(d * np.where(same, 1, apart)[:, None])
