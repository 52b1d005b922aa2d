"""ReLU: y = max(x, 0) + negative_slope * min(x, 0). Source: Caffe's relu_layer.hpp (Nair and Hinton, 2010)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.layer import Layer

Array = NDArray[Any]


class ReLU(Layer):
    """y = x where x > 0, else negative_slope * x; the slope at 0 is that of the negative side.

    bottom: x (any shape). top: y (the same shape); may be in place. A NaN stays NaN. Raises no errors of its own.
    """

    type = "ReLU"
    num_bottom = 1
    num_top = 1
    in_place = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.negative_slope = self.param.relu_param.negative_slope
        self._sign = Blob((), self.dtype)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(bottom[0].shape)
        if self.negative_slope < 0 and top[0] is bottom[0]:
            self._sign.reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0].data
        if self.negative_slope < 0 and top[0] is bottom[0]:
            self._sign.data[...] = x  # y no longer tells the sign of x
        relu(x, self.negative_slope, out=top[0].data)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        in_place = top[0] is bottom[0]
        sign = 0
        if self.negative_slope < 0 and in_place:
            sign = self._sign.device_data("write")
        x = bottom[0].device_data("update" if in_place else "read")
        y = x if in_place else top[0].device_data("write")
        self.launch("relu.relu", top[0].count, top[0].count, x, self.negative_slope, y, sign)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        positive = self._sign_of(bottom, top).read_data() > 0
        relu_backward(top[0].diff, positive, self.negative_slope, out=bottom[0].diff)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        sign, dy = self._sign_of(bottom, top).device_data("read"), top[0].device_diff("read")
        dx = bottom[0].device_diff("write")
        self.launch("relu.relu_backward", top[0].count, top[0].count, sign, dy, self.negative_slope, dx)

    def _sign_of(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> Blob:
        """The blob whose elements are greater than 0 where x is."""
        return self._sign if self.negative_slope < 0 and top[0] is bottom[0] else bottom[0]


def relu(x: Array, negative_slope: float = 0.0, out: Array | None = None) -> Array:
    """x: any shape; out: where y goes, x itself allowed. Returns y."""
    if negative_slope == 0:
        return np.maximum(x, 0, out=out)
    choose = np.maximum if negative_slope <= 1 else np.minimum
    return choose(x, x * negative_slope, out=out)


def relu_backward(dy: Array, positive: Array, negative_slope: float = 0.0, out: Array | None = None) -> Array:
    """dy: any shape; positive: x > 0, the same shape; out: where dx goes, dy itself allowed. Returns dx."""
    if negative_slope == 0:
        return np.multiply(dy, positive, out=out)
    factor: Array = ~positive * dy.dtype.type(negative_slope)
    factor += positive
    return np.multiply(dy, factor, out=out)
