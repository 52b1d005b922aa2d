"""Unpooling: each number of a pooled map put back into, or spread over, its window.

    MAX   y = 0 but for x at its mask's place, or without a mask at its window's first pixel (the map's last where past it)
    AVE   y = the sum over the windows that cover a pixel of x / the window's size, clipped to the map
    TILE  the same without the division

Source: HyeonwooNoh/caffe's (DeconvNet's) unpooling_layer.cpp. That adds to what AVE's and TILE's top held before,
divides in TILE's backward only, and gives the gradient of a place to all numbers put there. This one starts at 0, and its
backward is the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .unpooled import launch_put, put, put_gradient

MAX, AVE, TILE = caffe_pb2.UnpoolingParameter.MAX, caffe_pb2.UnpoolingParameter.AVE, caffe_pb2.UnpoolingParameter.TILE


class Unpooling(Layer):
    """The reverse of Pooling with the same kernel and stride (pad must be 0); MAX, AVE or TILE.

    bottom: x (N, C, H, W); with MAX optionally the mask (N, C, H, W), indices h * OW + w as Pooling's second top; AVE and TILE
    do not read it. top: y (N, C, OH, OW): unpool_size, or unpool_h and unpool_w.
    Raises LayerError for sizes that are missing, given twice or below 1, padding, other shapes, and an index that y does not
    have.
    """

    type = "Unpooling"
    num_bottom = (1, 2)
    num_top = 1
    index_bottoms = (1,)
    param_block = ("unpooling_param",)
    weight_names = ()
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.unpooling_param
        self.method = param.unpool
        if self.method == AVE:
            self.copies = (1, 1)
        if self.method == MAX:
            self.uses_kernels = ((put,), (put_gradient,))
        self.kernel, self.stride, self.size = (
            self._pair(*names)
            for names in (
                ("kernel_size", "kernel_h", "kernel_w"),
                ("stride", "stride_h", "stride_w"),
                ("unpool_size", "unpool_h", "unpool_w"),
            )
        )
        if param.pad or param.pad_h or param.pad_w:
            raise self.error("pad must be 0", "unpooling_param.pad")
        self._winner = Blob((0,), np.int32)
        self._first = Blob((0,), self.dtype)

    def _pair(self, both: str, h: str, w: str) -> tuple[int, int]:
        """Return a size given once for both axes, or once for each."""
        param: Any = self.param.unpooling_param
        named = {field.name for field, _ in param.ListFields()}
        if len(named & {h, w}) == 1 or (both in named and h in named):
            raise self.error(f"give {both}, or {h} and {w}", f"unpooling_param.{both}")
        size = (getattr(param, h), getattr(param, w)) if h in named else (getattr(param, both),) * 2
        if min(size) < 1:
            raise self.error(f"{both}, or {h} and {w}, must be given and > 0, got {size}", f"unpooling_param.{both}")
        return size

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != 4 or any(blob.shape != shape for blob in bottom):
            raise self.error(
                f"the bottoms must have one shape of 4 axes (N, C, H, W), got {' and '.join(str(b.shape) for b in bottom)}",
                "bottom",
            )
        top[0].reshape(*shape[:2], *self.size)
        if self.method == MAX and len(bottom) == 1:
            rows, columns = (
                np.minimum(np.arange(n) * step, end - 1) for n, step, end in zip(shape[2:], self.stride, self.size)
            )
            self._first.reshape(shape[2:])
            self._first.data[...] = np.add.outer(rows * self.size[1], columns)

    def _mask(self, bottom: Sequence[Blob]) -> Blob:
        """Return the indices that MAX puts x at."""
        return bottom[1] if len(bottom) == 2 else self._first

    def lengths(self, axis: int, windows: int) -> Array:
        """Return how many pixels of the map each window has on an axis."""
        starts = np.arange(windows) * self.stride[axis]
        return np.clip(self.size[axis] - starts, 0, self.kernel[axis]).astype(self.dtype)

    def _taps(self, axis: int, windows: int) -> Iterator[tuple[slice, slice]]:
        """For each pixel of the kernel, on an axis: the windows that have it on the map, and where it is there."""
        for tap in range(min(self.kernel[axis], self.size[axis])):
            step = self.stride[axis]
            last = min(windows - 1, (self.size[axis] - 1 - tap) // step)
            if last >= 0:
                yield slice(0, last + 1), slice(tap, tap + last * step + 1, step)

    def _windows(self, x: Array) -> Iterator[tuple[tuple[slice, slice], tuple[slice, slice]]]:
        """For each pixel of the kernel: the windows, and the pixels."""
        for rows, to_rows in self._taps(0, x.shape[2]):
            for columns, to_columns in self._taps(1, x.shape[3]):
                yield (rows, columns), (to_rows, to_columns)

    def _divided(self, x: Array) -> Array:
        """Return x / the window's size with AVE, x itself with TILE."""
        if self.method == TILE:
            return x
        sizes = np.outer(*(self.lengths(axis, n) for axis, n in enumerate(x.shape[2:])))
        divided: Array = x / np.maximum(sizes, 1)
        return divided

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        if self.method == MAX:
            put(self, x, self._mask(bottom).data, y)
            return
        y[...] = 0
        shares = self._divided(x)
        for (r, c), (to_r, to_c) in self._windows(x):
            y[:, :, to_r, to_c] += shares[:, :, r, c]

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        dx, dy = bottom[0].diff, top[0].diff
        if self.method == MAX:
            put_gradient(self, dy, self._mask(bottom).data, dx)
            return
        dx[...] = 0
        for (r, c), (to_r, to_c) in self._windows(dx):
            dx[:, :, r, c] += dy[:, :, to_r, to_c]
        dx[...] = self._divided(dx)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.method == MAX:
            launch_put(self, bottom[0], self._mask(bottom), top[0], self._winner, backward=False)
            return
        count, x, y = top[0].count, bottom[0].device_data("read"), top[0].device_data("write")
        self.launch("unpooling.spread", count, count, *self._geometry(bottom[0]), x, y)

    def _geometry(self, x: Blob) -> tuple[int, ...]:
        """Return the kernels' H, W, OH, OW, kernel (no more than the map), stride, and whether to divide."""
        kernel = (min(k, size) for k, size in zip(self.kernel, self.size))
        return *x.shape[2:], *self.size, *kernel, *self.stride, self.method == AVE

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        if self.method == MAX:
            launch_put(self, bottom[0], self._mask(bottom), top[0], self._winner, backward=True)
            return
        count, dy, dx = bottom[0].count, top[0].device_diff("read"), bottom[0].device_diff("write")
        self.launch("unpooling.spread_backward", count, count, *self._geometry(bottom[0]), dy, dx)
