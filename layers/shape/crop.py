"""Crop and Padding: a part of a map, and a border around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from minicaffe.blob import Array, Blob
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layer import Unary
from minicaffe.layers.shape.rearranged import Tables, on_device, steps_of
from minicaffe.reads import UNREAD, Axis, moved

BVLC, LONGJON = "BVLC Caffe", "longjon's Caffe"
"""The variants of the layer."""


class Crop(Forked):
    """y = x, with every axis from `axis` (default 2) on cut to the second bottom's length, starting at offset.

    Source: Caffe's crop_layer.hpp; longjon's for automatic offsets.

    offset: none (0), one for all cut axes, or one for each. The second bottom gives lengths only; its gradient is 0.
    Without crop_param the layer is BVLC's, with offset 0, or longjon's (FCN, HED), with the offsets that align x with the
    reference. alignment.settle_crops decides, for all layers of a net alike, and puts the offsets into crop_param.
    bottom: x (N, C, H, W), reference (..., h, w) with as many axes. top: y (N, C, h, w) by default.
    Raises LayerError when axis is out of range, the numbers of axes or offsets do not match, the cut leads past x,
    and in a net of longjon's where no offsets align the two.
    """

    type = "Crop"
    num_bottom = 2
    num_top = 1
    index_bottoms = (1,)
    param_block = ("crop_param",)
    weight_names = ()
    copies = (0, 0)
    kinds: ClassVar[tuple[Kind, ...]] = (
        Kind(BVLC, ("bvlc", "rcf"), "crop_param, else offset 0"),
        Kind(LONGJON, ("longjon", "hed", "crfrnn"), "offsets that align the bottoms"),
    )

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._tables: Tables = {}
        if self.param.HasField("crop_param"):
            self.choose(BVLC, "crop_param")
        else:
            self.choose_by_fork()

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        if b:  # the second bottom gives only lengths
            return (UNREAD,) * len(bottom[b].shape[2:])
        axes = len(bottom[0].shape)
        axis = self.axis_of(self.param.crop_param.axis, bottom[0])
        return tuple(moved(offset) for offset in ([0] * axis + self.offsets(axes - axis))[2:])

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, reference = bottom[0].shape, bottom[1].shape
        if len(x) != len(reference):
            raise self.error(f"bottom 0 has shape {x}, bottom 1 {reference}: the numbers of axes differ", "bottom[1]")
        axis = self.axis_of(self.param.crop_param.axis, bottom[0], "crop_param.axis")
        offsets = self.offsets(len(x) - axis)
        for i, offset in enumerate(offsets, axis):
            if offset + reference[i] > x[i]:
                raise self.error(
                    f"offset {offset} and length {reference[i]} lead past axis {i} of shape {x}, length {x[i]}", "crop_param"
                )
        cuts = [slice(o, o + length) for o, length in zip(offsets, reference[axis:], strict=True)]
        self._cut = (*(slice(None),) * axis, *cuts)
        top[0].reshape(*x[:axis], *reference[axis:])

    def offsets(self, axes: int) -> list[int]:
        """Return one offset for each of the cut axes."""
        given = list(self.param.crop_param.offset) or [0]
        if len(given) not in (1, axes):
            raise self.error(
                f"{len(given)} offset given for {axes} cut axes: give none, one, or one for each", "crop_param.offset"
            )
        return given if len(given) == axes else given * axes

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = bottom[0].data[self._cut]

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0].device_data("read") + self._start(bottom[0]), top[0].device_data("write")
        self.launch("permute.gather", top[0].count, top[0].count, *self._axes(bottom[0], top[0]), x, y)

    def _start(self, x: Blob) -> int:
        """Return where in x the cut begins, in bytes."""
        return sum((cut.start or 0) * step for cut, step in zip(self._cut, steps_of(x.shape))) * x.dtype.itemsize

    def _axes(self, x: Blob, y: Blob) -> tuple[int, int]:
        """Return the number of axes, and the address of y's lengths and x's steps."""
        return len(y.shape), on_device(self._tables, [*y.shape, *steps_of(x.shape)])

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = 0
            bottom[0].diff[self._cut] = top[0].diff

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].zero_diff()
            dy, dx = top[0].device_diff("read"), bottom[0].device_diff("update") + self._start(bottom[0])
            self.launch("permute.scatter", top[0].count, top[0].count, *self._axes(bottom[0], top[0]), dy, dx)


class AutoCrop(Crop):
    """y = x, its height and width cut to the second bottom's, at the offsets that align the two.

    longjon's Crop under another name. Source: yun-liu/RCF's auto_crop_layer.cpp.

    alignment.settle_crops puts the offsets into crop_param; a prototxt may give them there.
    bottom: x (N, C, H, W), reference (..., h, w) with as many axes. top: y (N, C, h, w).
    Raises LayerError as Crop does, and where no offsets align the bottoms.
    """

    type = "AutoCrop"
    kinds = ()

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._tables = {}


class Padding(Unary):
    """y = x with pad_beg rows and columns of zeros before it and pad_end after it. Negative numbers crop.

    Source: gpapan/caffe's padding_layer.cpp.

    bottom: x (N, C, H, W). top: y (N, C, H + pad_beg + pad_end, W + pad_beg + pad_end).
    Raises LayerError for a bottom of other than 4 axes, for one pad above and the other below 0, and if nothing is left.
    """

    type = "Padding"
    param_block = ("padding_param",)
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.pads = self.param.padding_param.pad_beg, self.param.padding_param.pad_end
        if min(self.pads) < 0 < max(self.pads):
            raise self.error(f"pad_beg and pad_end must both pad or both crop, got {self.pads}", "padding_param")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != 4:
            raise self.error(f"the bottom must have 4 axes (N, C, H, W), its shape is {shape}", "bottom[0]")
        size = [length + sum(self.pads) for length in shape[2:]]
        if min(size) < 1:
            raise self.error(f"pads {self.pads} leave nothing of a map of {shape[2]}x{shape[3]}", "padding_param")
        top[0].reshape(*shape[:2], *size)

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        return (moved(-self.pads[0]),) * 2

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        place(bottom[0].data, top[0].data, self.pads[0])

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            place(top[0].diff, bottom[0].diff, -self.pads[0])


def place(source: Array, target: Array, start: int) -> None:
    """Write source (N, C, H, W) to target (N, C, H', W') from row and column `start` on, else 0. Negative start crops."""
    first = abs(start)
    small = target if start < 0 or target.shape[2] < source.shape[2] else source
    inner = (..., slice(first, first + small.shape[2]), slice(first, first + small.shape[3]))
    if small is target:
        target[...] = source[inner]
    else:
        target[...] = 0
        target[inner] = source
