"""Work on large arrays in blocks that stay in a core's cache, distributed over the threads.

    each_block(x.shape, step)           step(index) for every block; x[index] is one

Several passes over a whole blob read it from memory several times; over a block, all passes but the first read the cache.

    Calls(loop, dtype, [arguments, ...])    a compiled loop on parts of arrays, to be run again and again
    KeptStep([BlobJob(Job(calls), ...)])    the same of blobs, where they lie: what a layer does in each forward
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from . import handover, limits
from .blob import ALIGNMENT, Access, Blob, Places, aligned_zeros, paged_zeros
from .loops import Loop, Room, address_of
from .threads import get_num_threads, parts, run, run_jobs

Index = tuple[slice, ...]

BLOCK = 1 << 17
"""Elements of a block, about: 512 KB of float32. Measured: with 128 KB, whose passes take about 10 us each, two threads lose
more time to the GIL than they save (BatchNorm in TRAIN: 18.6 ms against 7.5); 2 MB do not stay in a core's cache."""

LEAST = 1 << 14
"""Fewest numbers that are worth a call of a loop that does little with each."""

MOST_KEPT, MOST_ROOM = 160 << 20, 64 << 20
"""Bytes of temporary arrays that a thread keeps for its next task, and for each thread of its next list of jobs: 60 MB of R-FCN
ResNet-50, which are new in each forward, take it 1.05 times as long. In training, the factors of its rpn_conv/3x3 are 144 MB;
new in each pass, they make a step up to 1.2 times as long where the system has to ask its host for memory."""

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


class _Room(NamedTuple):
    """Memory for the temporary arrays of jobs, and where it lies."""

    memory: NDArray[np.uint8]
    address: int


def _room_of(size: int) -> _Room:
    """This thread's, of at least so many bytes, kept from one list of jobs to the next.

    A Scratch would do the same, but to find its array and the address there takes as long as a small layer, when a net has
    pushed Python's code out of the cache.
    """
    room: _Room | None = getattr(_kept, "room", None)
    if room is None or room.memory.nbytes < size:
        limits.check("its temporary memory", size, "bytes")
        room = _kept.room = None  # free the old memory before allocating more
        memory = paged_zeros(size)
        room = _kept.room = _Room(memory, address_of(memory))
    return room


class Calls:
    """Calls of one compiled loop, on all threads: a job of handover.py, to be run again and again, with other arrays.

    calls: each one's arguments, of which some arrays are Later or Room (loops.py); they are independent of each other. dtype:
    the loop's T.
    """

    def __init__(self, loop: Loop[Any], dtype: DTypeLike, calls: Sequence[Sequence[Any]]) -> None:
        self.dtype, self._held = np.dtype(dtype), calls  # the arrays whose addresses the rows have
        rows = [loop.words(dtype, arguments) for arguments in calls]
        self.shape = len(rows), handover.ROW + max((len(words) for words, _ in rows), default=0)
        self.words = np.zeros(handover.HEAD + math.prod(self.shape), np.int64)
        self.words[[handover.COUNT, handover.WIDTH, handover.EACH]] = *self.shape, self._bytes_of_room(calls)
        later: dict[int, int] = {}
        self.table = self.words[handover.HEAD :].reshape(self.shape)
        for row, (words, places) in zip(self.table, rows, strict=True):
            row[handover.ENTRY], row[handover.ROW : handover.ROW + len(words)] = loop.entry(dtype), words
            later.update((number, handover.ROW + place) for place, number in places)
        self.later = [later[number] for number in sorted(later)]

    def _bytes_of_room(self, calls: Sequence[Sequence[Any]]) -> int:
        """Whole lines of the cache."""
        ends = [
            one.start + math.prod(one.shape) * self.dtype.itemsize for call in calls for one in call if isinstance(one, Room)
        ]
        return -(-max(ends, default=0) // ALIGNMENT) * ALIGNMENT


class Job:
    """Calls that are run at the addresses of the arrays that were Later; for one thread at a time.

    flags: numbers that the calls leave at 0, unless somebody has to see to the result before it is used.
    """

    latest_move: ClassVar[object] = object()
    """Another object each time any job is moved to other addresses."""
    latest_room: ClassVar[object] = object()
    """Another object each time any job is given other temporary memory."""

    def __init__(self, calls: Calls, flags: NDArray[np.float32] | None = None) -> None:
        self._calls, self._flags = calls, flags
        self.words = calls.words.copy()
        self.address = address_of(self.words)
        if flags is not None:
            self.words[[handover.FLAGS, handover.FLAG_COUNT]] = address_of(flags), len(flags)
        self._table = self.words[handover.HEAD :].reshape(calls.shape)
        self._addresses: tuple[int, ...] = ()
        self._room = 0, 0
        self.dtype, self._each = calls.dtype, int(self.words[handover.EACH])

    def at(self, *addresses: int) -> None:
        """addresses: of arrays that are C-contiguous, in the order of the loop's arguments."""
        if addresses != self._addresses:
            self._addresses = ()  # until all are there: Ctrl-C may come in between
            Job.latest_move = object()
            for place, address in zip(self._calls.later, addresses, strict=True):
                np.add(self._calls.table[:, place], address, out=self._table[:, place])
            self._addresses = addresses

    def run(self, *addresses: int) -> None:
        """Run the calls at these addresses."""
        self.at(*addresses)
        JobList([self]).run()

    def room(self, threads: int) -> int:
        """Bytes of temporary memory on so many threads."""
        return min(threads, len(self._table)) * self._each

    def take_room(self, threads: int, address: int) -> None:
        """Its temporary memory, for so many threads, is there."""
        if (address, threads) != self._room:
            self._room = 0, 0  # until all is there, as in `at`
            Job.latest_room = object()
            self.words[handover.ROOM], self.words[handover.MOST_THREADS] = address, min(threads, len(self._table))
            self._room = address, threads


class JobList:
    """Jobs that run one after the other, at the addresses at which they are, on as many threads as there are now. largest: the
    place of the one that needs most temporary memory."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs, self._threads = jobs, get_num_threads()
        rooms = [job.room(self._threads) for job in jobs]
        self._room = max(rooms, default=0)
        self.largest = rooms.index(self._room) if rooms else 0
        self._widest = max((int(job.words[handover.COUNT]) for job in jobs), default=0)
        self._words = array("q", [0] * handover.JOBS + [job.address for job in jobs])
        self._given: tuple[int, object] = 0, None
        """The room that all jobs have, and Job.latest_room since when."""

    def run(self, first: int = 0, end: int | None = None) -> int:
        """Run those from the first to the one before end. Returns the one behind the last that was run: one with flags ends
        it."""
        words, room = self._words[:], _room_of(self._room)
        words[handover.FIRST] = first
        words[handover.END] = len(self._jobs) if end is None else min(end, len(self._jobs))
        if self._given != (room.address, Job.latest_room):  # not in most forwards
            for job in self._jobs:
                job.take_room(self._threads, room.address)
            self._given = room.address, Job.latest_room
        try:
            return run_jobs(words, self._widest)
        finally:
            if room.memory.nbytes > MOST_ROOM * self._threads:
                _kept.room = None


class BlobJob:
    """A job that reads blobs and arrays, and writes a blob, wherever blobs lie. given: in the order of the loop's arguments,
    before top. access: to top."""

    def __init__(self, job: Job, given: Sequence[Blob | NDArray[Any]], top: Blob, access: Access = "write") -> None:
        self.job, self.top, self._given, self._access = job, top, given, access
        self.blobs = [*(one for one in given if isinstance(one, Blob)), top]
        self._places: Places | None = None

    def place(self) -> None:
        """Have the job at the present addresses."""
        if self._places is not None and self._places.hold():  # as in most forwards
            self.top.data_memory.wrote()
            return
        self._places = None
        given = [one.data_address("read") if isinstance(one, Blob) else address_of(one) for one in self._given]
        self.job.at(*given, self.top.data_address(self._access))
        self._places = Places(self.blobs)


class KeptStep:
    """What a layer, or several together, do in a forward, as jobs, to be run again as long as shapes, weights and settings are
    the same. before: what comes before the jobs, unless nothing that is watched has changed (blob.latest_change) since it last
    did. mend: what sees to the result where the jobs' flags are set."""

    def __init__(
        self,
        jobs: Sequence[BlobJob],
        before: Callable[[], object] | None = None,
        mend: Callable[[], object] | None = None,
    ) -> None:
        self.jobs, self.before, self._mend = jobs, before, mend

    def place(self) -> None:
        """Have the jobs at the blobs' present addresses: they are about to run."""
        for job in self.jobs:
            job.place()

    @property
    def mends(self) -> bool:
        """Whether mend does anything."""
        return self._mend is not None

    def mend(self) -> None:
        """See to the result."""
        if self._mend is not None:
            self._mend()

    def __call__(self) -> None:
        if self.before is not None:
            self.before()
        self.place()
        if self.jobs:
            JobList([job.job for job in self.jobs]).run()
            self.mend()
