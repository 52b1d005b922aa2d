"""Work on large arrays in blocks that stay in a core's cache, distributed over the threads.

    each_block(x.shape, step)           step(index) for every block; x[index] is one

Several passes over a whole blob read it from memory several times; over a block, all passes but the first read the cache.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import limits
from .blob import aligned_zeros
from .threads import parts, run

Index = tuple[slice, ...]

BLOCK = 1 << 17
"""Elements of a block, about: 512 KB of float32. Measured: with 128 KB, whose passes take about 10 us each, two threads lose
more time to the GIL than they save (BatchNorm in TRAIN: 18.6 ms against 7.5); 2 MB do not stay in a core's cache."""

MOST_KEPT = 160 << 20
"""Bytes of temporary arrays that a thread keeps for its next task. In training, the factors of R-FCN ResNet-50's rpn_conv/3x3
are 144 MB; new in each pass, they make a step up to 1.2 times as long where the system has to ask its host for memory."""

_kept = threading.local()


def blocks(shape: Sequence[int], size: int | None = None) -> list[Index]:
    """An array of this shape cut into blocks of at most `size` elements (default BLOCK), along the first axes."""
    left, cuts = BLOCK if size is None else size, []
    for length in reversed(shape):
        step = max(1, min(length, left))
        left //= step  # what an index of the next outer axis has room for; 1 or 0 cuts that axis into single indices
        cuts.append([slice(start, min(start + step, length)) for start in range(0, length, step)])
    return list(product(*reversed(cuts)))


def each_block(shape: Sequence[int], step: Callable[[Index], object], size: int | None = None) -> None:
    """Call step(index) for every block of an array of this shape, on all threads; a step may write to its block only."""
    todo = blocks(shape, size)
    run(partial(_steps, step, todo[part]) for part in parts(len(todo), each=2))  # two each: threads end at unequal times


def _steps(step: Callable[[Index], object], indices: Sequence[Index]) -> None:
    for index in indices:
        step(index)


class Scratch:
    """Temporary arrays, reused from block to block: each new one would be a page fault per page. One object a task."""

    def __init__(self, dtype: DTypeLike = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        self._held: dict[str, NDArray[Any] | None] = {}

    def __call__(self, name: str, *shape: int, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """An array of this shape, in the memory of the last one with this name. dtype: by default the object's.

        It begins at a line of the cache. Raises LimitError above limits.bytes: a layer's padding and dilation can ask for any
        size.
        """
        kind = self.dtype if dtype is None else np.dtype(dtype)
        size, held = math.prod(shape), self._held.get(name)
        if held is None or held.size < size or held.dtype != kind:
            limits.check(f"a temporary array of shape {shape}", size * kind.itemsize, "bytes")
            held = self._held[name] = None  # free the old memory before allocating more
            held = self._held[name] = aligned_zeros(size, kind)
        return held[:size].reshape(shape)

    @property
    def bytes(self) -> int:
        """How much memory it holds."""
        return sum(held.nbytes for held in self._held.values() if held is not None)


@contextmanager
def kept_scratch(dtype: DTypeLike) -> Iterator[Scratch]:
    """This thread's Scratch, kept from task to task and from layer to layer; for one task at a time.

    New memory of some MB would be given back to the system after each task, and then cost a page fault a page: up to four
    times a depthwise convolution's time.
    """
    scratch: Scratch | None = getattr(_kept, "scratch", None)
    if scratch is None or scratch.dtype != dtype:
        scratch = _kept.scratch = Scratch(dtype)
    yield scratch
    if scratch.bytes > MOST_KEPT:
        _kept.scratch = None
