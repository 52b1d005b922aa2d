"""SegAccuracy: how well each pixel's class is found, as pixel accuracy, mean recall and mean intersection over union.

    m[t, p] = how many pixels of the true class t have their highest score at class p (of equal ones the last)
    accuracy = the sum of m[c, c] / the sum of m; recall_c = m[c, c] / row c, the mean over the classes that are there;
    IoU_c = m[c, c] / (row c + column c - m[c, c]), 1 for a class that is neither there nor found, the mean over all classes

Source: hszhao/PSPNet's seg_accuracy_layer.cpp and confusion_matrix.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layer import Layer
from minicaffe.layers.loss.loss import check_label_count, class_axis, read_labels


class SegAccuracy(Layer):
    """The pixel accuracy, the mean recall and the mean IoU of scores; all three, whatever seg_accuracy_param.metric says.

    ignore_label: pixels of these true classes do not count. reset: false: all pixels since the net was made count.
    bottom: x (N, C, H, W) scores, labels (N, 1, H, W). top: (1, 1, 1, 3). No gradient.
    Raises LayerError for other shapes, and for a label that is not whole, or neither a class nor ignored.
    """

    type = "SegAccuracy"
    num_bottom = 2
    num_top = 1
    index_bottoms = (0, 1)
    param_block = ("seg_accuracy_param",)
    weight_names = ()
    has_gradient = False
    copies = (1, 1)

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
    """Pixel accuracy, mean recall and mean IoU of a matrix (C, C) of true and found classes."""
    right, true, found = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    union, there = true + found - right, true > 0
    recall = right[there] / true[there]
    iou = np.where(union > 0, right / np.maximum(union, 1), 1)
    return right.sum() / max(1, confusion.sum()), recall.mean() if there.any() else 0.0, iou.mean()
