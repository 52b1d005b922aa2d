"""Work on large arrays in blocks that stay in a core's cache, shared out among the threads.

    each_block(x.shape, step)           step(index) for every block; x[index] is one

Several passes over a whole blob fetch it from memory several times. Over a block, all passes but the first find it in
cache; and the blocks keep every thread busy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import limits
from .threads import parts, run

Index = tuple[slice, ...]

BLOCK = 1 << 17
"""About how many numbers of an array a block has: 512 KB of float32. Measured: with 128 KB, whose passes take some 10 us each,
two threads spend more time on handing Python's lock to each other than they save (BatchNorm in TRAIN: 18.6 ms against 7.5);
with 2 MB, a block is no longer in a core's cache for its next pass."""


def blocks(shape: Sequence[int], size: int | None = None) -> list[Index]:
    """An array of this shape cut into blocks of at most `size` numbers (default BLOCK), whole along as many last axes as
    will do."""
    left, cuts = BLOCK if size is None else size, []
    for length in reversed(shape):
        step = max(1, min(length, left))
        left //= step
        cuts.append([slice(start, min(start + step, length)) for start in range(0, length, step)])
    return list(product(*reversed(cuts)))


def each_block(shape: Sequence[int], step: Callable[[Index], object], size: int | None = None) -> None:
    """Call step(index) for every block of an array of this shape, on all threads; each writes to its own block alone."""
    todo = blocks(shape, size)
    run(partial(_steps, step, todo[part]) for part in parts(len(todo), each=2))


def _steps(step: Callable[[Index], object], indices: Sequence[Index]) -> None:
    for index in indices:
        step(index)


class Scratch:
    """Arrays for what is made on the way, used again from block to block: new ones would be fetched from the system,
    page by page, each time. One object a task."""

    def __init__(self, dtype: DTypeLike = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        self._held: dict[str, NDArray[Any] | None] = {}

    def __call__(self, name: str, *shape: int, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """An array of this shape, of the object's type or another; what was taken under this name before is overwritten.

        Raises LimitError for more than limits.bytes: a layer's padding and dilation can ask for any size.
        """
        kind = self.dtype if dtype is None else np.dtype(dtype)
        size, held = math.prod(shape), self._held.get(name)
        if held is None or held.size < size or held.dtype != kind:
            limits.check(f"what is made on the way, of shape {shape},", size * kind.itemsize, "bytes")
            held = self._held[name] = None  # the memory that is there goes before more is taken
            held = self._held[name] = np.empty(size, kind)
        return held[:size].reshape(shape)
