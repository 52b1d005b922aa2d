"""Captures: what a stream gets from begin to end becomes a CUDA graph, which one call of the driver runs again (graph.py).

Nothing runs during a capture, so a wait, and a copy from or to the host, have no place in it: each is refused with
NotCapturedError, and what was captured so far is dropped. Memory comes from a pool of the capture's own: what is freed during
the capture serves it again, and the graph keeps it from all others. Its blocks are those that the stream's earlier passes left
in the device's pool, and new ones, which the driver gives beside the capture.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import DeviceError, Error

from .pool import DeviceMemory, Pool

if TYPE_CHECKING:
    from minicaffe.blob import Access, Blob, MemoryState, SyncedMemory

    from .graph import Graph
    from .stream import Stream

    Before = tuple[MemoryState, DeviceMemory | None, int]

CHECKS = 1024
"""Most checks (see Stream.watch) of a graph, and of a stream between two synchronisations."""

under_way = 0
"""How many captures are under way, in all threads: 0 tells the blobs at once that there is nothing to look for."""


class NotCapturedError(DeviceError):
    """An operation that a capture refuses."""


class _Local(threading.local):
    capture: Capture | None = None


_local = _Local()


def current() -> Capture | None:
    """Return the capture that the calling thread makes."""
    return _local.capture


def refuse(what: str) -> None:
    """Raise NotCapturedError if the calling thread makes a capture, which cannot hold what it does."""
    if _local.capture is not None:
        _local.capture.refuse(what)


def refuse_for_now(what: str) -> None:
    """Refuse the same way what the layer is not to blame for: a later pass may not need it."""
    if _local.capture is not None:
        raise NotCapturedError(f"a CUDA graph cannot hold this: {what}")


@dataclass
class Use:
    """A blob's memory in a capture.

    read: whether its contents from before count; written: whether it has others afterwards. before: its state, its block and
    how many elements that held.
    """

    memory: weakref.ref[SyncedMemory]
    count: int
    read: bool
    written: bool
    before: Before


class Capture:
    """A capture of a stream's work; Device.capturing begins and ends it.

    graph: what came of it. refused: what was refused, "" for nothing. uses: the memory of blobs by id; blobs: those that were
    asked for an address. held: other memory that the graph's launches use. watchers, found: its checks,
    as those of a stream.
    """

    def __init__(self, stream: Stream) -> None:
        self.stream, self.refused = stream, ""
        self.graph: Graph | None = None
        self.pool = Pool(lambda size: stream.device.lend(size, stream), NotCapturedError, exact=stream.device.exact)
        self.uses: dict[int, Use] = {}
        self.blobs: dict[int, Blob] = {}
        self.held: dict[int, DeviceMemory] = {}
        self.watchers: list[Callable[[int], Error]] = []
        self.found: NDArray[Any] = stream.device.pinned(CHECKS, np.int32)
        self._flags = stream.device.allocate(4 * CHECKS, stream)
        self.hold(self._flags)

    def begin(self) -> None:
        """From now on the calling thread's work is captured."""
        global under_way
        _local.capture = self.stream.capture = self
        under_way += 1

    def end(self) -> None:
        """Undo begin."""
        global under_way
        _local.capture = self.stream.capture = None
        under_way -= 1

    def refuse(self, what: str) -> NoReturn:
        """Raise NotCapturedError."""
        self.refused = self.refused or what
        raise NotCapturedError(f"a CUDA graph cannot hold this: {what}")

    def hold(self, memory: DeviceMemory) -> None:
        """Keep memory for the graph, unless it is the capture's own, whose pool keeps it."""
        if not memory.comes_from(self.pool):
            self.held[id(memory)] = memory

    def use(self, memory: SyncedMemory, count: int, access: Access, before: Before) -> None:
        """Note that a launch has the address of the first count elements."""
        use = self.uses.get(id(memory))
        if use is None or use.memory() is not memory:  # the id may be a dead one's
            self.uses[id(memory)] = Use(weakref.ref(memory), count, access != "write", access != "read", before)
        else:
            use.count, use.written = max(use.count, count), use.written or access != "read"

    def undo(self) -> None:
        """Leave blobs' memory as it was before: the launches never ran."""
        for use in self.uses.values():
            memory = use.memory()
            if memory is not None:
                memory.undo(use.before)

    def asked(self, blob: Blob) -> None:
        """Note that blob's address was asked for."""
        self.blobs[id(blob)] = blob

    def watch(self, error: Callable[[int], Error]) -> int:
        """Stream.watch for the graph: each of its launches sets its flags to 0 first."""
        if len(self.watchers) == CHECKS:
            self.refuse(f"more than {CHECKS} checks")
        if not self.watchers:
            self.stream.device.zero(self._flags.address, 4 * CHECKS)
        self.watchers.append(error)
        return self._flags.address + 4 * (len(self.watchers) - 1)

    def fetch_checks(self) -> None:
        """End the graph's work: its flags go to `found`."""
        if self.watchers:
            found = self.found[: len(self.watchers)]
            self.stream.device.driver.memcpy_dtoh_async(found, self._flags.address, self.stream.handle)
