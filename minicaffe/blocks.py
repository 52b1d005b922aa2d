"""Work on large arrays in blocks that stay in a core's cache, distributed over the threads.

    each_block(x.shape, step)           step(index) for every block; x[index] is one

Several passes over a whole blob read it from memory several times; over a block, all passes but the first read the cache.

    Calls(loop, dtype, [arguments, ...])    a compiled loop on parts of arrays, to be run again and again
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

from . import handover, limits
from .blob import ALIGNMENT, aligned_zeros
from .loops import Loop, Room, address_of
from .threads import get_num_threads, parts, run, run_job

Index = tuple[slice, ...]

BLOCK = 1 << 17
"""Elements of a block, about: 512 KB of float32. Measured: with 128 KB, whose passes take about 10 us each, two threads lose
more time to the GIL than they save (BatchNorm in TRAIN: 18.6 ms against 7.5); 2 MB do not stay in a core's cache."""

MOST_KEPT = 24 << 20
"""Bytes of temporary arrays that a thread keeps for its next task, for each thread that they are for."""

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
def kept_scratch(dtype: DTypeLike, threads: int = 1) -> Iterator[Scratch]:
    """This thread's Scratch, kept from task to task and from layer to layer; for one task at a time. threads: for how many the
    task takes memory.

    New memory of some MB would be given back to the system after each task, and then cost a page fault a page: up to four
    times a depthwise convolution's time.
    """
    scratch: Scratch | None = getattr(_kept, "scratch", None)
    if scratch is None or scratch.dtype != dtype:
        scratch = _kept.scratch = Scratch(dtype)
    yield scratch
    if scratch.bytes > MOST_KEPT * threads:
        _kept.scratch = None


class Calls:
    """Calls of one compiled loop, on all threads: a job of handover.py, to be run again and again, with other arrays.

    calls: each one's arguments, of which some arrays are Later or Room (loops.py); they are independent of each other. dtype:
    the loop's T.
    """

    def __init__(self, loop: Loop[Any], dtype: DTypeLike, calls: Sequence[Sequence[Any]]) -> None:
        self.dtype, self._held = np.dtype(dtype), calls  # the arrays whose addresses the rows have
        rows = [loop.words(dtype, arguments) for arguments in calls]
        self.shape = len(rows), 1 + max((len(words) for words, _ in rows), default=0)
        self.words = np.zeros(handover.HEAD + math.prod(self.shape), np.int64)
        self.words[[handover.COUNT, handover.WIDTH, handover.EACH]] = *self.shape, self._bytes_of_room(calls)
        later: dict[int, int] = {}
        self.table = self.words[handover.HEAD :].reshape(self.shape)
        for row, (words, places) in zip(self.table, rows, strict=True):
            row[0], row[1 : 1 + len(words)] = loop.entry(dtype), words
            later.update((number, 1 + place) for place, number in places)
        self.later = [later[number] for number in sorted(later)]

    def _bytes_of_room(self, calls: Sequence[Sequence[Any]]) -> int:
        """Whole lines of the cache."""
        ends = [
            one.start + math.prod(one.shape) * self.dtype.itemsize for call in calls for one in call if isinstance(one, Room)
        ]
        return -(-max(ends, default=0) // ALIGNMENT) * ALIGNMENT


class Job:
    """Calls that are run at the addresses of the arrays that were Later; for one thread at a time."""

    def __init__(self, calls: Calls) -> None:
        self._calls, self._words = calls, calls.words.copy()
        self._table = self._words[handover.HEAD :].reshape(calls.shape)
        self._addresses: tuple[int, ...] = ()
        self._each = int(self._words[handover.EACH])

    def run(self, *addresses: int) -> None:
        """addresses: of arrays that are C-contiguous, in the order of the loop's arguments."""
        if addresses != self._addresses:
            self._addresses = ()  # until all are there: Ctrl-C may come in between
            for place, address in zip(self._calls.later, addresses, strict=True):
                np.add(self._calls.table[:, place], address, out=self._table[:, place])
            self._addresses = addresses
        threads = min(get_num_threads(), len(self._table))
        with kept_scratch(self._calls.dtype, threads) as scratch:
            self._words[handover.ROOM] = address_of(scratch("rooms", threads * self._each, dtype=np.uint8))
            self._words[handover.MOST_THREADS] = threads
            run_job(self._words)
