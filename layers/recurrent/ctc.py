"""Connectionist temporal classification: the likelihood of a label sequence, summed over all its alignments in time.

A way is one class for each time step; it spells the labels after repeats are merged and blanks dropped. With y = softmax(x),
and l (U,) the labels with blanks around and between them, the sums over the beginnings and the ends of ways are

    alpha[t, u] = y[t, l[u]] (alpha[t-1, u] + alpha[t-1, u-1] + alpha[t-1, u-2])     u-2: to a label that differs from l[u-2]
    beta[t, u]  = the same backward in time, without y[t, l[u]]
    loss        = -log(alpha[T-1, U-1] + alpha[T-1, U-2])
    dx[t, c]    = y[t, c] - sum_{u: l[u] = c} alpha[t, u] beta[t, u] exp(loss)

all as float64 logarithms. Source: Graves et al., Connectionist Temporal Classification (ICML 2006).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import Costs, Layer
from minicaffe.layers.loss.loss import Loss


@dataclass(frozen=True)
class Target:
    """The labels of one sequence, for time steps first to last (excluded).

    merge: whether repeats are merged.
    """

    labels: Sequence[int]
    first: int
    last: int
    merge: bool = True

    @property
    def least_steps(self) -> int:
        """Return the least number of time steps: one for each label, and a blank between equal ones that would be merged."""
        return len(self.labels) + self.merge * sum(a == b for a, b in zip(self.labels, self.labels[1:]))


def ctc(x: Array, target: Target, blank: int) -> tuple[float, Array]:
    """Return the loss of one sequence's scores x (T, C), and its gradient (T, C) in float64.

    The labels must fit the time steps.
    """
    gradient = np.zeros(x.shape)
    scores = x[target.first : target.last].astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    y = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    spread = np.full(2 * len(target.labels) + 1, blank)
    spread[1::2] = target.labels
    emitted = y[:, spread]
    alpha = _beginnings(emitted, *_moves(spread, blank, target.merge))
    flipped = _beginnings(emitted[::-1, ::-1], *_moves(spread[::-1], blank, target.merge))[::-1, ::-1]
    ways = alpha + flipped - emitted  # beta is the flipped alpha without the step's own y
    loss = -float(np.logaddexp.reduce(alpha[-1, -2:]))
    shares = np.zeros_like(y)
    np.add.at(shares.T, spread, np.exp(np.where(np.isfinite(ways + loss), ways + loss, -np.inf)).T)
    gradient[target.first : target.last] = np.exp(y) - shares
    return loss, gradient


def _moves(spread: Array, blank: int, merge: bool) -> tuple[Array, Array]:
    """Return log(1) or log(0): whether each position may follow itself, and the position two before it."""
    label = spread != blank
    skips = label.copy()
    skips[:2] = False
    if merge:
        skips[2:] &= spread[2:] != spread[:-2]
    return _logarithm(~label | merge), _logarithm(skips)


def _logarithm(allowed: Array) -> Array:
    return np.where(allowed, 0.0, -np.inf)


def _beginnings(emitted: Array, stays: Array, skips: Array) -> Array:
    """Return alpha (T, U), from log y[t, l[u]] (T, U)."""
    alpha = np.full(emitted.shape, -np.inf)
    alpha[0, :2] = emitted[0, :2]
    for t in range(1, len(alpha)):
        before = alpha[t - 1]
        now = before + stays
        now[1:] = np.logaddexp(now[1:], before[:-1])
        now[2:] = np.logaddexp(now[2:], before[:-2] + skips[2:])
        alpha[t] = now + emitted[t]
    return alpha


def best_path(classes: Sequence[int], blank: int, merge: bool = True) -> list[int]:
    """Return the labels of a path, one class for each time step.

    Repeats are merged (unless merge is False) and blanks dropped.
    """
    runs: Iterator[int] = (c for c, _ in groupby(classes)) if merge else iter(classes)
    return [int(c) for c in runs if c != blank]


def sequence_lengths(indicators: Blob) -> list[int]:
    """Return each sequence's number of time steps.

    indicators: (T, N). A sequence ends before the next 0 after the first step.
    """
    ends = indicators.data.reshape(indicators.shape[:2])[1:] < 0.5
    return [int(end.argmax()) + 1 if end.any() else len(ends) + 1 for end in ends.T]


def until_negative(column: Array) -> Array:
    """Return the labels of a column padded with negative numbers."""
    return column[: int((column < 0).argmax())] if (column < 0).any() else column


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the least number of insertions, deletions and replacements that change a into b."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))
    return row[-1]


class SequenceLoss(Loss):
    """-log of the probability that scores (T, N, C) spell a sequence's labels, averaged over the sequences.

    Subclasses define `targets` and set `blank` in reshape. top: loss ().
    """

    copies = (3, 3)
    blank: int

    def targets(self, bottom: Sequence[Blob]) -> list[Target | None]:
        """Return each sequence's target; None for one that counts as 0. Raises LayerError."""
        raise NotImplementedError

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(saved=8 * bottom[0].count)

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
        """Return the targets from bottom 1's labels (N, L), without blanks, for `steps` time steps of each sequence."""
        found = list[Target | None]()
        for n, row in enumerate(bottom[1].data):
            labels = [label for label in read_labels(self, row.reshape(-1), n, bottom[0].shape[2], 1) if label != self.blank]
            found.append(self.check_fits(n, Target(labels, 0, steps), 1))
        return found

    def check_fits(self, n: int, target: Target, bottom: int) -> Target:
        """Return the target. Raises LayerError if its labels do not fit its time steps."""
        steps, needed = target.last - target.first, target.least_steps
        if not 0 < steps >= needed:
            blanks = needed - len(target.labels)
            what = f"{len(target.labels)} labels" + (f" and {blanks} blanks between equal ones" if blanks else "")
            raise self.error(f"sequence {n}: {what} do not fit its {max(0, steps)} time steps", f"bottom[{bottom}]")
        return target


def check_scores(layer: Layer, scores: Blob) -> None:
    """Raise LayerError unless the scores are (T, N, C)."""
    if len(scores.shape) not in (3, 4) or scores.shape[3:] not in ((), (1,)) or not all(scores.shape[::2]):
        raise layer.error(f"the scores must be (T, N, C), got shape {scores.shape}", "bottom[0]")


def check_through_time(layer: Layer, bottom: Sequence[Blob], i: int, what: str) -> None:
    """Raise LayerError unless bottom[i] has a number for each time step of each sequence."""
    steps, shape = bottom[0].shape[:2], bottom[i].shape
    if shape[:2] != steps or any(length != 1 for length in shape[2:]):
        raise layer.error(f"{what} must be (T, N) as the scores, {steps}, got shape {shape}", f"bottom[{i}]")


def check_of_sequences(layer: Layer, bottom: Sequence[Blob], i: int) -> None:
    """Raise LayerError unless bottom[i] has a row of labels (N, L) for each sequence of the scores."""
    sequences, shape = bottom[0].shape[1], bottom[i].shape
    if shape[:1] != (sequences,):
        raise layer.error(f"the labels must be ({sequences}, L), got shape {shape}", f"bottom[{i}]")


def blank_class(layer: Layer, classes: int, blank: int, field: str) -> int:
    """Return blank. Raises LayerError unless it is a class."""
    if not 0 <= blank < classes:
        raise layer.error(f"the blank must be one of the {classes} classes, 0 to {classes - 1}, got {blank}", field)
    return blank


def read_labels(layer: Layer, labels: Array, n: int, classes: int, bottom: int) -> list[int]:
    """Return the labels of sequence n (L,) as whole numbers. Raises LayerError for one that is not a class."""
    for label in labels:
        if not 0 <= label < classes or label != int(label):
            raise layer.error(f"sequence {n}: label {label:g} is not one of the {classes} classes", f"bottom[{bottom}]")
    return [int(label) for label in labels]
