"""BatchReindex: the items of a batch in another order, some left out, some repeated: y[m] = x[index[m]].

    dx[n] = sum of dy[m] over the m with index[m] = n
Source: Caffe's batch_reindex_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.launches import launch_add, launch_take
from minicaffe.errors import LayerError
from minicaffe.layer import Layer


class BatchReindex(Layer):
    """y[m] = x[index[m]].

    bottom: x (N, ...); index (M), whole numbers in [0, N), as floats. top: y (M, ...).
    Raises LayerError when x is a scalar, index is not one-dimensional, or one of its numbers is no index of x.
    """

    type = "BatchReindex"
    num_bottom = 2
    num_top = 1
    index_bottoms = (1,)
    weight_names = ()
    copies = (0, 3.5)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, index = bottom[0].shape, bottom[1].shape
        if not x:
            raise self.error("the first bottom is a scalar, which has no items", "bottom[0]")
        if len(index) != 1:
            raise self.error(f"the index must be one-dimensional, its shape is {index}", "bottom[1]")
        top[0].reshape(*index, *x[1:])

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        index = self._index(bottom)
        if len(index):
            # checked by _index; mode raise would buffer out
            np.take(bottom[0].data, index, axis=0, out=top[0].data, mode="clip")

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        launch_take(self, bottom[1], "bottom[1]", bottom[0].device_data("read"), bottom[0].shape[0], top[0])

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            dx = bottom[0].diff
            dx[...] = 0
            add_rows(top[0].diff, self._index(bottom), dx)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].zero_diff()
            launch_add(self, bottom[1], top[0], bottom[0].shape[0], bottom[0].device_diff("update"))

    def _index(self, bottom: Sequence[Blob]) -> NDArray[np.intp]:
        return whole_numbers(self, bottom[1].data, bottom[0].shape[0], "bottom[1]")


def whole_numbers(
    layer: Layer, values: Array, end: int, field: str, error: Callable[[float], LayerError] | None = None
) -> NDArray[np.intp]:
    """Return values as integers.

    Raises LayerError, which shows the first one that is not a whole number in [0, end); error: makes it of that number.
    """
    with np.errstate(invalid="ignore"):
        index = values.astype(np.int32)  # what it cannot hold becomes negative, and so a great number without sign
    if values.size and (index.view(np.uint32).max() >= end or not (index.astype(values.dtype) == values).all()):
        good = (values >= 0) & (values < end) & (np.floor(values) == values)
        wrong = float(values[~good][0])
        raise error(wrong) if error else layer.error(f"{wrong:g} is not a whole number in [0, {end})", field)
    return index.astype(np.intp)


def add_rows(rows: Array, index: NDArray[np.intp], total: Array) -> None:
    """total[index[m]] += rows[m] for every m; rows (M, ...), index (M), total (N, ...). Equal indices are added up first."""
    if not len(index):
        return
    order = np.argsort(index, kind="stable")  # equal indices together, in their order; add.at takes them one by one
    starts = np.flatnonzero(np.diff(index[order], prepend=-1))  # no index is -1: the first one starts a run too
    total[index[order[starts]]] += np.add.reduceat(rows[order], starts, axis=0)
