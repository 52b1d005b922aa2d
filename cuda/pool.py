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

    settle() is called before blocks that came back are handed out again: it waits for whoever still uses them.
    exact: sizes are not rounded up, so that a tool that watches memory sees an access beyond the end.
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
        self._returned: deque[tuple[int, Any]] = deque()
        self._held: defaultdict[int, list[Any]] = defaultdict(list)
        self._taken = 0

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
            self._taken += size
        return size, block

    def give(self, size: int, block: Any) -> None:
        """Take a block back, on any thread, at any moment."""
        self._returned.append((size, block))

    @property
    def in_use(self) -> int:
        """Bytes that are handed out."""
        with self._lock:
            return self._taken - sum(size for size, _ in list(self._returned))

    @property
    def held(self) -> int:
        """Bytes that wait to be used again."""
        with self._lock:
            sorted_in = sum(size * len(blocks) for size, blocks in self._held.items())
            return sorted_in + sum(size for size, _ in list(self._returned))

    def release(self) -> None:
        """Let go of what is held unused."""
        with self._lock:
            self._sort()
            self._held.clear()

    def _sort(self) -> None:
        """Put what came back with what is held. What comes back while settle() waits is left for the next time."""
        if not self._returned:
            return
        came = [self._returned.popleft() for _ in range(len(self._returned))]
        self._settle()
        for size, block in came:
            self._held[size].append(block)
            self._taken -= size


def block_size(nbytes: int) -> int:
    """nbytes rounded up: to 512 bytes, and beyond 4 KiB to an eighth of the power of two below, so that sizes recur."""
    step = max(512, 1 << max(nbytes.bit_length() - 4, 0))
    return -(-max(nbytes, 1) // step) * step
