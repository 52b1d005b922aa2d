"""Connectionist temporal classification as in three forks. The formula is in ctc.py."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from minicaffe.blob import Array, Blob
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layers.recurrent.ctc import (
    SequenceLoss,
    Target,
    blank_class,
    check_of_sequences,
    check_scores,
    check_through_time,
    read_labels,
    sequence_lengths,
    until_negative,
)


class CTCLoss(SequenceLoss):
    """-log of the probability that scores over time spell their labels, averaged over sequences (ChWick's).

    Source: ctc_loss_layer.cpp of ChWick's Caffe, after TensorFlow's ctc_loss.

    bottom: scores (T, N, C) before softmax; indicators (T, N), as LSTM's: a 0 after the first step ends the sequence; labels
    (T, N), from the first step on, -1 after the last. The scores get a gradient. top: loss (), without a default loss_weight.
    ctc_loss_param: blank_index (default: the last class); preprocess_collapse_repeated merges equal neighbouring labels;
    ctc_merge_repeated: false takes each class for a label; output_delay: how many first steps are left out;
    loss_calculation_t has no effect. A sequence of one step without labels counts as 0.
    Raises LayerError for shapes that do not match, an output_delay below 0, a label that is no class or is the blank, labels
    longer than their sequence.
    """

    type = "CTCLoss"
    num_bottom = 3
    is_loss = False
    index_bottoms = (1, 2)
    param_block = ("ctc_loss_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        delay = self.param.ctc_loss_param.output_delay
        if delay < 0:
            raise self.error(f"output_delay must be >= 0, got {delay}", "ctc_loss_param.output_delay")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        check_scores(self, bottom[0])
        check_through_time(self, bottom, 1, "the indicators")
        check_through_time(self, bottom, 2, "the labels")
        given = self.param.ctc_loss_param.blank_index
        classes = bottom[0].shape[2]
        self.blank = blank_class(self, classes, given, "ctc_loss_param.blank_index") if given >= 0 else classes - 1

    def targets(self, bottom: Sequence[Blob]) -> list[Target | None]:
        return [self._target(n, length, bottom) for n, length in enumerate(sequence_lengths(bottom[1]))]

    def _target(self, n: int, length: int, bottom: Sequence[Blob]) -> Target | None:
        param, column = self.param.ctc_loss_param, bottom[2].data.reshape(bottom[2].shape[:2])[:, n]
        labels = read_labels(self, until_negative(column), n, bottom[0].shape[2], 2)
        if self.blank in labels:
            raise self.error(f"sequence {n} has the blank, {self.blank}, as a label; end its labels with -1", "bottom[2]")
        if not labels:
            if length > 1:
                raise self.error(f"sequence {n} of {length} time steps has no labels", "bottom[2]")
            return None
        if param.preprocess_collapse_repeated:
            labels = [label for label, _ in groupby(labels)]
        return self.check_fits(n, Target(labels, param.output_delay, length, param.ctc_merge_repeated), 2)


class CtcLoss(SequenceLoss):
    """-log of the probability that scores over time spell their labels, averaged over sequences (crnn.caffe's warp-ctc).

    Source: ctc_loss_layer.cpp of crnn.caffe, around Baidu's warp-ctc.

    bottom: scores (T, N, C) before softmax; labels (N, L), with the blank as padding. The scores get a gradient. top: loss ().
    ctc_loss_param: alphabet_size C, time_step (how many steps count, at most T), blank_label (default 0).
    Raises LayerError for shapes that do not match, a label that is no class, labels longer than the time steps.
    """

    type = "CtcLoss"
    index_bottoms = (1,)
    param_block = ("ctc_loss_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        check_scores(self, bottom[0])
        param, (steps, _, classes) = self.param.ctc_loss_param, bottom[0].shape[:3]
        if param.alphabet_size != classes:
            wrong = f"alphabet_size must be the scores' {classes} classes, got {param.alphabet_size}"
            raise self.error(wrong, "ctc_loss_param.alphabet_size")
        if not 0 < param.time_step <= steps:
            wrong = f"time_step must be 1 to {steps}, the scores' first axis, got {param.time_step}"
            raise self.error(wrong, "ctc_loss_param.time_step")
        check_of_sequences(self, bottom, 1)
        self.blank = blank_class(self, classes, param.blank_label, "ctc_loss_param.blank_label")

    def targets(self, bottom: Sequence[Blob]) -> list[Target | None]:
        return self.targets_of_rows(bottom, self.param.ctc_loss_param.time_step)


CAFFE_OCR, CHWICK = "caffe_ocr", "ChWick"
"""The variants of the layer."""


class WarpCTCLoss(Forked, SequenceLoss):
    """-log of the probability that scores over time spell their labels, averaged over sequences (warp-ctc's).

    The formula is in ctc.py. Source: warp_ctc_loss_layer.cpp of caffe_ocr as caffe_ocr_for_linux keeps it, after ChWick's,
    which counts labels and blanks otherwise.

    bottom: scores (T, N, C) before softmax, which get a gradient, and one of
    - labels (N, L), in which blanks are padding; every time step counts
    - indicators (T, N), as LSTM's: a 0 after the first step ends the sequence; labels (L, N), -1 after the last, counted from 0
      without the blank where that is 0; a sequence of one step without labels counts as 0
    - how many time steps and how many labels each sequence has (N) and (N); labels (L, N)
    top: loss (). ctc_loss_param.blank_index: default 0. With three or four bottoms the net's fork must be caffe_ocr.
    Raises LayerError for shapes that do not match, a label that is no class or the blank, labels longer than their sequence.
    """

    type = "WarpCTCLoss"
    num_bottom = (2, 4)
    index_bottoms = (1, 2, 3)
    param_block = ("ctc_loss_param",)
    kinds = (Kind(CAFFE_OCR, ("caffeocr",), "two bottoms"), Kind(CHWICK, ("ctc",), "not built in"))

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        if len(bottom) == 2:
            self.choose(CAFFE_OCR, "it has two bottoms")
        elif not (whose := self.choose_by_fork()):
            raise self.ambiguous_kind_error()
        elif whose == CHWICK:
            raise self.error("ChWick's WarpCTCLoss is not built in", "type")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        check_scores(self, bottom[0])
        _, sequences, classes = bottom[0].shape[:3]
        param = self.param.ctc_loss_param
        given = param.blank_index if param.HasField("blank_index") else 0
        self.blank = blank_class(self, classes, given, "ctc_loss_param.blank_index")
        if len(bottom) == 2:
            check_of_sequences(self, bottom, 1)
            return
        if len(bottom) == 3:
            check_through_time(self, bottom, 1, "the indicators")
        for i in (1, 2) if len(bottom) == 4 else ():
            if bottom[i].count != sequences:
                raise self.error(f"a length for each of {sequences} sequences is needed, got {bottom[i].count}", f"bottom[{i}]")
        labels, last = bottom[-1].shape, len(bottom) - 1
        if labels[1:2] != (sequences,) or any(length != 1 for length in labels[2:]):
            raise self.error(f"the labels must be (L, {sequences}), got shape {labels}", f"bottom[{last}]")

    def targets(self, bottom: Sequence[Blob]) -> list[Target | None]:
        steps, sequences = bottom[0].shape[:2]
        if len(bottom) == 2:
            return self.targets_of_rows(bottom, steps)
        columns = bottom[-1].data.reshape(-1, sequences).T
        if len(bottom) == 3:
            lengths, rows = sequence_lengths(bottom[1]), [until_negative(column[:steps]) for column in columns]
        else:
            lengths, counts = self._lengths(bottom[1], steps, 1), self._lengths(bottom[2], columns.shape[1], 2)
            rows = [column[:count] for column, count in zip(columns, counts, strict=True)]
        return [self._target(n, row, length, bottom) for n, (row, length) in enumerate(zip(rows, lengths, strict=True))]

    def _lengths(self, bottom: Blob, most: int, i: int) -> list[int]:
        """Return the lengths in bottom i. Raises LayerError."""
        values = bottom.data.reshape(-1)
        for value in values:
            if not 0 <= value <= most or value != int(value):
                raise self.error(f"a length must be 0 to {most}, got {value:g}", f"bottom[{i}]")
        return [int(value) for value in values]

    def _target(self, n: int, row: Array, steps: int, bottom: Sequence[Blob]) -> Target | None:
        """Return sequence n's target for its first `steps` steps. Raises LayerError."""
        # with 3 bottoms, labels are counted without the blank
        last, offset = len(bottom) - 1, int(len(bottom) == 3 and self.blank == 0)
        labels = [label + offset for label in read_labels(self, row, n, bottom[0].shape[2] - offset, last)]
        if self.blank in labels:
            raise self.error(f"sequence {n} has the blank, {self.blank}, as a label", f"bottom[{last}]")
        if len(bottom) == 3 and not labels:
            if steps > 1:
                raise self.error(f"sequence {n} of {steps} time steps has no labels", f"bottom[{last}]")
            return None
        return self.check_fits(n, Target(labels, 0, steps), last)
