"""Upsample: SegNet's, which puts each number where the mask of a MAX pooling says, or YOLO's, which repeats each pixel.

    two bottoms: y = 0 but for y[n, c, mask[n, c, h, w]] = x[n, c, h, w]        one: y[..., h, w] = x[..., h / scale, w / scale]

Source: alexgkendall/caffe-segnet's and eric612/MobileNet-YOLO's upsample_layer.cpp. Where two numbers have one place, SegNet's
backward gives the gradient to both, though the later one replaced the earlier; this one gives it to the later one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.reads import Axis
from minicaffe.threads import BLOCK, Index, each_block

from .unpooled import launch_put, put, put_gradient

SEGNETS = ("scale_h", "scale_w", "pad_out_h", "pad_out_w", "upsample_h", "upsample_w")


class Upsample(Forked):
    """With a mask each number goes to its place, all else is 0; without one each pixel becomes scale x scale equal ones.

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
    """(..., H, W) -> (M, H, W), a view."""
    return array.reshape(math.prod(array.shape[:-2]), *array.shape[-2:])
