"""Unpooling and Upsample: pooled maps enlarged again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layer import Layer
from minicaffe.layers.pool.unpooled import launch_put, put, put_gradient
from minicaffe.proto import caffe_pb2
from minicaffe.reads import Axis
from minicaffe.threads import BLOCK, Index, each_block

MAX, AVE, TILE = caffe_pb2.UnpoolingParameter.MAX, caffe_pb2.UnpoolingParameter.AVE, caffe_pb2.UnpoolingParameter.TILE


class Unpooling(Layer):
    """The reverse of Pooling with the same kernel and stride (pad must be 0); MAX, AVE or TILE.

        MAX   y = 0 but for x at its mask's place, or without a mask at its window's first pixel (the map's last where past it)
        AVE   y = the sum over the windows that cover a pixel of x / the window's size, clipped to the map
        TILE  the same without the division

    Source: HyeonwooNoh/caffe's (DeconvNet's) unpooling_layer.cpp. That adds to what AVE's and TILE's top held before,
    divides in TILE's backward only, and gives the gradient of a place to all numbers put there. This one starts at 0, and its
    backward is the gradient.

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
        self.first = Blob((0,), self.dtype)

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
            self.first.reshape(shape[2:])
            self.first.data[...] = np.add.outer(rows * self.size[1], columns)

    def _mask(self, bottom: Sequence[Blob]) -> Blob:
        """Return the indices at which MAX puts x."""
        return bottom[1] if len(bottom) == 2 else self.first

    def lengths(self, axis: int, windows: int) -> Array:
        """Return how many pixels of the map each window has on an axis."""
        starts = np.arange(windows) * self.stride[axis]
        return np.clip(self.size[axis] - starts, 0, self.kernel[axis]).astype(self.dtype)

    def _taps(self, axis: int, windows: int) -> Iterator[tuple[slice, slice]]:
        """Yield for each pixel of the kernel, on an axis, the windows that have it on the map, and its positions."""
        for tap in range(min(self.kernel[axis], self.size[axis])):
            step = self.stride[axis]
            last = min(windows - 1, (self.size[axis] - 1 - tap) // step)
            if last >= 0:
                yield slice(0, last + 1), slice(tap, tap + last * step + 1, step)

    def windows(self, x: Array) -> Iterator[tuple[tuple[slice, slice], tuple[slice, slice]]]:
        """Yield for each pixel of the kernel the windows and the pixels, by row and column."""
        for rows, to_rows in self._taps(0, x.shape[2]):
            for columns, to_columns in self._taps(1, x.shape[3]):
                yield (rows, columns), (to_rows, to_columns)

    def _divided(self, x: Array) -> Array:
        """Return x divided by the window's size for AVE, x itself for TILE."""
        if self.method == TILE:
            return x
        sizes = np.outer(*(self.lengths(axis, n) for axis, n in enumerate(x.shape[2:])))
        return x / np.maximum(sizes, 1)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        if self.method == MAX:
            put(self, x, self._mask(bottom).data, y)
            return
        y[...] = 0
        shares = self._divided(x)
        for (r, c), (to_r, to_c) in self.windows(x):
            y[:, :, to_r, to_c] += shares[:, :, r, c]

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        dx, dy = bottom[0].diff, top[0].diff
        if self.method == MAX:
            put_gradient(self, dy, self._mask(bottom).data, dx)
            return
        dx[...] = 0
        for (r, c), (to_r, to_c) in self.windows(dx):
            dx[:, :, r, c] += dy[:, :, to_r, to_c]
        dx[...] = self._divided(dx)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.method == MAX:
            launch_put(self, bottom[0], self._mask(bottom), top[0], self._winner, backward=False)
            return
        count, x, y = top[0].count, bottom[0].device_data("read"), top[0].device_data("write")
        self.launch("unpooling.spread", count, count, *self._geometry(bottom[0]), x, y)

    def _geometry(self, x: Blob) -> tuple[int, ...]:
        """Return the kernels' H, W, OH, OW, kernel (at most the map), stride, and whether to divide."""
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


SEGNETS = ("scale_h", "scale_w", "pad_out_h", "pad_out_w", "upsample_h", "upsample_w")


class Upsample(Forked):
    """With a mask, each number at its position, else 0. Without one, each pixel repeated scale x scale times.

    With a mask it is SegNet's layer, without one YOLO's.

        two bottoms: y = 0 but for y[n, c, mask[n, c, h, w]] = x[n, c, h, w]
        one bottom:  y[..., h, w] = x[..., h / scale, w / scale]

    Source: alexgkendall/caffe-segnet's and eric612/MobileNet-YOLO's upsample_layer.cpp. Where two numbers have one place,
    SegNet's backward gives the gradient to both, though the later one replaced the earlier; this one gives it to the later one.

    bottom: x (N, C, H, W), mask of its shape (indices h * OW + w, as MAX Pooling's second top). top: y (N, C, OH, OW):
    upsample_h x upsample_w, else scale times H and W (scale, default 2, or scale_h and scale_w), with pad_out_h or pad_out_w
    less one row or column (scale 2 only).
    One bottom: x (..., H, W); top: y (..., scale H, scale W), scale 1 by default.
    Raises LayerError for sizes that are missing, given twice or below 1, other shapes, and an index that y does not have.
    """

    type = "Upsample"
    num_bottom = (1, 2)
    num_top = 1
    index_bottoms = (1,)
    param_block = ("upsample_param",)
    weight_names = ()
    copies = (0, 0)
    kinds = (Kind("SegNet", ("segnet", "beniz"), "2 bottoms"), Kind("MobileNet-YOLO", ("yolo",), "1 bottom"))

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._winner = Blob((0,), np.int32)
        param = self.param.upsample_param
        named = {field.name for field, _ in param.ListFields()}
        self.choose(self.kinds[len(bottom) == 1].whose, self.kinds[len(bottom) == 1].sign)
        if len(bottom) == 1:
            if given := [name for name in SEGNETS if name in named]:
                raise self.error(
                    f"{given[0]} is for two bottoms (SegNet's), this is YOLO's with one", f"upsample_param.{given[0]}"
                )
            self.scale = (param.scale if "scale" in named else 1,) * 2
        else:
            self.scale = self._scales(named)
            self.uses_kernels = ((put,), (put_gradient,))
        if min(self.scale) < 1:
            raise self.error(f"the scale must be > 0, got {min(self.scale)}", "upsample_param.scale")

    def _scales(self, named: set[str]) -> tuple[int, int]:
        param = self.param.upsample_param
        self.size = (param.upsample_h, param.upsample_w) if {"upsample_h", "upsample_w"} <= named else None
        own = named & {"scale_h", "scale_w"}
        if self.size is None and named & {"upsample_h", "upsample_w"}:
            raise self.error("upsample_h and upsample_w go together, only one is given", "upsample_param")
        if self.size is not None:
            if min(self.size) < 1:
                raise self.error(f"upsample_h and upsample_w must be > 0, got {self.size}", "upsample_param.upsample_h")
            return 1, 1
        if own and ("scale" in named or len(own) == 1):
            raise self.error("give scale, or scale_h and scale_w", "upsample_param")
        scale = (param.scale_h, param.scale_w) if own else (param.scale,) * 2
        for name, size in (("pad_out_h", scale[0]), ("pad_out_w", scale[1])):
            if getattr(param, name) and size != 2:
                raise self.error(f"{name} needs a scale of 2, got {size}", f"upsample_param.{name}")
        return scale

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, param = bottom[0].shape, self.param.upsample_param
        if len(bottom) == 1:
            if len(shape) < 2:
                raise self.error(f"the bottom must have at least two axes, its shape is {shape}", "bottom[0]")
            top[0].reshape(*shape[:-2], shape[-2] * self.scale[0], shape[-1] * self.scale[1])
            return
        if len(shape) != 4 or bottom[1].shape != shape:
            raise self.error(
                f"x and mask must have one shape of 4 axes (N, C, H, W), got {shape} and {bottom[1].shape}", "bottom[1]"
            )
        less = param.pad_out_h, param.pad_out_w
        size = self.size or [n * scale - pad for n, scale, pad in zip(shape[2:], self.scale, less)]
        top[0].reshape(*shape[:2], *size)

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        if len(bottom) > 1:  # the mask is data
            return None
        return tuple(Axis(1, scale, 1 - scale, 0) for scale in self.scale)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom) == 2:
            put(self, bottom[0].data, bottom[1].data, top[0].data)
            return
        (rows, columns), x, y = self.scale, _maps(bottom[0].data), _maps(top[0].data)

        def step(index: Index) -> None:
            part, out = x[index], y[index]
            for column in range(columns):
                out[:, ::rows, column::columns] = part
            for row in range(1, rows):
                out[:, row::rows] = out[:, ::rows]

        each_block((len(x),), step, max(1, BLOCK // max(1, math.prod(y.shape[1:]))))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        dx, dy = bottom[0].diff, top[0].diff
        if len(bottom) == 2:
            put_gradient(self, dy, bottom[1].data, dx)
            return
        (rows, columns), x, y = self.scale, _maps(dx), _maps(dy)

        def step(index: Index) -> None:
            part = y[index]
            lines = _sum([part[:, row::rows] for row in range(rows)])
            x[index] = _sum([lines[:, :, column::columns] for column in range(columns)])

        each_block((len(x),), step, max(1, BLOCK // max(1, math.prod(y.shape[1:]))))

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom) == 2:
            launch_put(self, bottom[0], bottom[1], top[0], self._winner, backward=False)
            return
        count, x, y = top[0].count, bottom[0].device_data("read"), top[0].device_data("write")
        self.launch("upsample.repeat", count, count, top[0].shape[-1], *self.scale, x, y)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        if len(bottom) == 2:
            launch_put(self, bottom[0], bottom[1], top[0], self._winner, backward=True)
            return
        count, dy, dx = bottom[0].count, top[0].device_diff("read"), bottom[0].device_diff("write")
        self.launch("upsample.repeat_backward", count, count, bottom[0].shape[-1], *self.scale, dy, dx)


def _sum(arrays: Sequence[Array]) -> Array:
    if len(arrays) == 1:
        return arrays[0]
    total: Array = arrays[0] + arrays[1]
    for array in arrays[2:]:
        total += array
    return total


def _maps(array: Array) -> Array:
    """Return x (..., H, W) as a view (M, H, W)."""
    return array.reshape(math.prod(array.shape[:-2]), *array.shape[-2:])
