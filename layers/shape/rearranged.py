"""The family of layers whose top has the bottom's numbers, each once, in another order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from minicaffe.blob import Array, Blob, address_of
from minicaffe.layer import Layer

MOST_TABLES = 32
"""Tables of numbers that a layer keeps on the GPU: one for each shape."""

Tables = dict[bytes, Blob]
"""Blobs of int32, by their contents."""


class Rearranged(Layer):
    """y's numbers are those of `arranged(x)`, in order; a layer of the family writes it, and a reshape.

    bottom: x. top: y, with as many numbers.
    """

    num_bottom = 1
    num_top = 1
    weight_names = ()
    copies = (0, 0)

    def arranged(self, x: Array) -> Array:
        """A view of x (contiguous, of the bottom's shape) with y's numbers in y's order; its axes may be others than y's."""
        raise NotImplementedError

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._tables: Tables = {}

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        view = self.arranged(bottom[0].data)
        top[0].data.reshape(view.shape)[...] = view

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        axes, table, start = self._device_table(bottom[0])
        count, x, y = top[0].count, bottom[0].device_data("read") + start, top[0].device_data("write")
        self.launch("permute.gather", count, count, axes, table, x, y)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            view = self.arranged(bottom[0].diff)
            view[...] = top[0].diff.reshape(view.shape)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            axes, table, start = self._device_table(bottom[0])
            count, dy, dx = top[0].count, top[0].device_diff("read"), bottom[0].device_diff("write") + start
            self.launch("permute.scatter", count, count, axes, table, dy, dx)

    def _device_table(self, x: Blob) -> tuple[int, int, int]:
        """How many axes the view has, the address of their lengths and steps, and where in x it begins, in bytes."""
        whole = np.empty(x.shape, np.int8)
        view = self.arranged(whole)
        start = address_of(view) - address_of(whole)
        return view.ndim, on_device(self._tables, [*view.shape, *view.strides]), start * x.dtype.itemsize


def steps_of(shape: tuple[int, ...]) -> list[int]:
    """How far apart neighbours on each axis lie in memory, in numbers."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def on_device(tables: Tables, numbers: ArrayLike) -> int:
    """The address of numbers (K,), as int32, on the GPU; copied there only when none of a layer's tables holds them."""
    array = np.asarray(numbers, np.int32)
    table = tables.get(array.tobytes())
    if table is None:
        if len(tables) == MOST_TABLES:
            tables.clear()
        table = tables[array.tobytes()] = Blob(array.shape, np.int32)
        table.data[...] = array
    return table.device_data("read")
