"""Padding: rows and columns of zeros around each map, or so many taken off. Source: gpapan/caffe's padding_layer.cpp."""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer
from minicaffe.reads import Axis, moved


class Padding(Layer):
    """y = x with pad_beg rows and columns of zeros before it and pad_end after it; negative numbers take as many off.

    bottom: x (N, C, H, W). top: y (N, C, H + pad_beg + pad_end, W + pad_beg + pad_end).
    Raises LayerError for a bottom of other than 4 axes, for one pad above and the other below 0, and where nothing is left.
    """

    type = "Padding"
    num_bottom = 1
    num_top = 1
    param_block = ("padding_param",)
    weight_names = ()
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
    """Compute target (N, C, H', W') = source (N, C, H, W) from row and column `start` on (negative: cut there); the rest 0."""
    first = abs(start)
    small = target if start < 0 or target.shape[2] < source.shape[2] else source
    inner = (..., slice(first, first + small.shape[2]), slice(first, first + small.shape[3]))
    if small is target:
        target[...] = source[inner]
    else:
        target[...] = 0
        target[inner] = source
