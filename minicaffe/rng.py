"""The one random generator: fillers, Dropout, stochastic pooling, DummyData and the samplers of detection draw from it.

Where several ranks train one net, each has one of its own, and beside it one that all have alike, for the data's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np

from .errors import Error

_generator = np.random.default_rng()
_shared: np.random.Generator | None = None


def generator() -> np.random.Generator:
    """The generator everything random draws from."""
    return _generator


def shared_generator() -> np.random.Generator:
    """The generator of what all ranks of a training must draw alike; in a process that trains alone the same one."""
    return _generator if _shared is None else _shared


def set_random_seed(seed: int) -> None:
    """Start the generator anew: the same seed (>= 0) gives the same weights, masks and samples. Raises Error."""
    global _generator
    if seed < 0:
        raise Error(f"a random seed must be >= 0, got {seed}")
    _generator = np.random.default_rng(seed)


def of_rank(generator: np.random.Generator, rank: int) -> np.random.Generator:
    """A generator of rank's own, from one that all ranks have alike; that one does not move."""
    return np.random.default_rng([int(deepcopy(generator).integers(2**63)), rank])


@contextmanager
def of_ranks(rank: int) -> Iterator[None]:
    """In this block the generator so far is the shared one, and generator() this rank's own."""
    global _generator, _shared
    _shared, _generator = _generator, of_rank(_generator, rank)
    try:
        yield
    finally:
        _generator, _shared = _shared, None


def restore_generators(shared: dict[str, Any], own: dict[str, Any]) -> None:
    """Put states of both generators back; in a process that trains alone its one is `own`."""
    shared_generator().bit_generator.state = shared
    generator().bit_generator.state = own
