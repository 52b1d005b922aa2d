"""The labels of the most likely classes, and their accuracy."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layer import Layer
from minicaffe.layers.recurrent.ctc import (
    best_path,
    blank_class,
    check_of_sequences,
    check_scores,
    check_through_time,
    edit_distance,
    sequence_lengths,
    until_negative,
)

CHWICK, CAFFE_OCR = "ChWick", "caffe_ocr"
"""The variants of the layer."""


class CTCGreedyDecoder(Forked):
    """The best path of each sequence: the best class of each time step, repeats merged and blanks dropped. No gradient.

        repeats are merged, blanks dropped;  accuracy = 1 - mean over the sequences of (edit distance / the longer one's length)

    Source: ctc_decoder_layer.cpp of ChWick's Caffe, and of caffe_ocr as CC4.0 keeps it; Graves et al., Connectionist Temporal
    Classification (ICML 2006).

    bottom: scores (T, N, C); indicators (T, N), as LSTM's: a 0 after the first step ends the sequence; optionally the true
    labels (T, N), -1 after the last. top: labels (N, T, 1, 1), -1 after the last; the sum of the best scores, negated
    (N, 1, 1, 1); the accuracy (1, 1, 1, 1), which needs true labels and takes the second place if there are two tops.
    ctc_decoder_param: blank_index (default: the last class); ctc_merge_repeated: false keeps repeats.
    caffe_ocr's takes scores alone, for the labels; or scores and true labels (N, L), -1 after the last, in which blanks are
    dropped, for the accuracy and the fraction of sequences without an error (1, 2, 1, 1). Its default blank is 0.
    Raises LayerError for shapes and numbers of tops that do not match, a blank that is no class, and if it is unclear whether a
    second bottom holds indicators or labels.
    """

    type = "CTCGreedyDecoder"
    num_bottom = (1, 3)
    num_top = (1, 3)
    param_block = ("ctc_decoder_param",)
    weight_names = ()
    has_gradient = False
    kinds = (
        Kind(CHWICK, ("ctc",), "indicators (T, N)"),
        Kind(CAFFE_OCR, ("caffeocr",), "scores alone, or labels (N, L)"),
    )

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        check_scores(self, bottom[0])
        self.kind = self._kind(bottom)
        if self.kind == CAFFE_OCR and len(top) > 1:
            raise self.error(f"caffe_ocr's takes 1 top, got {len(top)}", "top")

    def _kind(self, bottom: Sequence[Blob]) -> str:
        """Return CHWICK or CAFFE_OCR. Raises LayerError if the kind is ambiguous."""
        if len(bottom) == 1:
            return self.choose(CAFFE_OCR, "it has one bottom")
        through_time, of_sequences = (bottom[0].shape[:2] == bottom[1].shape[:2], bottom[0].shape[1] == bottom[1].shape[0])
        if len(bottom) == 3 or not of_sequences:
            return self.choose(CHWICK, "it has three bottoms" if len(bottom) == 3 else "the second bottom is not (N, L)")
        if not through_time:
            return self.choose(CAFFE_OCR, "the second bottom is (N, L)")
        found = self.choose_by_fork()
        if not found:
            raise self.ambiguous_kind_error("there are as many time steps as sequences; ")
        return found

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        check_scores(self, bottom[0])
        steps, sequences, classes = bottom[0].shape[:3]
        param, ocr = self.param.ctc_decoder_param, self.kind == CAFFE_OCR
        given = 0 if ocr and not param.HasField("blank_index") else param.blank_index
        self.blank_is_last = given < 0
        self.blank = classes - 1 if self.blank_is_last else blank_class(self, classes, given, "ctc_decoder_param.blank_index")
        true = len(bottom) == (2 if ocr else 3)
        if ocr and true:
            check_of_sequences(self, bottom, 1)
        elif not ocr:
            check_through_time(self, bottom, 1, "the indicators")
            if true:
                check_through_time(self, bottom, 2, "the labels")
            if len(top) > len(bottom):
                raise self.error("a third top, the accuracy, needs the true labels as a third bottom", "top[2]")
        self.labels_top = None if ocr and true else 0
        self.accuracy_top = len(top) - 1 if true and (ocr or len(top) > 1) else None
        self.score_top = 1 if len(top) > 1 and self.accuracy_top != 1 else None
        if self.labels_top is not None:
            top[self.labels_top].reshape(sequences, steps, 1, 1)
        if self.score_top is not None:
            top[self.score_top].reshape(sequences, 1, 1, 1)
        if self.accuracy_top is not None:
            top[self.accuracy_top].reshape(1, 1 + ocr, 1, 1)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        scores, merge = bottom[0].data.reshape(bottom[0].shape[:3]), self.param.ctc_decoder_param.ctc_merge_repeated
        classes, best = scores.argmax(axis=2), scores.max(axis=2)
        lengths = [len(classes)] * classes.shape[1] if self.kind == CAFFE_OCR else sequence_lengths(bottom[1])
        spelt = [best_path(classes[:length, n], self.blank, merge) for n, length in enumerate(lengths)]
        if self.labels_top is not None:
            top[self.labels_top].data[...] = -1
            for n, labels in enumerate(spelt):
                top[self.labels_top].data[n, : len(labels), 0, 0] = labels
        if self.score_top is not None:
            for n, length in enumerate(lengths):
                top[self.score_top].data[n] = -best[:length, n].sum()
        if self.accuracy_top is not None:
            true, accuracy = self._true(bottom), top[self.accuracy_top].data.reshape(-1)
            errors = [edit_distance(a, b) / max(1, len(a), len(b)) for a, b in zip(spelt, true, strict=True)]
            accuracy[0] = 1 - sum(errors) / max(1, len(errors))
            # caffe_ocr's rate. Unlike accuracy[0], it counts an empty result for an empty truth as an error.
            accuracy[1:] = sum(a == b != [] for a, b in zip(spelt, true, strict=True)) / max(1, len(errors))

    def _true(self, bottom: Sequence[Blob]) -> list[list[int]]:
        """Return each sequence's true labels. Raises LayerError for a label that is not finite."""
        for value in bottom[-1].data[~np.isfinite(bottom[-1].data)][:1]:
            raise self.error(f"{value:g} is no label", f"bottom[{len(bottom) - 1}]")
        if self.kind == CAFFE_OCR:
            rows = np.floor(bottom[1].data.reshape(bottom[1].shape[0], math.prod(bottom[1].shape[1:])) + 0.5)
            return [[int(c) for c in until_negative(row) if c != self.blank] for row in rows]
        return [[int(c) for c in until_negative(column)] for column in bottom[2].data.reshape(bottom[0].shape[:2]).T]


class LabelsequenceAccuracy(Layer):
    """The share of sequences whose best path equals their labels. No gradient.

    Repeats are merged, blanks dropped. Source: crnn.caffe's labelsequence_accuracy_layer.cpp.

    bottom: scores (N, T, C); labels (N, L), where the blank is padding. top: accuracy (), 0 without a sequence. The blank is
    labelsequence_accuracy_param.blank_label (default 0).
    Raises LayerError for shapes that do not match, and a blank that is no class.
    """

    type = "LabelsequenceAccuracy"
    num_bottom = 2
    num_top = 1
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
