"""CTCGreedyDecoder: the labels that the likeliest class of each time step spells.

    repeats are merged, blanks dropped;  accuracy = 1 - mean over the sequences of (edit distance / the longer one's length)

Source: ctc_decoder_layer.cpp of ChWick's Caffe; Graves et al., Connectionist Temporal Classification (ICML 2006).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from minicaffe.blob import Blob
from minicaffe.layer import Layer

from .losses.ctc import best_path, edit_distance, sequence_lengths, until_negative
from .losses.sequence_loss import blank_class, check_scores, check_through_time


class CTCGreedyDecoder(Layer):
    """The best path of each sequence: the best class of each time step, repeats merged and blanks dropped. No gradient.

    bottom: scores (T, N, C); indicators (T, N), as LSTM's: a 0 after the first step ends the sequence; optionally the true
    labels (T, N), -1 after the last. top: labels (N, T, 1, 1), -1 after the last; the sum of the best scores, negated
    (N, 1, 1, 1); the accuracy (1, 1, 1, 1), which needs true labels and takes the second place if there are two tops.
    ctc_decoder_param: blank_index (default: the last class); ctc_merge_repeated: false keeps repeats.
    Raises LayerError for shapes and numbers of tops that do not match, and a blank that is no class.
    """

    type = "CTCGreedyDecoder"
    num_bottom = (2, 3)
    fork_bottoms: ClassVar = {1: "senlinuc's caffe_ocr decodes scores alone"}
    num_top = (1, 3)
    index_bottoms = (0, 1, 2)
    param_block = ("ctc_decoder_param",)
    weight_names = ()
    has_gradient = False

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        check_scores(self, bottom[0])
        check_through_time(self, bottom, 1, "the indicators")
        if len(bottom) == 3:
            check_through_time(self, bottom, 2, "the labels")
        if len(top) > len(bottom):
            raise self.error("a third top, the accuracy, needs the true labels as a third bottom", "top[2]")
        steps, sequences, classes = bottom[0].shape[:3]
        self.accuracy_top = len(top) - 1 if len(bottom) == 3 and len(top) > 1 else None
        self.score_top = 1 if len(top) > 1 and self.accuracy_top != 1 else None
        given = self.param.ctc_decoder_param.blank_index
        self.blank = blank_class(self, classes, given, "ctc_decoder_param.blank_index") if given >= 0 else classes - 1
        top[0].reshape(sequences, steps, 1, 1)
        if self.score_top:
            top[self.score_top].reshape(sequences, 1, 1, 1)
        if self.accuracy_top:
            top[self.accuracy_top].reshape(1, 1, 1, 1)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        scores, merge = bottom[0].data.reshape(bottom[0].shape[:3]), self.param.ctc_decoder_param.ctc_merge_repeated
        lengths, classes, best = sequence_lengths(bottom[1]), scores.argmax(axis=2), scores.max(axis=2)
        spelt = [best_path(classes[:length, n], self.blank, merge) for n, length in enumerate(lengths)]
        top[0].data[...] = -1
        for n, labels in enumerate(spelt):
            top[0].data[n, : len(labels), 0, 0] = labels
            if self.score_top:
                top[self.score_top].data[n] = -best[: lengths[n], n].sum()
        if self.accuracy_top:
            true = [[int(c) for c in until_negative(column)] for column in bottom[2].data.reshape(classes.shape).T]
            errors = [edit_distance(a, b) / max(1, len(a), len(b)) for a, b in zip(spelt, true, strict=True)]
            top[self.accuracy_top].data[...] = 1 - sum(errors) / max(1, len(errors))
