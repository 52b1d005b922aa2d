"""EltwiseAccuracy: how often the true class of a pixel is among its top_k highest scores.

    rank = how many classes score higher than the true one, and of those with an equal score how many come after it
    accuracy = how many pixels have rank < top_k / the pixels that are not ignored

Source: HyeonwooNoh/caffe's eltwise_accuracy_layer.cpp. It differs from Accuracy in equal scores, of which the last
class goes first, and in the shape of its top. Where every pixel is ignored it gives 0 like Accuracy; the fork divides by 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.layer import Layer
from minicaffe.layers.loss.loss import check_label_count, class_axis, ignored_label, read_labels

from .accuracy import among_highest


class EltwiseAccuracy(Layer):
    """The fraction of pixels whose true class is among the eltwise_accuracy_param.top_k (default 1) highest scores.

    ignore_label: pixels of this true class do not count.
    bottom: x (N, C, ...) scores, labels (N, 1, ...). top: (1, 1, 1, 1), 0 when every pixel is ignored. No gradient.
    Raises LayerError for other shapes, top_k > C, and a label that is not whole, or neither a class nor ignored.
    """

    type = "EltwiseAccuracy"
    num_bottom = 2
    num_top = 1
    index_bottoms = (0, 1)
    param_block = ("eltwise_accuracy_param",)
    weight_names = ()
    has_gradient = False
    copies = (1, 1)

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
