"""The base of the losses of connectionist temporal classification, and how they read their bottoms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer
from minicaffe.layers.loss.loss import Loss

from .ctc import Target, ctc


class SequenceLoss(Loss):
    """The mean over the sequences of -log of the probability that scores (T, N, C) spell each one's labels.

    A layer of the family writes `targets` and sets `blank` in reshape. top: loss ().
    """

    copies = (3, 3)
    blank: int

    def targets(self, bottom: Sequence[Blob]) -> list[Target | None]:
        """What each sequence should spell; None for one that counts as 0. Raises LayerError."""
        raise NotImplementedError

    def kept_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        return 8 * bottom[0].count

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, losses = bottom[0].data.reshape(bottom[0].shape[:3]), [0.0]
        self.gradient = np.zeros(x.shape)
        for n, target in enumerate(self.targets(bottom)):
            if target:
                loss, self.gradient[:, n] = ctc(x[:, n], target, self.blank)
                losses.append(loss)
        top[0].data[...] = sum(losses) / max(1, bottom[0].shape[1])

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            scale = float(top[0].diff.item()) / max(1, bottom[0].shape[1])
            bottom[0].diff.reshape(self.gradient.shape)[...] = self.gradient * scale

    def targets_of_rows(self, bottom: Sequence[Blob], steps: int) -> list[Target | None]:
        """The labels (N, L) of bottom 1 without blanks, in so many time steps of each sequence."""
        found = list[Target | None]()
        for n, row in enumerate(bottom[1].data):
            labels = [label for label in read_labels(self, row.reshape(-1), n, bottom[0].shape[2], 1) if label != self.blank]
            found.append(self.check_fits(n, Target(labels, 0, steps), 1))
        return found

    def check_fits(self, n: int, target: Target, bottom: int) -> Target:
        """Labels have time steps enough. Raises LayerError."""
        steps, needed = target.last - target.first, target.least_steps
        if not 0 < steps >= needed:
            blanks = needed - len(target.labels)
            what = f"{len(target.labels)} labels" + (f" and {blanks} blanks between equal ones" if blanks else "")
            raise self.error(f"sequence {n}: {what} do not fit its {max(0, steps)} time steps", f"bottom[{bottom}]")
        return target


def check_scores(layer: Layer, scores: Blob) -> None:
    """Scores are (T, N, C). Raises LayerError."""
    if len(scores.shape) not in (3, 4) or scores.shape[3:] not in ((), (1,)) or not all(scores.shape[::2]):
        raise layer.error(f"the scores must be (T, N, C), got shape {scores.shape}", "bottom[0]")


def check_through_time(layer: Layer, bottom: Sequence[Blob], i: int, what: str) -> None:
    """bottom[i] has a number for each time step of each sequence. Raises LayerError."""
    steps, shape = bottom[0].shape[:2], bottom[i].shape
    if shape[:2] != steps or any(length != 1 for length in shape[2:]):
        raise layer.error(f"{what} must be (T, N) as the scores, {steps}, got shape {shape}", f"bottom[{i}]")


def check_of_sequences(layer: Layer, bottom: Sequence[Blob], i: int) -> None:
    """bottom[i] has a row of labels (N, L) for each sequence of the scores. Raises LayerError."""
    sequences, shape = bottom[0].shape[1], bottom[i].shape
    if shape[:1] != (sequences,):
        raise layer.error(f"the labels must be ({sequences}, L), got shape {shape}", f"bottom[{i}]")


def blank_class(layer: Layer, classes: int, blank: int, field: str) -> int:
    """blank, which must be a class. Raises LayerError."""
    if not 0 <= blank < classes:
        raise layer.error(f"the blank must be one of the {classes} classes, 0 to {classes - 1}, got {blank}", field)
    return blank


def read_labels(layer: Layer, labels: Array, n: int, classes: int, bottom: int) -> list[int]:
    """The labels of sequence n (L,) as whole numbers. Raises LayerError for one that is not a class."""
    for label in labels:
        if not 0 <= label < classes or label != int(label):
            raise layer.error(f"sequence {n}: label {label:g} is not one of the {classes} classes", f"bottom[{bottom}]")
    return [int(label) for label in labels]
