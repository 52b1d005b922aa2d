"""MergeCrop and Affinity: the layers of naibaf7's Caffe for segmenting neural tissue (PyGreentea).

Source: naibaf7/caffe's mergecrop_layer.cu and affinity_layer.cpp (Tschopp, 2015). Its MergeCrop runs on a GPU only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import AsManyAsBottoms, Layer
from minicaffe.proto import caffe_pb2
from minicaffe.reads import UNREAD, Axis, moved

ADD = caffe_pb2.MergeCropParameter.ADD


class MergeCrop(Layer):
    """y = a, and b's centre of a's size: stacked along the channels, or added with operation: ADD.

    forward: false for a bottom takes zeros in its place. backward: false gives the bottom no gradient, which is the default for
    b. The fork mixes up the channels of a STACK in which b has more channels than a; minicaffe does not.

    bottom: a (N, C, ...), b (N, D, ...), at least as long as a on the axes after the channels; the cut begins at half of the
    difference, rounded down. top: y (N, C + D, ...), or (N, C, ...) for ADD, where C = D.
    Raises LayerError for other shapes, and for more than two values of forward or backward.
    """

    type = "MergeCrop"
    num_bottom = 2
    num_top = 1
    param_block = ("mergecrop_param",)
    weight_names = ()
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.mergecrop_param
        self.forwards = self._flags("forward", param.forward, (True, True))
        self.backwards = self._flags("backward", param.backward, (True, False))
        self.adds = param.operation == ADD

    def _flags(self, field: str, given: Sequence[bool], default: tuple[bool, bool]) -> tuple[bool, bool]:
        """Return a value for each bottom."""
        if len(given) > 2:
            raise self.error(f"{field} has {len(given)} values for 2 bottoms: give two at most", f"mergecrop_param.{field}")
        first, second = (*given, *default[len(given) :])
        return first, second

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        a, b = (blob.shape for blob in bottom)
        if len(a) < 2 or len(a) != len(b) or a[0] != b[0]:
            raise self.error(f"the bottoms must have the same N and number of axes, got shapes {a} and {b}", "bottom")
        if any(small > large for small, large in zip(a[2:], b[2:])):
            wrong = f"bottom 1 must be at least as long as bottom 0 on the axes after the channels, got shapes {b} and {a}"
            raise self.error(wrong, "bottom[1]")
        if self.adds and a[1] != b[1]:
            raise self.error(f"ADD needs as many channels in both bottoms, got {a[1]} and {b[1]}", "bottom[1]")
        self.starts = [(large - small) // 2 for small, large in zip(a[2:], b[2:])]
        cut = (slice(start, start + small) for start, small in zip(self.starts, a[2:]))
        self._cut = (slice(None), slice(None), *cut)
        top[0].reshape(a[0], a[1] if self.adds else a[1] + b[1], *a[2:])

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        return tuple(moved(start if b else 0) for start in self.starts)

    def _parts(self, y: Array, channels: int) -> tuple[Array, Array]:
        """Return the parts of y, or of its gradient, that belong to the bottoms."""
        return (y, y) if self.adds else (y[:, :channels], y[:, channels:])

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        y = top[0].data
        y[...] = 0
        parts, sources = self._parts(y, bottom[0].shape[1]), (bottom[0].data, bottom[1].data[self._cut])
        for part, x, wanted in zip(parts, sources, self.forwards, strict=True):
            if wanted:
                np.add(part, x, out=part)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        parts = self._parts(top[0].diff, bottom[0].shape[1])
        for i, (part, cut) in enumerate(zip(parts, ((slice(None),), self._cut), strict=True)):
            if propagate_down[i]:
                bottom[i].diff[...] = 0
                if self.backwards[i]:
                    bottom[i].diff[cut] = part


class Affinity(Layer):
    """The edges between neighbours of a map: y[0, 0] = min(x, the pixel below), y[0, 1] = min(x, the pixel to the right).

        y[0, 0, i, j] = min(x[0, c, i, j], x[0, c, i + 1, j])    y[0, 1, i, j] = min(x[0, c, i, j], x[0, c, i, j + 1])

    The last row and column of y are 0. The gradient goes to the smaller pixel, to the neighbour if they are equal.

    bottom[k]: x (N, C, H, W), of which image 0 and channel c = offset[k] (default 0) count. top[k]: y (1, 2, H, W).
    Raises LayerError for a bottom without four axes, and for an offset that is no channel.
    """

    type = "Affinity"
    num_bottom = (1, None)
    num_top = AsManyAsBottoms()
    param_block = ("affinity_param",)
    weight_names = ()

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        given = self.param.affinity_param.offset
        self.offsets = [*given[: len(bottom)], *[0] * (len(bottom) - len(given))]
        for k, (blob, offset, y) in enumerate(zip(bottom, self.offsets, top, strict=True)):
            shape = blob.shape
            if len(shape) != 4 or not shape[0]:
                raise self.error(f"bottom {k} must be (N, C, H, W) of at least one image, got shape {shape}", f"bottom[{k}]")
            if not 0 <= offset < shape[1]:
                raise self.error(f"offset {offset} is no channel of bottom {k}, of shape {shape}", "affinity_param.offset")
            y.reshape(1, 2, *shape[2:])

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        return (Axis(last=1) if b == t else UNREAD,) * 2

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for blob, offset, y in zip(bottom, self.offsets, top, strict=True):
            here, *neighbours = _neighbours(blob.data[0, offset])
            y.data[...] = 0
            for edge, there in zip(y.data[0], neighbours):
                edge[:-1, :-1] = np.where(there < here, there, here)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        for blob, offset, y, wanted in zip(bottom, self.offsets, top, propagate_down, strict=True):
            if wanted:
                blob.diff[...] = 0
                here, *neighbours = _neighbours(blob.data[0, offset])
                dx_here, *dx_neighbours = _neighbours(blob.diff[0, offset])
                for dy, there, dx_there in zip(y.diff[0, :, :-1, :-1], neighbours, dx_neighbours):
                    dx_here += np.where(here < there, dy, 0)
                    np.add(dx_there, np.where(here < there, 0, dy), out=dx_there)


def _neighbours(x: Array) -> tuple[Array, Array, Array]:
    """Return the pixels of x (H, W) with both neighbours, the pixels below them, and those to the right, as views."""
    return x[:-1, :-1], x[1:, :-1], x[:-1, 1:]
