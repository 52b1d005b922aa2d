"""BufferPool: large arrays that are lent out and, once nobody holds them or a view of them, lent again.

Memory fresh from the system is taken page by page, each zeroed first: for a whole net that costs more than many of its
layers. A pool needs to be told nothing: an array whose only reference is the pool's is free.
"""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

LEAST = 1 << 20
"""Bytes from which on an array comes from the pool; smaller ones are quickly had from the system."""

WASTE = 1.25
"""How many times too large an array may be that is lent."""


class BufferPool:
    """Arrays, each lent to one at a time."""

    def __init__(self) -> None:
        self._buffers: list[NDArray[np.uint8]] = []
        self._most = 0
        """The most bytes that were lent at a time."""

    @property
    def bytes(self) -> int:
        """All bytes that the pool holds or has lent."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def take(self, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """A flat array of size elements with anything in them; the free array that is least too large, or else a new one.

        For a new one the pool lets go of free ones, so that it never holds more than was once in use at a time.
        """
        wanted = size * dtype.itemsize
        if wanted < LEAST:
            return np.zeros(size, dtype)
        free = [i for i in range(len(self._buffers)) if _references(self._buffers, i) == ALONE]
        idle = sum(self._buffers[i].nbytes for i in free)
        self._most = max(self._most, self.bytes - idle + wanted)
        fitting = [i for i in free if wanted <= self._buffers[i].nbytes <= WASTE * wanted]
        if fitting:
            buffer = self._buffers[min(fitting, key=lambda i: self._buffers[i].nbytes)]
        else:
            self._let_go(free, wanted)
            buffer = _fresh(wanted)
            self._buffers.append(buffer)
        return buffer[:wanted].view(dtype)

    def _let_go(self, free: list[int], wanted: int) -> None:
        """Drop free arrays, the largest first, until there is room for so many bytes."""
        excess = self.bytes + wanted - self._most
        dropped: set[int] = set()
        for i in sorted(free, key=lambda i: -self._buffers[i].nbytes):
            if excess > 0:
                dropped.add(i)
                excess -= self._buffers[i].nbytes
        self._buffers = [buffer for i, buffer in enumerate(self._buffers) if i not in dropped]


def _fresh(size: int) -> NDArray[np.uint8]:
    """So many bytes straight from the system, to which they go back whole: in malloc's heap they would leave holes."""
    return np.frombuffer(mmap.mmap(-1, size), np.uint8)


def _references(buffers: list[NDArray[np.uint8]], i: int) -> int:
    return sys.getrefcount(buffers[i])


ALONE = _references([_fresh(1)], 0)
"""The references to an array that nobody but its list holds, as this Python counts them."""
