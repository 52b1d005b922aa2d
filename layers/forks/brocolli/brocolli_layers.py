"""brocolli's HardSwish, MaxUnPool, Pad and Unsqueeze, which stand for PyTorch's functions.

Source: inisis/caffe's hardswish_layer.cpp, maxunpool_layer.cpp, pad_layer.cpp and unsqueeze.cpp. These have no backward. The
gradients here are those of the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import MAX_AXES, Array, Blob, too_many_axes
from minicaffe.layer import Layer, Unary
from minicaffe.layers.neuron.neuron import Neuron
from minicaffe.layers.pool.unpooled import launch_put, put, put_gradient
from minicaffe.proto import caffe_pb2

DIVISOR, SHIFT = 6.0, 0.5
"""HardSwish's gate is x / DIVISOR + SHIFT, at least 0 and at most 1."""


class HardSwish(Neuron):
    """y = x min(1, max(0, x / 6 + 0.5)); dx = dy (x / 3 + 0.5) where the gate is inside, else dy or 0.

    bottom: x (any shape). top: y (the same shape); may be in place. Raises no LayerError.

    Source: MobileNetV3 (Howard et al., 2019).
    """

    type = "HardSwish"
    kernel = "hard_swish"

    def constants(self) -> tuple[float, float, float]:
        return DIVISOR, SHIFT, 0.0

    def value(self, x: Array, out: Array) -> None:
        np.multiply(x, _gate(x), out=out)

    def slope(self, x: Array) -> Array:
        gate = _gate(x)
        return np.where((gate > 0) & (gate < 1), gate + x / DIVISOR, gate)


def _gate(x: Array) -> Array:
    return np.clip(x / DIVISOR + SHIFT, 0, 1)


class MaxUnPool(Layer):
    """y = 0 but for y[n, c, mask[n, c, h, w]] = x[n, c, h, w]. Of several numbers for one pixel the last stays.

    bottom: x (N, C, H, W), mask of its shape: indices h * OW + w, as MAX Pooling's second top. top: y (N, C, OH, OW): dst_h x
    dst_w. Raises LayerError for a size that is missing or 0, other shapes, and an index that y does not have.
    """

    type = "MaxUnPool"
    num_bottom = 2
    num_top = 1
    index_bottoms = (1,)
    param_block = ("max_unpool_param",)
    weight_names = ()
    copies = (0, 0)
    uses_kernels = ((put,), (put_gradient,))

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.max_unpool_param
        self.size = param.dst_h, param.dst_w
        if not all(self.size):
            raise self.error(f"dst_h and dst_w must be given and > 0, got {self.size}", "max_unpool_param")
        self._winner = Blob((0,), np.int32)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, mask = (blob.shape for blob in bottom)
        if len(x) != 4 or x != mask:
            raise self.error(f"the bottoms must have one shape of 4 axes (N, C, H, W), got {x} and {mask}", "bottom")
        top[0].reshape(*x[:2], *self.size)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        put(self, bottom[0].data, bottom[1].data, top[0].data)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        launch_put(self, bottom[0], bottom[1], top[0], self._winner, backward=False)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            put_gradient(self, top[0].diff, bottom[1].data, bottom[0].diff)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            launch_put(self, bottom[0], bottom[1], top[0], self._winner, backward=True)


CONSTANT, REFLECT = caffe_pb2.PadParameter.CONSTANT, caffe_pb2.PadParameter.REFLECT
MODES: dict[int, Literal["constant", "edge", "reflect"]] = {
    CONSTANT: "constant",
    caffe_pb2.PadParameter.REPLICATE: "edge",
    REFLECT: "reflect",
}
"""NumPy's names."""

Maps = tuple[Array, tuple[NDArray[np.intp], ...]]


class Pad(Unary):
    """x with pad_u rows above, pad_d below, pad_l columns at the left and pad_r at the right. Negative numbers crop.

    pad_type: CONSTANT (pad_value, default 0), REPLICATE (the nearest pixel) or REFLECT (mirrored at the outermost pixel).
    bottom: x, at least two axes; the last two are rows and columns. top: y, of x's shape with other rows and columns.
    Where a crop is next to a pad, the fork writes outside of its memory. Here the crop comes first.
    Raises LayerError for a bottom of one axis, if the crop leaves nothing, and for REFLECT by more than the map has.
    """

    type = "Pad"
    param_block = ("pad_param",)
    copies = (2, 2)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.pad_param
        self.pads = (param.pad_u, param.pad_d), (param.pad_l, param.pad_r)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) < 2:
            raise self.error(f"x must have at least two axes, got shape {shape}", "bottom[0]")
        self._places = [
            self._axis_places(length, pads, names)
            for length, pads, names in zip(shape[-2:], self.pads, (("pad_u", "pad_d"), ("pad_l", "pad_r")))
        ]
        top[0].reshape(*shape[:-2], *map(len, self._places))

    def _axis_places(self, length: int, pads: tuple[int, int], names: tuple[str, str]) -> NDArray[np.intp]:
        """Return the place on x's axis of each place on y's, -1 for pad_value."""
        kind = self.param.pad_param.pad_type
        kept = np.arange(length)[max(0, -pads[0]) : length - max(0, -pads[1])]
        added = max(0, pads[0]), max(0, pads[1])
        wrong = f"{names[0]} {pads[0]} and {names[1]} {pads[1]}"
        if not len(kept) and (length or kind != CONSTANT):
            raise self.error(f"{wrong} leave nothing of {length}", f"pad_param.{names[0]}")
        if kind == REFLECT and max(added) >= len(kept):
            raise self.error(f"{wrong} reflect more than {len(kept)} - 1", f"pad_param.{names[0]}")
        return np.pad(kept + 1, added, MODES[kind]) - 1  # CONSTANT adds zeros, which become -1

    def _copied(self, x: Array, y: Array) -> tuple[Maps, Maps]:
        """Return the maps of x and of y, (M, rows, columns), each with the indices of the pixels that y copies from x."""
        of_y = [np.flatnonzero(places >= 0) for places in self._places]
        of_x = [places[own] for places, own in zip(self._places, of_y)]
        maps = np.arange(math.prod(x.shape[:-2]))
        x, y = (array.reshape(len(maps), *array.shape[-2:]) for array in (x, y))
        return (x, np.ix_(maps, *of_x)), (y, np.ix_(maps, *of_y))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        (x, source), (y, to) = self._copied(bottom[0].data, top[0].data)
        y[...] = self.param.pad_param.pad_value
        y[to] = x[source]

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            (dx, source), (dy, to) = self._copied(bottom[0].diff, top[0].diff)
            dx[...] = 0
            np.add.at(dx, source, dy[to])  # add.at, because pixels repeat


class Unsqueeze(Unary):
    """x with an axis of length 1 inserted before axis `dim`. Nothing is copied.

    bottom: x (any shape). top: y, x's memory (data and diff). A negative dim counts from the end of y's axes.
    Raises LayerError when dim is missing or out of range.
    """

    type = "Unsqueeze"
    param_block = ("unsqueeze_param",)
    only_shares = True
    copies = (0, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, shape = self.param.unsqueeze_param, bottom[0].shape
        if not param.HasField("dim"):
            raise self.error("needs dim", "unsqueeze_param")
        self.axis = axis = param.dim if param.dim >= 0 else param.dim + len(shape) + 1
        if not 0 <= axis <= len(shape):
            raise self.error(f"dim {param.dim} is out of range for shape {shape}", "unsqueeze_param.dim")
        new = *shape[:axis], 1, *shape[axis:]
        if len(new) > MAX_AXES:
            raise self.error(too_many_axes(new), "unsqueeze_param.dim")
        top[0].reshape(new)
        top[0].share(bottom[0])  # in each reshape, because the bottom may have new memory

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Do nothing: the top shares the bottom's memory."""

    forward_gpu = forward_cpu
