"""The arena: one piece of memory for all inner blobs of layers that run as lists of jobs. It is kept from forward to forward.

Blobs that are not needed at the same time share memory (ArenaSlice). Memory that is written again and again stays in the cache.

Memory that several threads have just read is in all their caches, and a write waits until it is in only one. So with several
threads, small blobs go where memory has been unused for the longest time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakSet

import numpy as np

from minicaffe.blob import ALIGNMENT, Array, Blob, SyncedMemory, address_of, paged_zeros
from minicaffe.blob_memory import GONE, BlobMemory
from minicaffe.threads import get_num_threads

PARTS, PLACES = 4, 64
"""A blob of at most 1 / PARTS of the memory looks for a place among PLACES. Larger blobs leave no free places."""


@dataclass
class _Shared:
    """The memory of one inner blob, or of several that share it: their names, and the first and last layer that need it."""

    names: list[str]
    first: int
    last: int
    is_inner: bool = True


_ALL = _Shared([], 0, sys.maxsize)
"""The entry of memory that all layers need."""


@dataclass(eq=False)
class ArenaSlice:
    """The memory of the inner blobs of some layers, which run as one list.

    Except for jobs, which know the addresses, it may only be used in `opened`. first: the list's first layer. before: memory
    that earlier lists left to layers that have run by now. is_over: whether other blobs use the memory by now. ends: blobs of
    other memory that the list is the last to read. later: memory that layers after the list read; open until the forward has
    ended.
    """

    first: int
    before: list[tuple[SyncedMemory, str]] = field(default_factory=list)
    is_over: bool = False
    ends: list[str] = field(default_factory=list)
    blobs: list[tuple[Blob, SyncedMemory]] = field(default_factory=list)
    closed: list[tuple[SyncedMemory, str]] = field(default_factory=list)
    """Each memory, and the message of an error for a later access."""
    later: list[tuple[SyncedMemory, str]] = field(default_factory=list)

    def holds(self) -> bool:
        """Return whether the blobs still have this memory and may use it."""
        return not self.is_over and all(blob.data_memory is memory for blob, memory in self.blobs)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """In the block, let the memory be used."""
        for memory, _ in (*self.closed, *self.later):
            memory.freed_message = ""
        try:
            yield
        finally:
            for memory, freed_message in self.closed:
                memory.freed_message = freed_message


class Arena:
    """The memory of the inner blobs of lists, in a net that frees blobs between layers."""

    def __init__(self, memory: BlobMemory) -> None:
        self._memory = memory
        self._whole: Array = paged_zeros(0)
        """The memory that is lent."""
        self._loans = WeakSet[ArenaSlice]()
        self._later: list[tuple[SyncedMemory, str, int]] = []
        """Lent memory that stays open until the forward ends, its message, and the first layer of its list."""

    @classmethod
    def of(cls, memory: BlobMemory) -> Arena:
        """Return the arena of a net; make it if there is none."""
        if not isinstance(memory.arena, cls):
            memory.arena = cls(memory)
        return memory.arena

    def lend(self, first: int, end: int, share: Callable[[], None]) -> ArenaSlice:
        """Return memory for the inner blobs of layers first to end - 1, which run as one list.

        share: lets blobs share memory, or writes contents that stay. A blob that shares memory with a kept blob keeps that
        memory. Contents that share wrote have their own.
        """
        loan, of = ArenaSlice(first), dict[SyncedMemory, _Shared]()
        new = {blob.take_new() for made in self._memory.lives.made[first:end] for blob in made.values()}
        share()
        last = {name: j for j in range(first, end) for name in self._memory.lives.ends[j]}
        for j in range(first, end):
            node = self._memory.nodes[j]
            for name, blob in zip(node.top_names, node.tops, strict=True):
                if blob.data_memory not in new:
                    continue
                one = of.setdefault(blob.data_memory, _Shared([], j, j))
                if name not in one.names:
                    one.names.append(name)
                one.last = max(one.last, last.get(name, end))
                one.is_inner = one.is_inner and self._memory.is_inner(name) and name not in self._memory.asked_for
                loan.blobs.append((blob, blob.data_memory))
        mine = {name for one in of.values() for name in one.names}
        loan.ends += [name for name in last if name not in mine]
        borrowed = {memory: one for memory, one in of.items() if one.is_inner}
        for memory, one in borrowed.items():
            (loan.later if one.last == end else loan.closed).append(
                (memory, GONE.format('" or "'.join(one.names), one.names[0]))
            )
            memory.borrowed = True
        needed = self._needed_by(first)
        loan.before += [(memory, freed_message) for memory, freed_message, _ in self._later if memory not in needed]
        self._place({memory: one for memory, one in borrowed.items() if not memory.on_host}, needed)
        for other in self._loans:  # lists after this one must keep clear of the memory that it leaves to later layers
            other.is_over = other.is_over or other.first >= first
        self._loans.add(loan)
        return loan

    def _needed_by(self, first: int) -> set[SyncedMemory]:
        """Return the memory of blobs that layers from `first` on read, or that are kept."""
        read = {name for names in self._memory.lives.ends[first:] for name in names}
        return self._memory.kept() | {blob.data_memory for name, blob in self._memory.blobs.items() if name in read}

    def _place(self, borrowed: dict[SyncedMemory, _Shared], needed: Collection[SyncedMemory]) -> None:
        """Give these memories places apart from all that are needed at the same time or still open; the largest first."""
        begin, open_ = address_of(self._whole), []
        for memory, *_ in self._later:
            if memory in needed:
                open_.append((memory.host_address(0, "read") - begin, _room(memory)))
        others = [(start, start + size, _ALL) for start, size in open_ if 0 <= start < len(self._whole)]
        placed = others.copy()
        starts: dict[SyncedMemory, int] = {}
        for memory in sorted(borrowed, key=_room, reverse=True):
            one, size, start = borrowed[memory], _room(memory), 0
            for from_, to, other in sorted(placed, key=lambda place: place[0]):
                if other.first <= one.last and one.first <= other.last and from_ < start + size and start < to:
                    start = to
            placed.append((start, start + size, one))
            starts[memory] = start
        end = max((to for _, to, _ in placed), default=0)
        if end > len(self._whole) or all(loan.is_over for loan in self._loans):
            self._whole = paged_zeros(end)
            for loan in self._loans:  # the others move into the new memory in the next forward
                loan.is_over = True
        if get_num_threads() > 1:
            starts = _spread(starts, borrowed, others, end)
        for memory, start in starts.items():
            memory.use_buffer(self._whole[start : start + memory.size * memory.dtype.itemsize])

    def begins(self, loan: ArenaSlice) -> None:
        """Begin a list: close the memory that this and later lists left to later layers in the last forward.

        It also closes memory of earlier lists that has been read: the list may overwrite it.
        """
        for memory, freed_message in loan.before:
            memory.freed_message = freed_message
        for memory, freed_message, first in self._later:
            if first >= loan.first:
                memory.freed_message = freed_message
        self._later = [one for one in self._later if not one[0].freed_message]

    def has_run(self, loan: ArenaSlice) -> None:
        """End a list: open the memory that later layers read, and free the blobs that it was the last to read."""
        for memory, freed_message in loan.later:
            memory.freed_message = ""
            self._later.append((memory, freed_message, loan.first))
        self._memory.free(loan.ends)

    def end(self, last: int) -> None:
        """If `last` is the net's last layer, close the open memory, except memory that kept blobs share."""
        if self._later and last == len(self._memory.nodes) - 1:
            kept = self._memory.kept()
            for memory, freed_message, _ in self._later:
                if memory not in kept:
                    memory.freed_message = freed_message
            self._later.clear()


def _spread(
    starts: dict[SyncedMemory, int], borrowed: dict[SyncedMemory, _Shared], others: list[tuple[int, int, _Shared]], end: int
) -> dict[SyncedMemory, int]:
    """Return the places with the small memories moved, below end, to where none lies for the longest time; the largest first.

    The others keep their places; all do if one has no room. others: places that are taken.
    """
    small = {memory: _room(memory) for memory in starts if 0 < PARTS * _room(memory) <= end}
    there = {memory: start for memory, start in starts.items() if memory not in small}
    rows = [(from_, to, one.first, one.last) for from_, to, one in others]
    rows += [(start, start + _room(memory), borrowed[memory].first, borrowed[memory].last) for memory, start in there.items()]
    table, count = np.zeros((len(rows) + len(small), 4), np.int64), len(rows)
    table[:count] = np.reshape(rows, (count, 4))
    for memory, size in small.items():
        one = borrowed[memory]
        from_, to, first, last = table[:count].T
        apart = np.maximum(one.first - last, first - one.last)  # below 1 if both are needed at the same time
        for places in (np.arange(0, end - size + 1, max(size, _lines(end // PLACES))), to[to + size <= end]):
            lies_there = (from_ < places[:, None] + size) & (places[:, None] < to)
            rests = np.where(lies_there, apart, sys.maxsize).min(axis=1, initial=sys.maxsize)
            if rests.max(initial=0) > 0:
                break
        else:
            return starts
        there[memory] = int(places[rests.argmax()])
        table[count] = there[memory], there[memory] + size, one.first, one.last
        count += 1
    return there


def _room(memory: SyncedMemory) -> int:
    """Return the memory's bytes, rounded up to whole cache lines."""
    return _lines(memory.size * memory.dtype.itemsize)


def _lines(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
