"""Which share of the training data this process reads, where several ranks train one net together.

    a batch of N ranks:  the next N B records;  rank r takes those at r, r + N, r + 2 N, ...  (B of them)

After each batch every rank stands at the same place of the data: what N ranks read is what one process with N times the
batch reads. Source: Caffe's DataLayer::Skip.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicaffe.mode import TRAIN, Phase
from minicaffe.rng import of_rank

from .state_fields import MOST, Fields


@dataclass(frozen=True)
class Share:
    """Rank `rank` of `count` that train together."""

    rank: int = 0
    count: int = 1

    def takes(self, position: int) -> bool:
        """Whether the record at this position of a batch of all ranks is this rank's."""
        return position % self.count == self.rank

    def own(self, generator: np.random.Generator) -> None:
        """Let a generator that is alike in all ranks go on with numbers of this rank's own."""
        if self.count > 1:
            generator.bit_generator.state = of_rank(generator, self.rank).bit_generator.state

    def state(self, generator: np.random.Generator) -> dict[str, Any]:
        """What restore takes, as JSON: a generator of this rank's own."""
        state: dict[str, Any] = {"generator": generator.bit_generator.state}
        return state if self.count == 1 else state | {"share": [self.rank, self.count]}

    def restore(self, generator: np.random.Generator, state: dict[str, Any]) -> None:
        """Put the generator of a state back; it is made this rank's own where it was another's."""
        fields = Fields(state)
        whose = fields.wholes("share", 0, MOST) if "share" in fields else [0, 1]
        generator.bit_generator.state = fields.generator("generator")
        if whose != [self.rank, self.count]:
            self.own(generator)


WHOLE = Share()
"""All of the data: a process that trains alone."""

_current = WHOLE


def current_share(phase: Phase = TRAIN) -> Share:
    """The share of a data layer in this phase: tests are one rank's, and read everything."""
    return _current if phase == TRAIN else WHOLE


@contextmanager
def sharing(share: Share) -> Iterator[None]:
    """Data layers that are made in this block read this share."""
    global _current
    before, _current = _current, share
    try:
        yield
    finally:
        _current = before
