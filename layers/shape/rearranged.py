"""Layers whose top has the bottom's elements, each once, in another order."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from minicaffe.blob import Array, Blob, address_of
from minicaffe.layer import Unary
from minicaffe.reads import Axis, same_places

MOST_TABLES = 32
"""Most tables of numbers that a layer keeps on the GPU, one for each shape."""

Tables = dict[bytes, Blob]
"""Blobs of int32, by their contents."""


class Rearranged(Unary):
    """y's numbers are those of `arranged(x)`, in order. Subclasses define arranged and reshape.

    bottom: x. top: y, with as many numbers.
    """

    copies = (0, 0)

    def arranged(self, x: Array) -> Array:
        """Return a view of x with y's numbers in y's order. Its axes may differ from y's.

        x is contiguous and has the bottom's shape.
        """
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
        """Return the view's number of axes, the address of their lengths and steps, and its start in x, in bytes."""
        whole = np.empty(x.shape, np.int8)
        view = self.arranged(whole)
        start = address_of(view) - address_of(whole)
        return view.ndim, on_device(self._tables, [*view.shape, *view.strides]), start * x.dtype.itemsize


def steps_of(shape: tuple[int, ...]) -> list[int]:
    """Return the distance of neighbours in memory on each axis, in numbers."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def on_device(tables: Tables, numbers: ArrayLike) -> int:
    """Return the address of numbers (K,) as int32 on the GPU. They are copied only if no table of the layer holds them."""
    array = np.asarray(numbers, np.int32)
    table = tables.get(array.tobytes())
    if table is None:
        if len(tables) == MOST_TABLES:
            tables.clear()
        table = tables[array.tobytes()] = Blob(array.shape, np.int32)
        table.data[...] = array
    return table.device_data("read")


class Permute(Rearranged):
    """y = transpose(x, order): axis i of y is axis order[i] of x.

    Source: the SSD fork's permute_layer.cpp.

    bottom: x, any shape. top: y, of x's shape in that order. permute_param.order lists axes; those it leaves out follow
    in order, so that `order: 0 order: 2 order: 3 order: 1` makes (N, C, H, W) into (N, H, W, C).
    Raises LayerError for an axis that x does not have, or that is listed twice.
    """

    type = "Permute"
    param_block = ("permute_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        axes, given = len(bottom[0].shape), list(self.param.permute_param.order)
        for i, axis in enumerate(given):
            if axis >= axes:
                raise self.error(f"order has axis {axis}; x of shape {bottom[0].shape} has {axes}", "permute_param.order")
            if axis in given[:i]:
                raise self.error(f"order lists axis {axis} twice", "permute_param.order")
        self.order = given + [axis for axis in range(axes) if axis not in given]
        top[0].reshape(*(bottom[0].shape[axis] for axis in self.order))

    def arranged(self, x: Array) -> Array:
        view: Array = x.transpose(self.order)
        return view


class Transpose(Rearranged):
    """y = transpose(x, dim): axis i of y is axis dim[i] of x.

    Source: CTPN's transpose_layer.cpp (Tian et al., 2016).

    bottom: x, any shape. top: y, of x's shape in that order. transpose_param.dim lists every axis of x once.
    Raises LayerError for a list that does not.
    """

    type = "Transpose"
    param_block = ("transpose_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.order, axes = list(self.param.transpose_param.dim), len(bottom[0].shape)
        if sorted(self.order) != list(range(axes)):
            wanted = f"dim must list each axis of x of shape {bottom[0].shape} once, 0 to {axes - 1}"
            raise self.error(f"{wanted}; got {self.order}", "transpose_param")
        top[0].reshape(*(bottom[0].shape[axis] for axis in self.order))

    def arranged(self, x: Array) -> Array:
        view: Array = x.transpose(self.order)
        return view


class Reverse(Rearranged):
    """y = x with reverse_param.axis (default 0; negative: from the end) back to front.

    Source: CTPN's reverse_layer.cpp (Tian et al., 2016).

    bottom: x (any shape). top: y (the same shape). Raises LayerError when x has no such axis.
    """

    type = "Reverse"
    param_block = ("reverse_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.axis = self.axis_of(self.param.reverse_param.axis, bottom[0], "reverse_param.axis")
        top[0].reshape(bottom[0].shape)

    def arranged(self, x: Array) -> Array:
        return np.flip(x, self.axis)


class Flip(Rearranged):
    """y = x with its last axis back to front (flip_param.flip_width, the default), its last but one (flip_height), or both.

    Source: happynear/caffe-windows' flip_layer.cpp.

    bottom: x (N, C, H, W). top: y (the same shape). Raises LayerError for another number of axes.
    """

    type = "Flip"
    param_block = ("flip_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom[0].shape) != 4:
            raise self.error(f"x must be (N, C, H, W), got shape {bottom[0].shape}", "bottom[0]")
        top[0].reshape(bottom[0].shape)

    def arranged(self, x: Array) -> Array:
        param = self.param.flip_param
        axes = (2,) * param.flip_height + (3,) * param.flip_width
        return np.flip(x, axes)


class ShuffleChannel(Rearranged):
    """The channels of groups, interleaved: y[n, j g + i, ...] = x[n, i C/g + j, ...].

    Source: Zhang et al., ShuffleNet (arXiv:1707.01083); farmingyard's shuffle_channel_layer.cpp.

    bottom: x (N, C, ...). top: y (the same shape). shuffle_channel_param.group defaults to 1, which changes nothing.
    Raises LayerError when x has fewer than two axes, group is 0, or C is no multiple of it.
    """

    type = "ShuffleChannel"
    param_block = ("shuffle_channel_param",)

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        return same_places(bottom[b].shape, top[t].shape)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.group = self.param.shuffle_channel_param.group
        if not self.group:
            raise self.error("group must be > 0, got 0", "shuffle_channel_param.group")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) < 2:
            raise self.error(f"x must have at least two axes, got shape {shape}", "bottom[0]")
        if shape[1] % self.group:
            wrong = f"{shape[1]} channels cannot be cut into {self.group} groups of one size"
            raise self.error(wrong, "shuffle_channel_param.group")
        top[0].reshape(shape)

    def arranged(self, x: Array) -> Array:
        n, channels, *rest = x.shape
        view: Array = x.reshape(n, self.group, channels // self.group, *rest).swapaxes(1, 2)
        return view


class Reorg(Rearranged):
    """The numbers of x in darknet's order, as more channels of smaller maps (YOLO's passthrough), or with reverse back.

    With s = stride and K = C / s^2, for an image x (C, H, W):
        reorg     x's memory read as (K, H, s, W, s), its axes in the order 2, 4, 0, 1, 3; y is (C s^2, H / s, W / s)
        reverse   x's memory read as (s, s, K, H, W), its axes in the order 2, 3, 0, 4, 1; y is (C / s^2, H s, W s)
    This is not space-to-depth, which would read x as (C, H / s, s, W / s, s): darknet takes the sizes of the other side.

    Source: darknet's reorg_cpu (Redmon and Farhadi, YOLO9000, arXiv:1612.08242); MobileNet-YOLO's reorg_layer.cpp.

    bottom: x (N, C, H, W). top: y (N, C s^2, H / s, W / s), or with reorg_param.reverse (N, C / s^2, H s, W s); s is
    reorg_param.stride. Raises LayerError without a stride, when x has not four axes, s^2 does not divide C, or s not H and W.
    """

    type = "Reorg"
    param_block = ("reorg_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.stride, self.reverse = self.param.reorg_param.stride, self.param.reorg_param.reverse
        if not self.stride:
            raise self.error("needs stride > 0", "reorg_param")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, s = bottom[0].shape, self.stride
        if len(shape) != 4:
            raise self.error(f"x must be (N, C, H, W), got shape {shape}", "bottom[0]")
        n, c, h, w = shape
        if c % (s * s):
            raise self.error(f"stride {s} needs a multiple of {s * s} channels, got {c}", "reorg_param.stride")
        if not self.reverse and (h % s or w % s):
            raise self.error(f"stride {s} divides no map of {h} x {w}", "reorg_param.stride")
        top[0].reshape(*((n, c // (s * s), h * s, w * s) if self.reverse else (n, c * s * s, h // s, w // s)))

    def arranged(self, x: Array) -> Array:
        n, c, h, w = x.shape
        view: Array = x.reshape(n, *self.split(c, h, w)).transpose(0, *self.order)
        return view

    def split(self, c: int, h: int, w: int) -> tuple[int, ...]:
        """Return the five axes in which an image's memory is read."""
        s, k = self.stride, c // (self.stride * self.stride)
        return (s, s, k, h, w) if self.reverse else (k, h, s, w, s)

    @property
    def order(self) -> tuple[int, ...]:
        """Return the order of those axes, counted from 1."""
        return (3, 4, 1, 5, 2) if self.reverse else (3, 5, 1, 2, 4)
