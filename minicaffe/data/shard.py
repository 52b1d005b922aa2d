"""The shard of the training data that this process reads when several ranks train one net together.

    a batch of N ranks:  the next N B records;  rank r takes those at r, r + N, r + 2 N, ...  (B of them)

After each batch all ranks stand at the same place of the data: N ranks together read what one process with N times the
batch size reads. Source: Caffe's DataLayer::Skip.
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
class Shard:
    """The shard of rank `rank` of `count` that train together."""

    rank: int = 0
    count: int = 1

    def takes(self, position: int) -> bool:
        """Return whether this rank reads the record at this position of all ranks' batch."""
        return position % self.count == self.rank

    def rank_stream(self, generator: np.random.Generator) -> None:
        """Move a generator that is equal on all ranks to this rank's stream of random numbers."""
        if self.count > 1:  # a single process keeps the seeded generator
            generator.bit_generator.state = of_rank(generator, self.rank).bit_generator.state

    def state(self, generator: np.random.Generator) -> dict[str, Any]:
        """Return the state of this rank's generator, as JSON."""
        state: dict[str, Any] = {"generator": generator.bit_generator.state}
        return state if self.count == 1 else state | {"share": [self.rank, self.count]}  # "share" is the name in stored states

    def restore(self, generator: np.random.Generator, state: dict[str, Any]) -> None:
        """Restore state()'s result. Another rank's generator is moved to this rank's stream. Raises ValueError."""
        fields = Fields(state)
        written_by = fields.wholes("share", 0, MOST) if "share" in fields else [0, 1]
        generator.bit_generator.state = fields.generator("generator")
        if written_by != [self.rank, self.count]:
            self.rank_stream(generator)


WHOLE = Shard()
"""All of the data: a process that trains alone."""

_current = WHOLE


def current_shard(phase: Phase = TRAIN) -> Shard:
    """Return the shard of a data layer in this phase. Test nets read all data."""
    return _current if phase == TRAIN else WHOLE


@contextmanager
def reading_shard(shard: Shard) -> Iterator[None]:
    """Let data layers that are set up in the block read this shard."""
    global _current
    before, _current = _current, shard
    try:
        yield
    finally:
        _current = before
