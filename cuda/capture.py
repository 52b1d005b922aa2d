"""Captures: a stream's work between begin and end becomes a CUDA graph, which one driver call runs again (graph.py).

Nothing runs during a capture, so a wait, and a copy from or to the host, have no place in it. Each is refused with
NotCapturedError, and the capture is dropped. Memory comes from the capture's own pool: blocks freed during the capture are
reused in it, and the graph keeps them from all others. Its blocks come from the device's pool, if the stream's earlier passes
left them there, or new from the driver, which allocates them outside the capture.
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
"""The number of captures under way in all threads. With 0, blobs need no further check."""


class NotCapturedError(DeviceError):
    """An operation that a capture refuses."""


class _Local(threading.local):
    capture: Capture | None = None


_local = _Local()


def current() -> Capture | None:
    """Return the calling thread's capture, or None."""
    return _local.capture


def refuse(what: str) -> None:
    """Raise NotCapturedError if the calling thread makes a capture, which cannot hold this operation."""
    if _local.capture is not None:
        _local.capture.refuse(what)


def refuse_for_now(what: str) -> None:
    """Refuse in the same way an operation that the layer does not cause: a later pass may not need it."""
    if _local.capture is not None:
        raise NotCapturedError(f"a CUDA graph cannot hold this: {what}")


@dataclass
class Use:
    """A blob's memory in a capture.

    read: whether its contents from before are read; written: whether it is written. before: its state, its block and that
    block's number of elements.
    """

    memory: weakref.ref[SyncedMemory]
    count: int
    read: bool
    written: bool
    before: Before


class Capture:
    """A capture of a stream's work. Device.capturing begins and ends it.

    graph: the result. refused: the refused operation, or "". uses: the memory of blobs by id; blobs: those whose address was
    requested. held: other memory that the graph's launches use. watchers, found: its checks, like a stream's.
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
        """Begin to capture the calling thread's work."""
        global under_way
        _local.capture = self.stream.capture = self
        under_way += 1

    def end(self) -> None:
        """Undo begin."""
        global under_way
        _local.capture = self.stream.capture = None
        under_way -= 1

    def refuse(self, what: str) -> NoReturn:
        """Raise NotCapturedError, and record the reason."""
        self.refused = self.refused or what
        raise NotCapturedError(f"a CUDA graph cannot hold this: {what}")

    def hold(self, memory: DeviceMemory) -> None:
        """Keep memory for the graph, unless it is from the capture's own pool, which keeps it."""
        if not memory.comes_from(self.pool):
            self.held[id(memory)] = memory

    def use(self, memory: SyncedMemory, count: int, access: Access, before: Before) -> None:
        """Record that a launch uses the memory's first `count` elements."""
        use = self.uses.get(id(memory))
        if use is None or use.memory() is not memory:  # a freed memory may have had the same id
            self.uses[id(memory)] = Use(weakref.ref(memory), count, access != "write", access != "read", before)
        else:
            use.count, use.written = max(use.count, count), use.written or access != "read"

    def undo(self) -> None:
        """Restore the state of the blobs' memory from before the capture: its launches never ran."""
        for use in self.uses.values():
            memory = use.memory()
            if memory is not None:
                memory.undo(use.before)

    def asked(self, blob: Blob) -> None:
        """Record that blob's address was requested."""
        self.blobs[id(blob)] = blob

    def watch(self, error: Callable[[int], Error]) -> int:
        """Do Stream.watch for the graph. Each of its launches first sets its flags to 0."""
        if len(self.watchers) == CHECKS:
            self.refuse(f"more than {CHECKS} checks")
        if not self.watchers:
            self.stream.device.zero(self._flags.address, 4 * CHECKS)
        self.watchers.append(error)
        return self._flags.address + 4 * (len(self.watchers) - 1)

    def fetch_checks(self) -> None:
        """Copy the flags to `found`, as the graph's last work."""
        if self.watchers:
            found = self.found[: len(self.watchers)]
            self.stream.device.driver.memcpy_dtoh_async(found, self._flags.address, self.stream.handle)
