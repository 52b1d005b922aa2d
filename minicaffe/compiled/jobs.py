"""The work of a layer in each forward, as tables of compiled calls that run again and again without Python in between.

Calls(loop, dtype, [arguments, ...])    a compiled loop on parts of arrays
KeptStep([BlobJob(Job(calls), ...)])    the same on blobs, at their current addresses
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from minicaffe import kernels, limits
from minicaffe.blob import ALIGNMENT, Access, Blob, address_of, paged_zeros
from minicaffe.layer import Layer
from minicaffe.threads import get_num_threads

from . import worker_sync
from .jit import Loop, ScratchArray
from .worker_sync import run_jobs

LEAST = 1 << 14
"""Least numbers that are worth a call of a loop that does little with each."""

MOST_ROOM = 64 << 20
"""Bytes of temporary arrays that a thread keeps, for each thread of its next list of jobs. R-FCN ResNet-50 takes 60 MB, which
would be slow to allocate in each forward."""

_kept = threading.local()


class _Room(NamedTuple):
    """Memory for the temporary arrays of jobs, and its address."""

    memory: NDArray[np.uint8]
    address: int


def _room_of(size: int) -> _Room:
    """Return this thread's room, of at least this many bytes, which is kept from one list of jobs to the next.

    A Scratch would do the same. But finding its array and address takes as long as a small layer, once a net has pushed
    Python's code out of the cache.
    """
    room: _Room | None = getattr(_kept, "room", None)
    if room is None or room.memory.nbytes < size:
        limits.check("its temporary memory", size, "bytes")
        room = _kept.room = None  # free the old memory before allocating more
        memory = paged_zeros(size)
        room = _kept.room = _Room(memory, address_of(memory))
    return room


class Calls:
    """Calls of one compiled loop, on all threads: a job of worker_sync.py, which can run again and again on other arrays.

    calls: the arguments of each, some of whose arrays are DynamicArray or ScratchArray (jit.py); the calls are independent of
    each other. dtype: the loop's T.
    """

    def __init__(self, loop: Loop[Any], dtype: DTypeLike, calls: Sequence[Sequence[Any]]) -> None:
        self.dtype, self._held = np.dtype(dtype), calls  # keeps the arrays alive, because the rows have their addresses
        rows = [loop.words(dtype, arguments) for arguments in calls]
        self.shape = len(rows), worker_sync.ROW + max((len(words) for words, _ in rows), default=0)
        self.words = np.zeros(worker_sync.HEAD + math.prod(self.shape), np.int64)
        self.words[[worker_sync.COUNT, worker_sync.WIDTH, worker_sync.EACH]] = *self.shape, self._bytes_of_room(calls)
        later: dict[int, int] = {}
        self.table = self.words[worker_sync.HEAD :].reshape(self.shape)
        for row, (words, places) in zip(self.table, rows, strict=True):
            row[worker_sync.ENTRY], row[worker_sync.ROW : worker_sync.ROW + len(words)] = loop.entry(dtype), words
            later.update((number, worker_sync.ROW + place) for place, number in places)
        self.later = [later[number] for number in sorted(later)]

    def _bytes_of_room(self, calls: Sequence[Sequence[Any]]) -> int:
        """Return the bytes of temporary memory for a call, rounded up to whole cache lines."""
        ends = [
            one.start + math.prod(one.shape) * self.dtype.itemsize
            for call in calls
            for one in call
            if isinstance(one, ScratchArray)
        ]
        return -(-max(ends, default=0) // ALIGNMENT) * ALIGNMENT


class Job:
    """Calls with addresses for their DynamicArrays; for one thread at a time.

    flags: numbers that the calls leave at 0, unless the result needs a fixup before it is used.
    """

    latest_move: ClassVar[object] = object()
    """A new object each time any job gets other addresses."""
    latest_room: ClassVar[object] = object()
    """A new object each time any job gets other temporary memory."""

    def __init__(self, calls: Calls, flags: NDArray[np.float32] | None = None) -> None:
        self._calls, self._flags = calls, flags
        self.words = calls.words.copy()
        self.address = address_of(self.words)
        if flags is not None:
            self.words[[worker_sync.FLAGS, worker_sync.FLAG_COUNT]] = address_of(flags), len(flags)
        self._table = self.words[worker_sync.HEAD :].reshape(calls.shape)
        self._addresses: tuple[int, ...] = ()
        self._room = 0, 0
        self.dtype, self._each = calls.dtype, int(self.words[worker_sync.EACH])

    def at(self, *addresses: int) -> None:
        """Set the addresses of the arrays, which are C-contiguous, in the order of the loop's arguments."""
        if addresses != self._addresses:
            self._addresses = ()  # invalid until all are set, because Ctrl-C may interrupt
            Job.latest_move = object()
            for place, address in zip(self._calls.later, addresses, strict=True):
                np.add(self._calls.table[:, place], address, out=self._table[:, place])
            self._addresses = addresses

    def run(self, *addresses: int) -> None:
        """Run the calls at these addresses."""
        self.at(*addresses)
        JobList([self]).run()

    def room(self, threads: int) -> int:
        """Return the bytes of temporary memory for this many threads."""
        return min(threads, len(self._table)) * self._each

    def take_room(self, threads: int, address: int) -> None:
        """Set the address of the temporary memory for this many threads."""
        if (address, threads) != self._room:
            self._room = 0, 0  # invalid until all is set, as in `at`
            Job.latest_room = object()
            self.words[worker_sync.ROOM], self.words[worker_sync.MOST_THREADS] = address, min(threads, len(self._table))
            self._room = address, threads


class JobList:
    """Jobs that run one after the other, at their current addresses, on the current number of threads.

    largest: the index of the job that needs most temporary memory.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs, self._threads = jobs, get_num_threads()
        rooms = [job.room(self._threads) for job in jobs]
        self._room = max(rooms, default=0)
        self.largest = rooms.index(self._room) if rooms else 0
        self._widest = max((int(job.words[worker_sync.COUNT]) for job in jobs), default=0)
        self._words = array("q", [0] * worker_sync.JOBS + [job.address for job in jobs])
        self._given: tuple[int, object] = 0, None
        """The address of the room that all jobs have, and the Job.latest_room when they got it."""

    def run(self, first: int = 0, end: int | None = None) -> int:
        """Run the jobs from first to end - 1.

        Returns the index after the last job that ran: a job with flags set ends the run.
        """
        words, room = self._words[:], _room_of(self._room)
        words[worker_sync.FIRST] = first
        words[worker_sync.END] = len(self._jobs) if end is None else min(end, len(self._jobs))
        if self._given != (room.address, Job.latest_room):  # rare
            for job in self._jobs:
                job.take_room(self._threads, room.address)
            self._given = room.address, Job.latest_room
        try:
            return run_jobs(words, self._widest)
        finally:
            if room.memory.nbytes > MOST_ROOM * self._threads:
                _kept.room = None


class BlobJob:
    """A job that reads blobs and arrays, and writes a blob, at any addresses.

    given: in the order of the loop's arguments, before top. access: to top.
    """

    def __init__(self, job: Job, given: Sequence[Blob | NDArray[Any]], top: Blob, access: Access = "write") -> None:
        self.job, self.top, self._given, self._access = job, top, given, access
        self.blobs = [*(one for one in given if isinstance(one, Blob)), top]

    def place(self) -> None:
        """Set the job's addresses to the current ones."""
        given = [one.data_address("read") if isinstance(one, Blob) else address_of(one) for one in self._given]
        self.job.at(*given, self.top.data_address(self._access))


class KeptStep(kernels.KeptStep):
    """The work of one or more layers in a forward, as jobs that run again while shapes, weights and settings stay the same.

    before: called before the jobs, unless nothing that is watched has changed (blob.current_version) since the last call.
    fixup: called if the jobs' flags are set, to correct the result.
    """

    def __init__(
        self,
        jobs: Sequence[BlobJob],
        before: Callable[[], object] | None = None,
        fixup: Callable[[], object] | None = None,
    ) -> None:
        self.jobs, self.before, self._mend = jobs, before, fixup

    def place(self) -> None:
        """Set the jobs' addresses to the blobs' current ones, just before they run."""
        for job in self.jobs:
            job.place()

    @property
    def mends(self) -> bool:
        """True if fixup does anything."""
        return self._mend is not None

    def fixup(self) -> None:
        """Correct the result, if the step has a fixup."""
        if self._mend is not None:
            self._mend()

    def __call__(self) -> None:
        if self.before is not None:
            self.before()
        self.place()
        if self.jobs:
            JobList([job.job for job in self.jobs]).run()
            self.fixup()


def sharing_step(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob]) -> KeptStep:
    """Return the step of a layer whose tops need only a reshape."""
    return KeptStep([], before=lambda: layer.reshape(bottom, top))
