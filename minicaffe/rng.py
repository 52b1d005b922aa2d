"""The random generator for fillers, Dropout, stochastic pooling, DummyData and the samplers of detection.

In training on several ranks, each rank has its own generator, and all have an equal second one for the data's order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np

from .errors import Error
from .process_fork import held

_generator = np.random.default_rng()
_shared: np.random.Generator | None = None


def generator() -> np.random.Generator:
    """Return the generator for all random numbers."""
    return _generator


def shared_generator() -> np.random.Generator:
    """Return the generator for numbers that must be equal on all ranks; without ranks, generator()."""
    return _generator if _shared is None else _shared


def set_random_seed(seed: int) -> None:
    """Seed the generator: the same seed (>= 0) gives the same weights, masks and samples. Raises Error."""
    global _generator
    if seed < 0:
        raise Error(f"a random seed must be >= 0, got {seed}")
    _generator = np.random.default_rng(seed)


def of_rank(generator: np.random.Generator, rank: int) -> np.random.Generator:
    """Return a rank's own generator, derived from one that is equal on all ranks. The latter's state does not change."""
    # SeedSequence gives each rank an independent stream
    return np.random.default_rng([int(deepcopy(generator).integers(2**63)), rank])


@contextmanager
def of_ranks(rank: int) -> Iterator[None]:
    """In the block, make the present generator the shared one; generator() returns this rank's own."""
    global _generator, _shared
    _shared, _generator = _generator, of_rank(_generator, rank)
    try:
        yield
    finally:
        _generator, _shared = _shared, None


@contextmanager
def aside() -> Iterator[None]:
    """In the block, use other generators. After it both continue as if nothing had been drawn."""
    global _generator, _shared
    kept = _generator, _shared
    _generator, _shared = np.random.default_rng(0), None
    try:
        yield
    finally:
        _generator, _shared = kept


def restore_generators(shared: dict[str, Any], own: dict[str, Any]) -> None:
    """Restore the states of both generators. Without ranks there is only one, and `own` is its state."""
    shared_generator().bit_generator.state = shared
    generator().bit_generator.state = own


held(lambda: [one.bit_generator.lock for one in (_generator, _shared) if one is not None])
