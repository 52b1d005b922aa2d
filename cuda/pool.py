"""Memory that is handed out again without asking the driver.

PyCUDA has pools of its own, but they end the process when a block comes back on a thread, or at a moment, without a
current context, which is where Python's collector may drop a blob. Here giving back only puts the block on a list.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any


class Pool:
    """Blocks by size. allocate(nbytes): a new block, or `full` where there is no room; freed with its last reference.

    exact: sizes are not rounded up, so that a tool that watches memory sees an access beyond the end.
    """

    def __init__(self, allocate: Callable[[int], Any], full: type[Exception], exact: bool = False) -> None:
        self._allocate, self._full, self._exact = allocate, full, exact
        self._lock = threading.Lock()
        self._returned: deque[tuple[int, Any]] = deque()
        self._held: defaultdict[int, list[Any]] = defaultdict(list)
        self.in_use = 0
        """Bytes that are handed out."""

    def take(self, nbytes: int) -> tuple[int, Any]:
        """(its size, a block of at least nbytes); what is held unused is let go before the allocator's exception is raised."""
        size = max(nbytes, 1) if self._exact else block_size(nbytes)
        with self._lock:
            self._sort()
            if self._held[size]:
                block = self._held[size].pop()
            else:
                try:
                    block = self._allocate(size)
                except self._full:
                    self._held.clear()
                    block = self._allocate(size)
            self.in_use += size
        return size, block

    def give(self, size: int, block: Any) -> None:
        """Take a block back, on any thread, at any moment."""
        self._returned.append((size, block))

    @property
    def held(self) -> int:
        """Bytes that wait to be used again."""
        with self._lock:
            self._sort()
            return sum(size * len(blocks) for size, blocks in self._held.items())

    def release(self) -> None:
        """Let go of what is held unused."""
        with self._lock:
            self._sort()
            self._held.clear()

    def _sort(self) -> None:
        while self._returned:
            size, block = self._returned.popleft()
            self._held[size].append(block)
            self.in_use -= size


def block_size(nbytes: int) -> int:
    """nbytes rounded up: to 512 bytes, and beyond 4 KiB to an eighth of the power of two below, so that sizes recur."""
    step = max(512, 1 << max(nbytes.bit_length() - 4, 0))
    return -(-max(nbytes, 1) // step) * step
