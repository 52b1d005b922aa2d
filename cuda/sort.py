"""Stable sorting on the GPU: the greatest number first, NaN last.

    2048 keys at a time in shared memory (bitonic) -> runs merged in pairs, each launch doubling them

1 + log2(count / 2048) launches; nothing is copied to the host.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.blob import Blob

from .device import launch, launch_blocks

CHUNK = 2048
"""Keys that one block sorts: CHUNK of sort.cu."""


class Sorting:
    """Sorting of numbers of a dtype, by keys; this object holds the memory of the keys and their places."""

    def __init__(self, dtype: DTypeLike) -> None:
        self.dtype = np.dtype(dtype)
        kind = np.uint32 if self.dtype == np.float32 else np.uint64
        self._keys = Blob((), kind), Blob((), kind)
        self._orders = Blob((), np.int32), Blob((), np.int32)

    def keys(self, count: int) -> int:
        """The address for a kernel to write count keys to (sort.cuh: descending_key, or LEFT_OUT)."""
        for blob in (*self._keys, *self._orders):
            blob.reshape(count)
        return self._keys[0].device_data("write")

    def put(self, count: int, scores: int) -> None:
        """Make the keys of count numbers at the address scores."""
        launch("sort.descending_keys", self.dtype, count, count, scores, self.keys(count))

    def run(self) -> tuple[int, int]:
        """Sort the keys: the addresses of the sorted keys and of their places, ints."""
        count = self._keys[0].count
        keys = [blob.device_data("update") for blob in self._keys]
        orders = [blob.device_data("update") for blob in self._orders]
        chunks = -(-count // CHUNK)
        launch_blocks("sort.sort_chunks", self.dtype, (chunks, 1), (512, 1, 1), count, keys[0], orders[0])
        length = CHUNK
        while length < count:
            launch("sort.merge_runs", self.dtype, count, count, length, keys[0], orders[0], keys[1], orders[1])
            keys.reverse()  # merged runs are the next launch's input
            orders.reverse()
            length *= 2
        return keys[0], orders[0]
