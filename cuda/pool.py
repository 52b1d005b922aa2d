"""Pools of memory: freed blocks are reused without calling the driver.

PyCUDA's pools end the process when a block is freed where no context is current, as happens when Python's garbage collector
drops a blob on another thread. Here freeing only puts the block on a list.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from minicaffe.process_fork import renewed

if TYPE_CHECKING:
    from .device import Device
    from .stream import Stream


class Pool:
    """Blocks by size and by the streams that used them.

    allocate(nbytes) makes a block, or raises `full`; the last reference to a block frees it.

    A returned block goes to the next user on the same stream at once, whatever is still queued there. Before another stream
    gets it, order(that stream, the one that used it) makes the first wait for the second. settle() waits for the device, before
    blocks are freed. exact: sizes are not rounded up, so that a memory checker sees an access past the end.
    """

    def __init__(
        self,
        allocate: Callable[[int], Any],
        full: type[Exception],
        *,
        order: Callable[[Any, Any], None] = lambda stream, other: None,
        settle: Callable[[], None] = lambda: None,
        exact: bool = False,
    ) -> None:
        self._allocate, self._full, self._order, self._settle, self._exact = allocate, full, order, settle, exact
        self._lock = renewed(threading.Lock())
        self._returned: deque[tuple[int, Any, tuple[Any, ...]]] = deque()  # given back, but not yet in _held
        self._held: defaultdict[int, dict[tuple[Any, ...], list[Any]]] = defaultdict(dict)  # by size, then by streams
        self._taken = 0

    def take(self, nbytes: int, stream: Any = None) -> tuple[int, Any]:
        """Return (its size, a block of at least nbytes) for a stream. Unused blocks are freed before `full` is raised."""
        size = max(nbytes, 1) if self._exact else block_size(nbytes)
        with self._lock:
            self._sort()
            block = self._from_held(size, stream)
            if block is None:
                try:
                    block = self._allocate(size)
                except self._full:
                    self._free()
                    block = self._allocate(size)
            self._taken += size
        return size, block

    def _from_held(self, size: int, stream: Any) -> Any:
        by_streams = self._held[size]
        users = (stream,) if (stream,) in by_streams else next(iter(by_streams), None)
        if users is None:
            return None
        block = by_streams[users].pop()
        if not by_streams[users]:
            del by_streams[users]
        for user in users:
            if user is not stream:
                self._order(stream, user)
        return block

    def lend(self, size: int, stream: Any) -> Lent:
        """Return a block of this size for another pool: one that only stream used, or a new one.

        The former needs no event. Raises `full`; no block is freed.
        """
        with self._lock:
            self._sort()
            block = self._from_held(size, stream) if (stream,) in self._held[size] else self._allocate(size)
            self._taken += size
        return Lent(self, size, block, (stream,))

    def give(self, size: int, block: Any, users: tuple[Any, ...] = ()) -> None:
        """Return a block to the pool, on any thread, at any moment. users: the streams that used it, and may still use it."""
        if isinstance(block, Lent):
            block.used_by(users)
        # Take no lock: garbage collection inside take() may call this on the thread that holds it.
        self._returned.append((size, block, users))

    @property
    def in_use(self) -> int:
        """Return the bytes in use."""
        with self._lock:
            return self._taken - sum(size for size, *_ in list(self._returned))  # a copy, because give() takes no lock

    @property
    def held(self) -> int:
        """Return the bytes that are free for the next use."""
        with self._lock:
            sorted_in = sum(size * len(blocks) for size, by_streams in self._held.items() for blocks in by_streams.values())
            return sorted_in + sum(size for size, *_ in list(self._returned))

    def release(self) -> None:
        """Free the unused blocks."""
        with self._lock:
            self._sort()
            self._free()

    def _free(self) -> None:
        if self._held:
            self._settle()
        self._held.clear()  # PyCUDA's objects free the memory when they are dropped

    def _sort(self) -> None:
        """Sort the returned blocks into the unused ones."""
        while self._returned:
            size, block, users = self._returned.popleft()
            self._held[size].setdefault(users, []).append(block)
            self._taken -= size


class Lent:
    """A block lent to another pool. It returns to its own pool with this object."""

    def __init__(self, pool: Pool, size: int, block: Any, users: tuple[Any, ...]) -> None:
        self._pool, self._size, self._block, self._users = pool, size, block, users

    def __int__(self) -> int:
        return int(self._block)

    def used_by(self, users: tuple[Any, ...]) -> None:
        """Record further streams that use it."""
        self._users = tuple(dict.fromkeys((*self._users, *users)))

    def __del__(self) -> None:
        self._pool.give(self._size, self._block, self._users)


def block_size(nbytes: int) -> int:
    """Return nbytes rounded up to 512 bytes, or beyond 4 KiB to an eighth of the power of two below.

    Sizes then recur.
    """
    step = max(512, 1 << max(nbytes.bit_length() - 4, 0))
    return -(-max(nbytes, 1) // step) * step


class DeviceMemory:
    """A block of a device's memory, which returns to its pool with this object. nbytes: its size, as the pool rounded it.

    users: the driver's streams that use it; the first one wrote it last, and the others wait for that.
    """

    __slots__ = ("_block", "_pool", "address", "device", "nbytes", "users")

    def __init__(self, device: Device, pool: Pool, nbytes: int, stream: Any) -> None:
        self.device, self._pool = device, pool
        self.users: tuple[Any, ...] = (stream,)
        self.nbytes, self._block = pool.take(nbytes, stream)
        self.address = int(self._block)

    def comes_from(self, pool: Pool) -> bool:
        """Return whether the block returns to this pool."""
        return self._pool is pool

    def used_only_by(self, stream: Stream) -> bool:
        """Return whether no other stream uses the block."""
        users = self.users
        return users[0] is stream.handle and len(users) == 1

    def used_by(self, stream: Any, *, only_read: bool) -> None:
        """Let the driver's stream wait for other users of the memory: the last writer, or before a write all of them.

        The memory's device must be current.
        """
        users = self.users
        if not only_read:
            for other in users:
                if other is not stream:
                    self.device.order(stream, other)
            self.users = (stream,)
        elif stream not in users:
            self.device.order(stream, users[0])
            self.users = (*users, stream)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._pool.give(self.nbytes, self._block, self.users)


class PinnedMemory:
    """A block of page-locked host memory for np.asarray, which returns to its pool with the last array that uses it."""

    def __init__(self, pool: Pool, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._pool = pool
        self._size, self._block = pool.take(math.prod(shape) * dtype.itemsize)
        self.__array_interface__ = {**self._block.__array_interface__, "shape": shape, "typestr": dtype.str}

    def __del__(self) -> None:
        if hasattr(self, "_block"):
            self._pool.give(self._size, self._block)
