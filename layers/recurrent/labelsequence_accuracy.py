"""LabelsequenceAccuracy: how many sequences the likeliest class of each time step spells without an error.

Repeats are merged, blanks dropped. Source: crnn.caffe's labelsequence_accuracy_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.layer import Layer

from .ctc import best_path
from .sequence_loss import blank_class


class LabelsequenceAccuracy(Layer):
    """The share of the sequences whose best path is exactly their labels. No gradient.

    bottom: scores (N, T, C); labels (N, L), where the blank is padding. top: accuracy (), 0 without a sequence. The blank is
    labelsequence_accuracy_param.blank_label (default 0).
    Raises LayerError for shapes that do not match, and a blank that is no class.
    """

    type = "LabelsequenceAccuracy"
    num_bottom = 2
    num_top = 1
    index_bottoms = (0, 1)
    param_block = ("labelsequence_accuracy_param",)
    weight_names = ()
    has_gradient = False

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        scores, labels = bottom[0].shape, bottom[1].shape
        if len(scores) != 3 or not scores[2]:
            raise self.error(f"the scores must be (N, T, C), got shape {scores}", "bottom[0]")
        if labels[:1] != scores[:1]:
            raise self.error(f"the labels must be ({scores[0]}, L), got shape {labels}", "bottom[1]")
        param = self.param.labelsequence_accuracy_param
        self.blank = blank_class(self, scores[2], param.blank_label, "labelsequence_accuracy_param.blank_label")
        top[0].reshape(())

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        paths, sequences = bottom[0].data.argmax(axis=2), bottom[0].shape[0]
        true = bottom[1].data.reshape(sequences, -1 if sequences else 0)
        labels = [[c for c in row if c != self.blank] for row in true]
        right = sum(best_path(path, self.blank) == row for path, row in zip(paths, labels, strict=True))
        top[0].data[...] = right / max(1, sequences)
