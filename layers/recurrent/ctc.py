"""Connectionist temporal classification: how likely a sequence of labels is, summed over all ways to spread it over time.

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


@dataclass(frozen=True)
class Target:
    """What one sequence should spell, in the time steps first to last (excluded). merge: whether repeats are merged."""

    labels: Sequence[int]
    first: int
    last: int
    merge: bool = True

    @property
    def least_steps(self) -> int:
        """How many time steps the labels need: one each, and a blank between equal ones that would be merged."""
        return len(self.labels) + self.merge * sum(a == b for a, b in zip(self.labels, self.labels[1:]))


def ctc(x: Array, target: Target, blank: int) -> tuple[float, Array]:
    """The loss of one sequence's scores x (T, C), and its gradient (T, C) in float64. The labels must fit the time steps."""
    gradient = np.zeros(x.shape)
    scores = x[target.first : target.last].astype(np.float64)
    scores -= scores.max(axis=1, keepdims=True)
    y = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    spread = np.full(2 * len(target.labels) + 1, blank)
    spread[1::2] = target.labels
    emitted = y[:, spread]
    alpha = _beginnings(emitted, *_moves(spread, blank, target.merge))
    flipped = _beginnings(emitted[::-1, ::-1], *_moves(spread[::-1], blank, target.merge))[::-1, ::-1]
    ways = alpha + flipped - emitted  # beta is the flipped alpha without its own y
    loss = -float(np.logaddexp.reduce(alpha[-1, -2:]))
    shares = np.zeros_like(y)
    np.add.at(shares.T, spread, np.exp(np.where(np.isfinite(ways + loss), ways + loss, -np.inf)).T)
    gradient[target.first : target.last] = np.exp(y) - shares
    return loss, gradient


def _moves(spread: Array, blank: int, merge: bool) -> tuple[Array, Array]:
    """The logarithms, 0 or -inf, of whether each place may follow itself, and the one two before it."""
    label = spread != blank
    skips = label.copy()
    skips[:2] = False
    if merge:
        skips[2:] &= spread[2:] != spread[:-2]
    return _logarithm(~label | merge), _logarithm(skips)


def _logarithm(allowed: Array) -> Array:
    return np.where(allowed, 0.0, -np.inf)


def _beginnings(emitted: Array, stays: Array, skips: Array) -> Array:
    """alpha (T, U), from log y[t, l[u]] (T, U)."""
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
    """The labels that a class for each time step spells: repeats merged (unless merge is False), blanks dropped."""
    runs: Iterator[int] = (c for c, _ in groupby(classes)) if merge else iter(classes)
    return [int(c) for c in runs if c != blank]


def sequence_lengths(indicators: Blob) -> list[int]:
    """How many time steps each sequence has, from its indicators (T, N): it ends before the next 0 after the first step."""
    ends = indicators.data.reshape(indicators.shape[:2])[1:] < 0.5
    return [int(end.argmax()) + 1 if end.any() else len(ends) + 1 for end in ends.T]


def until_negative(column: Array) -> Array:
    """The labels of a column that is padded with negative numbers."""
    return column[: int((column < 0).argmax())] if (column < 0).any() else column


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """The least number of insertions, deletions and replacements that make a into b."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (x != y))
    return row[-1]
