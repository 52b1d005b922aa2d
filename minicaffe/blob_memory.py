"""BlobMemory: a net's inner blobs are freed once their last reader has run. Net(..., keep="outputs").

Kept: the weights, the tops of layers without bottoms (inputs, data), the net's outputs, and blobs that the caller of forward
names. Reading a freed blob raises Error.

Of layers that run as lists of jobs (execution_plan.py) all inner blobs lie in one piece of memory, which stays from forward to
forward: those that are not needed at the same time lie in the same place (Loan). What is written there again and again does
not leave the cache: ShuffleNet takes 0.8 of the time that it takes where each blob has its own, SqueezeNet and DenseNet 0.9.

But what several threads have just read is in the caches of all, and who writes there first waits until it is in one: depthwise
convolutions of 14x14 maps take 1.5 times as long. So with several threads small blobs lie where none has lain for the longest
time. MobileNet and SqueezeNet take 0.97 of the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakSet

import numpy as np

from .blob import ALIGNMENT, Array, Blob, SyncedMemory, paged_zeros
from .loops import address_of
from .node import Node
from .threads import get_num_threads

PARTS, PLACES = 4, 64
"""A blob that is such a part of the memory at most, a quarter, looks for such a place among so many: larger ones leave none."""

GONE = (
    'the blob "{}" was freed after its last reader had run: make the net with keep="all", or name it in forward (blobs=["{}"])'
)


@dataclass(frozen=True)
class Lifetimes:
    """For each node of a net: the blobs that it makes, by name, and the names of those that it is the last to read.

    Without kept blobs: those in keep, and the tops of layers without bottoms.
    """

    made: list[dict[str, Blob]]
    ends: list[list[str]]


def lifetimes(nodes: Sequence[Node], keep: Iterable[str]) -> Lifetimes:
    """The lifetimes of these nodes' inner blobs. keep: names of blobs that are kept."""
    kept = {*keep, *(name for node in nodes if not node.bottoms for name in node.top_names)}
    made: list[dict[str, Blob]] = []
    last: dict[str, int] = {}
    for i, node in enumerate(nodes):
        tops = zip(node.top_names, node.tops, strict=True)
        made.append({name: blob for name, blob in tops if name not in kept and name not in node.bottom_names})
        # made[i] too: a top that nobody reads ends with its own layer.
        last.update((name, i) for name in (*node.bottom_names, *made[i]) if name not in kept)
    ends: list[list[str]] = [[] for _ in nodes]
    for name, i in last.items():
        ends[i].append(name)
    return Lifetimes(made, ends)


@dataclass
class _Shared:
    """Memory that one inner blob has, or several share: their names, the first layer that needs it, and the last one."""

    names: list[str]
    first: int
    last: int
    is_inner: bool = True


_ALL = _Shared([], 0, sys.maxsize)
"""What all layers need."""


@dataclass(eq=False)
class Loan:
    """The memory of the inner blobs of some layers, which run as one list.

    Only in `opened` may it be used by others than jobs, which know where it lies. later: what layers behind the list read; open
    until the forward has ended. ends: blobs of other memory that the list is the last to read. first: the list's first layer.
    before: what earlier lists left to layers that have run by now. is_over: whether what lies beside it is others' by now.
    """

    first: int
    before: list[tuple[SyncedMemory, str]] = field(default_factory=list)
    is_over: bool = False
    ends: list[str] = field(default_factory=list)
    blobs: list[tuple[Blob, SyncedMemory]] = field(default_factory=list)
    closed: list[tuple[SyncedMemory, str]] = field(default_factory=list)
    """Each memory, and what is said of it."""
    later: list[tuple[SyncedMemory, str]] = field(default_factory=list)

    def holds(self) -> bool:
        """Whether the blobs still have this memory, and may use it."""
        return not self.is_over and all(blob.data_memory is memory for blob, memory in self.blobs)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """In the block the memory may be used."""
        for memory, _ in (*self.closed, *self.later):
            memory.gone = ""
        try:
            yield
        finally:
            for memory, gone in self.closed:
                memory.gone = gone


class BlobMemory:
    """Frees a net's inner blobs. keep: names of blobs that are kept."""

    def __init__(self, nodes: Sequence[Node], keep: Iterable[str]) -> None:
        self._nodes = nodes
        self._whole: Array = paged_zeros(0)
        """What is lent."""
        self._loans = WeakSet[Loan]()
        self._later: list[tuple[SyncedMemory, str, int]] = []
        """Lent memory that is open, until the forward has ended, and the first layer of its list."""
        self.asked_for: Collection[str] = ()
        """Names of blobs to keep in one forward."""
        self.stay: Collection[str] = ()
        """Names of blobs whose memory stays where it is, for CUDA graphs."""
        self._lives = lifetimes(nodes, keep)
        self._blobs = {name: blob for made in self._lives.made for name, blob in made.items()}
        tops = {name: blob for node in nodes for name, blob in zip(node.top_names, node.tops, strict=True)}
        self._others = [blob for name, blob in tops.items() if name not in self._blobs]

    def before(self, i: int) -> None:
        """Layer i runs next: its tops may allocate memory again."""
        for blob in self._lives.made[i].values():
            blob.take_again()

    def is_inner(self, name: str) -> bool:
        """Whether a forward frees the blob, if it is not asked for."""
        return name in self._blobs and name not in self.stay

    def after(self, i: int) -> None:
        """Layer i has run."""
        self._free(self._lives.ends[i])

    def _free(self, names: Sequence[str]) -> None:
        inner = [name for name in names if name in self._blobs and not self._blobs[name].data_memory.lent]
        kept = self._kept() if inner else ()
        for name in inner:
            if (blob := self._blobs[name]).data_memory not in kept:
                # Only this blob's reference to the memory: Split's and Reshape's tops, which share it, keep it.
                blob.give_back(GONE.format(name, name))

    def _kept(self) -> set[SyncedMemory]:
        """The memory of blobs that stay."""
        named = (self._blobs[name] for name in {*self.asked_for, *self.stay} if name in self._blobs)
        return {blob.data_memory for blob in (*self._others, *named)}

    def asked_for_inner(self) -> frozenset[str]:
        """The inner blobs that the present forward keeps."""
        return frozenset(name for name in self.asked_for if name in self._blobs)

    def lend(self, first: int, end: int, share: Callable[[], None]) -> Loan:
        """Memory for the inner blobs that layers first to end - 1 make, which run as one list. share: what has blobs share
        memory, or writes what stays there.

        A blob of which a kept one has the memory keeps it. What share wrote has its own.
        """
        loan, of = Loan(first), dict[SyncedMemory, _Shared]()
        new = {blob.take_new() for made in self._lives.made[first:end] for blob in made.values()}
        share()
        last = {name: j for j in range(first, end) for name in self._lives.ends[j]}
        for j in range(first, end):
            node = self._nodes[j]
            for name, blob in zip(node.top_names, node.tops, strict=True):
                if blob.data_memory not in new:
                    continue
                one = of.setdefault(blob.data_memory, _Shared([], j, j))
                if name not in one.names:
                    one.names.append(name)
                one.last = max(one.last, last.get(name, end))
                one.is_inner = one.is_inner and self.is_inner(name) and name not in self.asked_for
                loan.blobs.append((blob, blob.data_memory))
        mine = {name for one in of.values() for name in one.names}
        loan.ends += [name for name in last if name not in mine]
        lent = {memory: one for memory, one in of.items() if one.is_inner}
        for memory, one in lent.items():
            (loan.later if one.last == end else loan.closed).append(
                (memory, GONE.format('" or "'.join(one.names), one.names[0]))
            )
            memory.lent = True
        needed = self._needed_by(first)
        loan.before += [(memory, gone) for memory, gone, _ in self._later if memory not in needed]
        self._place({memory: one for memory, one in lent.items() if not memory.on_host}, needed)
        for other in self._loans:  # of lists behind this one: they keep clear of what it leaves to later layers
            other.is_over = other.is_over or other.first >= first
        self._loans.add(loan)
        return loan

    def _needed_by(self, first: int) -> set[SyncedMemory]:
        """The memory of blobs that layers from this one on read, or that are kept."""
        read = {name for names in self._lives.ends[first:] for name in names}
        return self._kept() | {blob.data_memory for name, blob in self._blobs.items() if name in read}

    def _place(self, lent: dict[SyncedMemory, _Shared], needed: Collection[SyncedMemory]) -> None:
        """Have these memories where none lies that is needed at the same time, nor any that is open and needed; the largest
        first."""
        begin, open_ = address_of(self._whole), []
        for memory, *_ in self._later:
            if memory in needed:
                open_.append((memory.host_address(0, "read") - begin, _room(memory)))
        others = [(start, start + size, _ALL) for start, size in open_ if 0 <= start < len(self._whole)]
        placed = others.copy()
        starts: dict[SyncedMemory, int] = {}
        for memory in sorted(lent, key=_room, reverse=True):
            one, size, start = lent[memory], _room(memory), 0
            for from_, to, other in sorted(placed, key=lambda place: place[0]):
                if other.first <= one.last and one.first <= other.last and from_ < start + size and start < to:
                    start = to
            placed.append((start, start + size, one))
            starts[memory] = start
        end = max((to for _, to, _ in placed), default=0)
        if end > len(self._whole) or all(loan.is_over for loan in self._loans):
            self._whole = paged_zeros(end)
            for loan in self._loans:  # they move into it in the next forward
                loan.is_over = True
        if get_num_threads() > 1:
            starts = _spread(starts, lent, others, end)
        for memory, start in starts.items():
            memory.lie_in(self._whole[start : start + memory.size * memory.dtype.itemsize])

    def begins(self, loan: Loan) -> None:
        """The list is about to run: what it and lists behind it have left to later layers is old now, and it may write where
        others' lies that has been read."""
        for memory, gone in loan.before:
            memory.gone = gone
        for memory, gone, first in self._later:
            if first >= loan.first:
                memory.gone = gone
        self._later = [one for one in self._later if not one[0].gone]

    def has_run(self, loan: Loan) -> None:
        """The list has run."""
        for memory, gone in loan.later:
            memory.gone = ""
            self._later.append((memory, gone, loan.first))
        self._free(loan.ends)

    def end(self, last: int) -> None:
        """The forward has ended with this layer: close what was lent, but what kept blobs share, or layers behind may read."""
        if self._later and last == len(self._nodes) - 1:
            kept = self._kept()
            for memory, gone, _ in self._later:
                if memory not in kept:
                    memory.gone = gone
            self._later.clear()


def _spread(
    starts: dict[SyncedMemory, int], lent: dict[SyncedMemory, _Shared], others: list[tuple[int, int, _Shared]], end: int
) -> dict[SyncedMemory, int]:
    """The same places, below end, of all memories but small ones: these lie where none has lain and will lie for the longest
    time, the largest first. If that leaves no room for one, all stay where they are. others: places that are taken."""
    small = {memory: _room(memory) for memory in starts if 0 < PARTS * _room(memory) <= end}
    there = {memory: start for memory, start in starts.items() if memory not in small}
    rows = [(from_, to, one.first, one.last) for from_, to, one in others]
    rows += [(start, start + _room(memory), lent[memory].first, lent[memory].last) for memory, start in there.items()]
    table, count = np.zeros((len(rows) + len(small), 4), np.int64), len(rows)
    table[:count] = np.reshape(rows, (count, 4))
    for memory, size in small.items():
        one = lent[memory]
        from_, to, first, last = table[:count].T
        apart = np.maximum(one.first - last, first - one.last)  # below 1: both are needed at the same time
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
    """Its bytes, in whole lines of the cache."""
    return _lines(memory.size * memory.dtype.itemsize)


def _lines(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
