"""LabelScores: the frame of layers that change the scores of the labels: LabelSpecificAdd and LabelSpecificRescale."""

from __future__ import annotations

import math
from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.layer import Layer
from minicaffe.layers.loss.loss_bottoms import ClassAxis, check_label_count


class LabelScores(Layer):
    """bottom: x (N, ...) scores, of which every value after the first axis is a class; labels (N,). top: y (x's shape), may be
    in place; optionally the number that the layer changes scores by, (1,).

    Raises LayerError for another number of labels.
    """

    num_bottom = 2
    num_top = (1, 2)
    in_place = True
    index_bottoms = (1,)
    weight_names = ()

    split: ClassAxis
    """Items and classes."""

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        self.split = ClassAxis(math.prod(shape[:1]), math.prod(shape[1:]), 1)
        check_label_count(self, self.split, bottom)
        top[0].reshape(shape)
        if len(top) > 1:
            top[1].reshape(1)
