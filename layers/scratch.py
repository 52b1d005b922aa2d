"""Scratch: arrays whose memory is used again, since fresh pages from the system cost more than a pass over them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Scratch:
    """Arrays by name; one that is asked for again has the memory of the last of that name, with whatever is in it."""

    def __init__(self) -> None:
        self._memory: dict[str, NDArray[Any]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An array of that shape and type, in memory that has no other use until the name is asked for again."""
        size = math.prod(shape)
        memory = self._memory.get(name)
        if memory is None or memory.size < size or memory.dtype != dtype:
            memory = self._memory[name] = np.empty(size, dtype)
        return memory[:size].reshape(shape)
