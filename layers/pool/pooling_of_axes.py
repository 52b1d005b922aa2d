"""Pooling of maps of any number of axes, with dilation, as naibaf7's Caffe has it.

    extent = dilation (kernel - 1) + 1
    pooled = ceil((size + 2 pad - extent) / stride) + 1 on each axis (floor with round_mode: FLOOR or ceil_mode: false), less 1
             on a padded axis whose last window would start past size + pad - 1
    taps of window i: i * stride - pad + dilation * [0, kernel)

MAX takes the largest tap on the map; AVE divides the sum of these taps by the number of taps below size + pad, on all axes.
Source: naibaf7's pooling_layer.cpp, and libdnn_pool.cpp for the divisor, because the code for the CPU ignores the dilation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.layer import Count, Layer
from minicaffe.layers.conv.window import Index, Window, overlap, read_window
from minicaffe.proto import caffe_pb2
from minicaffe.reads import Axis, whole

from .pooling_windows import LOWEST, rounds_down

Param = caffe_pb2.PoolingParameter
MAX, AVE = Param.MAX, Param.AVE


class PoolingOfAxes(Layer):
    """Windows of one pixel or more on each axis after the channels, `dilation` pixels apart, each giving one number.

    bottom: x (..., C, *map). top: y (..., C, *pooled); with MAX optionally the mask, the flat index in the map of the first
    maximum. pooling_param: kernel_size, stride, pad and dilation once, or once for each axis; axis: that of C.
    Raises LayerError for another method than MAX and AVE, for fields of 2-d Pooling alone, when sizes are given twice or out of
    range, and when no window fits.
    """

    type = "Pooling"
    num_bottom = 1
    num_top: ClassVar[Count] = (1, 2)
    param_block = ("pooling_param",)
    weight_names = ()
    lowest: ClassVar[float] = LOWEST
    """The maximum of a window without a number above it."""

    @staticmethod
    def is_meant(param: Param) -> bool:
        """Return whether a pooling_param has what 2-d Pooling lacks."""
        several = param.kernel_sizes or param.strides or param.pads
        return param.HasField("axis") or bool(several) or any(each != 1 for each in param.dilation)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.pooling_param
        where = "with axis, dilation, or several values of kernel_size, stride or pad"
        if param.pool not in (MAX, AVE):
            raise self.error(f"{where} pool must be MAX or AVE, got {Param.PoolMethod.Name(param.pool)}", "pooling_param.pool")
        for field in ("pad_type", "pad_l", "pad_r", "pad_t", "pad_b", "avg_include_pad"):
            if param.HasField(field):
                raise self.error(f"{field} is not built {where}: delete it", f"pooling_param.{field}")
        if len(top) > 1 and param.pool != MAX:
            raise self.error("only MAX pooling has a second top, the mask", "top[1]")
        self.maximum = param.pool == MAX
        self.axis = self.axis_of(param.axis, bottom[0], "pooling_param.axis")
        self.spatial_axes = len(bottom[0].shape) - self.axis - 1
        if self.spatial_axes < 1:
            shape = bottom[0].shape
            raise self.error(f"no axis follows the channels, axis {self.axis} of shape {shape}", "pooling_param.axis")
        self.floor = rounds_down(self, param)
        self._window: Window | None = None if param.global_pooling else read_window(self, self.spatial_axes)
        if self._window is None:
            for given, _ in param.ListFields():
                if given.name.startswith(("kernel", "stride", "pad", "dilation")):
                    field = f"pooling_param.{given.name}"
                    raise self.error(f"global_pooling takes the whole map: delete {given.name}", field)
        elif any(pad and pad >= extent for pad, extent in zip(self._window.pad, self._window.extent)):
            pad, extent = self._window.pad, self._window.extent
            raise self.error(f"pad {pad} must be smaller than the dilated kernel {extent}", "pooling_param.pad")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        self.spatial = spatial = shape[self.axis + 1 :]
        if len(spatial) != self.spatial_axes:
            wrong = f"was set up for {self.spatial_axes} axes after the channels, the bottom's shape is now {shape}"
            raise self.error(wrong, "bottom[0]")
        one = (1,) * len(spatial)
        self.window = self._window or Window(spatial, one, (0,) * len(spatial), one)
        self.pooled = tuple(self._pooled(i) for i in range(len(spatial)))
        if min(self.pooled) < 1 or min(spatial) < 1:
            sizes = f"{self.window.kernel} (with dilation {self.window.extent})"
            wrong = f"no window of {sizes} fits a map of {spatial} with pad {self.window.pad}"
            raise self.error(wrong, "pooling_param")
        for blob in top:
            blob.reshape(*shape[: self.axis + 1], *self.pooled)

    def _pooled(self, i: int) -> int:
        size, stride, pad = self.spatial[i], self.window.stride[i], self.window.pad[i]
        room = size + 2 * pad - self.window.extent[i]
        count = (room // stride if self.floor else -(-room // stride)) + 1
        return count - (pad > 0 and (count - 1) * stride >= size + pad)

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        if self.axis != 1:
            return None
        return self.window.reads() if self._window else tuple(whole(size) for size in self.spatial)

    def _taps(self) -> Iterator[tuple[Index, Index]]:
        """Yield for each tap, in row-major order, the windows in which it lies on the map, and its pixels, as indices."""
        window, on_axes = self.window, []
        sizes = zip(self.spatial, self.pooled, window.kernel, window.stride, window.pad, window.dilation)
        for size, pooled, kernel, stride, pad, dilation in sizes:
            taps = range(min(kernel, -(-(size + pad) // dilation)))  # later taps lie past the map in all windows
            on_axes.append([overlap(tap * dilation - pad, stride, pooled, size) for tap in taps])
        for tap in product(*on_axes):
            windows, pixels = zip(*tap)
            yield (..., *windows), (..., *pixels)

    def divisors(self) -> Array:
        """Return the number of each window's taps by which AVE divides: (*pooled)."""
        window, counts = self.window, []
        sizes = zip(self.spatial, self.pooled, window.kernel, window.stride, window.pad, window.dilation)
        for size, pooled, kernel, stride, pad, dilation in sizes:
            room = size + 2 * pad - np.arange(pooled) * stride  # from the window's start to the end of the padding
            counts.append(np.clip(-(-room // dilation), 0, kernel).astype(self.dtype))
        return np.asarray(reduce(np.multiply.outer, counts))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        if len(top) > 1:
            top[1].data[...] = self.first_maximum(x, y)
            return
        self._reduce(x, y)
        if not self.maximum:
            with np.errstate(divide="ignore", invalid="ignore"):  # as in 2-d, an empty window gives NaN
                y /= self.divisors()

    def _reduce(self, x: Array, y: Array) -> None:
        """Write each window's maximum, or its sum, to y."""
        y[...] = self.lowest if self.maximum else 0
        for windows, pixels in self._taps():
            part = y[windows]
            (np.fmax if self.maximum else np.add)(part, x[pixels], out=part)

    def first_maximum(self, x: Array, y: Array) -> NDArray[np.signedinteger[Any]]:
        """Write the maxima to y; return their flat indices in the map, -1 if nothing is above lowest."""
        index = np.full(y.shape, -1, np.intp)
        places = np.arange(math.prod(self.spatial)).reshape(self.spatial)
        y[...] = self.lowest
        for windows, pixels in self._taps():
            wins = x[pixels] > y[windows]
            np.copyto(index[windows], places[pixels], where=wins)
            np.copyto(y[windows], x[pixels], where=wins)
        return index

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        x, dx, dy = bottom[0].data, bottom[0].diff, top[0].diff
        dx[...] = 0
        if not self.maximum:
            with np.errstate(divide="ignore", invalid="ignore"):
                share = dy / self.divisors()
            for windows, pixels in self._taps():
                dx[pixels] += share[windows]
            return
        y = np.empty_like(dy)  # a later layer may have overwritten the top in place
        self._reduce(x, y)
        left = y > self.lowest  # windows whose maximum is still to be found
        for windows, pixels in self._taps():
            found = left[windows] & (x[pixels] == y[windows])
            dx[pixels] += np.where(found, dy[windows], 0)
            left[windows] &= ~found
