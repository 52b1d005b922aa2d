"""Pools of memory: freed blocks are used again without asking the driver.

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

if TYPE_CHECKING:
    from .device import Device


class Pool:
    """Blocks by size. allocate(nbytes) makes a block, or raises `full`; the last reference to a block frees it.

    settle() is called before returned blocks are used again: it waits for whoever still uses them.
    exact: sizes are not rounded up, so that a memory checker sees an access past the end.
    """

    def __init__(
        self,
        allocate: Callable[[int], Any],
        full: type[Exception],
        settle: Callable[[], None] = lambda: None,
        exact: bool = False,
    ) -> None:
        self._allocate, self._full, self._settle, self._exact = allocate, full, settle, exact
        self._lock = threading.Lock()
        self._returned: deque[tuple[int, Any]] = deque()  # given back, perhaps still used by kernels
        self._held: defaultdict[int, list[Any]] = defaultdict(list)  # free for the next use, by size
        self._taken = 0

    def take(self, nbytes: int) -> tuple[int, Any]:
        """(its size, a block of at least nbytes). The unused blocks are freed before `full` is raised."""
        size = max(nbytes, 1) if self._exact else block_size(nbytes)
        with self._lock:
            self._sort()
            if self._held[size]:
                block = self._held[size].pop()
            else:
                try:
                    block = self._allocate(size)
                except self._full:
                    self._held.clear()  # dropping PyCUDA's objects frees them
                    block = self._allocate(size)
            self._taken += size
        return size, block

    def give(self, size: int, block: Any) -> None:
        """Take a block back, on any thread, at any moment."""
        # no lock: a collection of garbage inside take() may come here on the thread that holds it
        self._returned.append((size, block))

    @property
    def in_use(self) -> int:
        """Bytes that are in use."""
        with self._lock:
            return self._taken - sum(size for size, _ in list(self._returned))  # a copy: give() takes no lock

    @property
    def held(self) -> int:
        """Bytes that are free for the next use."""
        with self._lock:
            sorted_in = sum(size * len(blocks) for size, blocks in self._held.items())
            return sorted_in + sum(size for size, _ in list(self._returned))

    def release(self) -> None:
        """Free the unused blocks."""
        with self._lock:
            self._sort()
            self._held.clear()

    def _sort(self) -> None:
        """Put the returned blocks among the unused ones. Blocks that return while settle() waits are left for the next time."""
        if not self._returned:
            return
        returned = [self._returned.popleft() for _ in range(len(self._returned))]  # before settle(): later ones are not covered
        self._settle()
        for size, block in returned:
            self._held[size].append(block)
            self._taken -= size


def block_size(nbytes: int) -> int:
    """nbytes rounded up: to 512 bytes, and beyond 4 KiB to an eighth of the power of two below, so that sizes recur."""
    step = max(512, 1 << max(nbytes.bit_length() - 4, 0))
    return -(-max(nbytes, 1) // step) * step


class DeviceMemory:
    """A block of a device's memory, which returns to its pool with this object. nbytes: its size, as the pool rounded it."""

    __slots__ = ("_block", "_pool", "address", "device", "nbytes")

    def __init__(self, device: Device, pool: Pool, nbytes: int) -> None:
        self.device, self._pool = device, pool
        self.nbytes, self._block = pool.take(nbytes)
        self.address = int(self._block)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._pool.give(self.nbytes, self._block)


class PinnedMemory:
    """A block of page-locked host memory for np.asarray, which returns to its pool with the last array that uses it."""

    def __init__(self, pool: Pool, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._pool = pool
        self._size, self._block = pool.take(math.prod(shape) * dtype.itemsize)
        self.__array_interface__ = {**self._block.__array_interface__, "shape": shape, "typestr": dtype.str}

    def __del__(self) -> None:
        if hasattr(self, "_block"):
            self._pool.give(self._size, self._block)
