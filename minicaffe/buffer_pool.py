"""BufferPool: large arrays that are lent out and, once nobody holds them or a view of them, lent again.

Memory fresh from the system is taken page by page, each zeroed first: for a whole net that costs more than many of its
layers. A pool needs to be told nothing: an array whose only reference is the pool's is free.
"""

from __future__ import annotations

import mmap
import sys
from contextlib import suppress
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

    @property
    def bytes(self) -> int:
        """All bytes that the pool holds or has lent."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def take(self, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """A flat array of size elements with anything in them; the free array that is least too large, or else a new one.

        For a new one the pool lets go of all free ones: never do they add to what is in use and what is wanted.
        """
        wanted = size * dtype.itemsize
        if wanted < LEAST:
            return np.zeros(size, dtype)
        free = [i for i in range(len(self._buffers)) if _references(self._buffers, i) == ALONE]
        fitting = [i for i in free if wanted <= self._buffers[i].nbytes <= WASTE * wanted]
        if fitting:
            buffer = self._buffers[min(fitting, key=lambda i: self._buffers[i].nbytes)]
        else:
            self._buffers = [self._buffers[i] for i in range(len(self._buffers)) if i not in free]
            buffer = _fresh(wanted)
            self._buffers.append(buffer)
        return buffer[:wanted].view(dtype)


def _fresh(size: int) -> NDArray[np.uint8]:
    """So many bytes straight from the system, to which they go back whole: in malloc's heap they would leave holes."""
    memory = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _references(buffers: list[NDArray[np.uint8]], i: int) -> int:
    return sys.getrefcount(buffers[i])


ALONE = _references([_fresh(1)], 0)
"""The references to an array that nobody but its list holds, as this Python counts them."""
