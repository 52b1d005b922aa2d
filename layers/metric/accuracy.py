"""Accuracy, EltwiseAccuracy and SegAccuracy: how often, or how well, classes are predicted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.device import current
from minicaffe.cuda.launches import lanes_of, launch_loss
from minicaffe.layer import Layer
from minicaffe.layers.loss.loss import check_label_count, check_positions, class_axis, ignored_label, read_labels, watch_labels


class Accuracy(Layer):
    """The fraction of positions whose true class is among the top_k highest scores.

    accuracy_param.top_k is 1 by default. With min_is_better the lowest scores count instead.

        right_i = (how many classes score at least as high as the true one, itself included) <= top_k
        accuracy = sum_i right_i / (positions that are not ignored)

    Source: Caffe's accuracy_layer.cpp; ties count against the true class. With happynear's min_is_better (NormFace) the lowest
    scores are the best, and of equal ones that of the lowest class.

    bottom: x (N, C, ...) scores along accuracy_param.axis (default 1), labels, one for each
    position in order: (N, ...), of any shape.
    top: accuracy (), 0 when every position is ignored; optionally the accuracy of each class (C,), 0 for an absent class.
    No gradient.
    Raises LayerError for another number of labels, a label that is not whole or not a class, and top_k > C.
    """

    type = "Accuracy"
    num_bottom = 2
    num_top = (1, 2)
    param_block = ("accuracy_param",)
    weight_names = ()
    has_gradient = False

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._seen = Blob((), np.int32)  # on the GPU: the number of items of each class, and of correct ones

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.accuracy_param
        self.split = class_axis(self, bottom[0], param.axis, "accuracy_param.axis")
        check_positions(self, self.split, bottom)
        if param.top_k > self.split.classes:
            raise self.error(
                f"top_k must be at most the {self.split.classes} classes, got {param.top_k}", "accuracy_param.top_k"
            )
        top[0].reshape(())
        if len(top) > 1:
            top[1].reshape(self.split.classes)
            self._seen.reshape(2, self.split.classes)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        labels, kept = read_labels(self, bottom[1].data, self.split, ignored_label(self.param.accuracy_param))
        among = among_least if self.param.accuracy_param.min_is_better else among_top
        right = kept & among(bottom[0].data.reshape(self.split), labels, self.param.accuracy_param.top_k)
        top[0].data[...] = int(right.sum()) / max(1, int(kept.sum()))
        if len(top) > 1:
            seen, hits = (np.bincount(labels[which], minlength=self.split.classes) for which in (kept, right))
            top[1].data[...] = hits / np.maximum(1, seen)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.param.accuracy_param.min_is_better:
            super().forward_gpu(bottom, top)
            return
        (outer, classes, inner), seen = self.split, 0
        positions = outer * inner
        if len(top) > 1:
            seen = self._seen.device_data("write")
            current().zero(seen, 4 * self._seen.count)  # the kernel adds to int32 numbers
        lanes = lanes_of(inner)
        labels = watch_labels(self, bottom[1], self.split, ignored_label(self.param.accuracy_param))
        sizes = positions, classes, inner, lanes, self.param.accuracy_param.top_k
        given = (*sizes, bottom[0].device_data("read"), *labels, seen)
        launch_loss("accuracy.accuracy", self.dtype, positions * lanes, *given, loss=top[0], fixed=None)
        if len(top) > 1:
            self.launch("accuracy.accuracy_of_classes", classes, classes, seen, top[1].device_data("write"))


def among_top(x: Array, labels: NDArray[np.intp], top_k: int) -> NDArray[np.bool_]:
    """Return whether each of labels (outer, inner) is among the top_k highest scores of x (outer, C, inner)."""
    true = np.take_along_axis(x, labels[:, None], axis=1)
    # Caffe's rule: ties count against the true class, which is itself among the >=.
    return np.asarray((x >= true).sum(axis=1) <= top_k)


def among_least(x: Array, labels: NDArray[np.intp], top_k: int) -> NDArray[np.bool_]:
    """Return whether each of labels (outer, inner) is among the top_k lowest scores of x (outer, C, inner).

    Of equal scores the lowest class comes first.
    """
    true = np.take_along_axis(x, labels[:, None], axis=1)
    before = np.arange(x.shape[1])[:, None] < labels[:, None]
    return np.asarray(((x < true) | (x == true) & before).sum(axis=1) < top_k)


def among_highest(x: Array, labels: NDArray[np.intp], top_k: int) -> NDArray[np.bool_]:
    """Return whether each of labels (outer, ...) is among the top_k highest scores of x (outer, C, ...).

    Of equal scores the last class comes first.
    """
    true = np.take_along_axis(x, labels[:, None], axis=1)
    before = np.arange(x.shape[1]).reshape(-1, *[1] * (x.ndim - 2)) > labels[:, None]
    return np.asarray(((x > true) | (x == true) & before).sum(axis=1) < top_k)


class EltwiseAccuracy(Layer):
    """The fraction of pixels whose true class is among the eltwise_accuracy_param.top_k (default 1) highest scores.

        rank = how many classes score higher than the true one, and of those with an equal score how many come after it
        accuracy = how many pixels have rank < top_k / the pixels that are not ignored

    Source: HyeonwooNoh/caffe's eltwise_accuracy_layer.cpp. It differs from Accuracy in equal scores, of which the last
    class goes first, and in the shape of its top. Where every pixel is ignored it gives 0 like Accuracy; the fork divides by 0.

    ignore_label: pixels of this true class do not count.
    bottom: x (N, C, ...) scores, labels (N, 1, ...). top: (1, 1, 1, 1), 0 when every pixel is ignored. No gradient.
    Raises LayerError for other shapes, top_k > C, and a label that is not whole, or neither a class nor ignored.
    """

    type = "EltwiseAccuracy"
    num_bottom = 2
    num_top = 1
    param_block = ("eltwise_accuracy_param",)
    weight_names = ()
    has_gradient = False

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.split = class_axis(self, bottom[0], 1, "bottom[0]")
        check_label_count(self, self.split, bottom)
        classes, top_k = self.split.classes, self.param.eltwise_accuracy_param.top_k
        if top_k > classes:
            raise self.error(f"top_k must be at most the {classes} classes, got {top_k}", "eltwise_accuracy_param.top_k")
        top[0].reshape(1, 1, 1, 1)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.eltwise_accuracy_param
        labels, kept = read_labels(self, bottom[1].data, self.split, ignored_label(param))
        right = kept & among_highest(bottom[0].data.reshape(self.split), labels, param.top_k)
        top[0].data[...] = int(right.sum()) / max(1, int(kept.sum()))


class SegAccuracy(Layer):
    """The pixel accuracy, mean recall and mean IoU of scores: all three, whatever seg_accuracy_param.metric is.

        m[t, p] = how many pixels of the true class t have their highest score at class p (of equal ones the last)
        accuracy = the sum of m[c, c] / the sum of m; recall_c = m[c, c] / row c, the mean over the classes that are there;
        IoU_c = m[c, c] / (row c + column c - m[c, c]), 1 for a class that is neither there nor found, the mean over all classes

    Source: hszhao/PSPNet's seg_accuracy_layer.cpp and confusion_matrix.cpp.

    ignore_label: pixels of these true classes do not count. reset: false: all pixels since the net was made count.
    bottom: x (N, C, H, W) scores, labels (N, 1, H, W). top: (1, 1, 1, 3). No gradient.
    Raises LayerError for other shapes, and for a label that is not whole, or neither a class nor ignored.
    """

    type = "SegAccuracy"
    num_bottom = 2
    num_top = 1
    param_block = ("seg_accuracy_param",)
    weight_names = ()
    has_gradient = False

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        classes = class_axis(self, bottom[0], 1, "bottom[0]").classes
        self._confusion = np.zeros((classes, classes), np.int64)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.split = class_axis(self, bottom[0], 1, "bottom[0]")
        check_label_count(self, self.split, bottom)
        if self.split.classes != len(self._confusion):
            raise self.error(f"it counts {len(self._confusion)} classes, the bottom has {self.split.classes}", "bottom[0]")
        top[0].reshape(1, 1, 1, 3)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, classes = self.param.seg_accuracy_param, self.split.classes
        kept = ~np.isin(bottom[1].data, param.ignore_label)
        true, _ = read_labels(self, np.where(kept, bottom[1].data, 0), self.split, None)
        found = classes - 1 - bottom[0].data.reshape(self.split)[:, ::-1].argmax(axis=1)
        pairs = (true * classes + found)[kept.reshape(true.shape)]
        if param.reset:
            self._confusion[...] = 0
        self._confusion += np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
        top[0].data[...] = measures(self._confusion)


def measures(confusion: np.ndarray) -> tuple[float, float, float]:
    """Return the pixel accuracy, mean recall and mean IoU of a confusion matrix (C, C) of true and predicted classes."""
    right, true, found = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    union, there = true + found - right, true > 0
    recall = right[there] / true[there]
    iou = np.where(union > 0, right / np.maximum(union, 1), 1)
    return right.sum() / max(1, confusion.sum()), recall.mean() if there.any() else 0.0, iou.mean()
