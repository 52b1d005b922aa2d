"""The one random generator: fillers, Dropout, stochastic pooling, DummyData and the samplers of detection draw from it."""

from __future__ import annotations

import numpy as np

from .errors import Error

_generator = np.random.default_rng()


def generator() -> np.random.Generator:
    """The generator everything random draws from."""
    return _generator


def set_random_seed(seed: int) -> None:
    """Start the generator anew: the same seed (>= 0) gives the same weights, masks and samples. Raises Error."""
    global _generator
    if seed < 0:
        raise Error(f"a random seed must be >= 0, got {seed}")
    _generator = np.random.default_rng(seed)
