"""CTCLoss and CtcLoss: connectionist temporal classification, of two forks. The formula is in ctc.py.

    loss = the mean over the sequences of -log(the probability that the scores spell the sequence's labels)

They share the block ctc_loss_param, and a file because their names differ in case alone. Sources: ctc_loss_layer.cpp of
ChWick's Caffe, after TensorFlow's ctc_loss; that of crnn.caffe, around Baidu's warp-ctc.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from minicaffe.blob import Blob

from .ctc import Target, sequence_lengths, until_negative
from .sequence_loss import (
    SequenceLoss,
    blank_class,
    check_of_sequences,
    check_scores,
    check_through_time,
    read_labels,
)


class CTCLoss(SequenceLoss):
    """The mean of -log of the probability that scores through time spell their labels (ChWick's).

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
    """The mean of -log of the probability that scores through time spell their labels (warp-ctc's, of crnn.caffe).

    bottom: scores (T, N, C) before softmax; labels (N, L), with the blank as padding. The scores get a gradient. top: loss ().
    ctc_loss_param: alphabet_size C, time_step (how many steps count, at most T), blank_label (default 0).
    Raises LayerError for shapes that do not match, a label that is no class, labels longer than the time steps.
    """

    type = "CtcLoss"
    num_bottom = 2
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
