"""Power: y = (shift + scale x) ^ power. Source: Caffe's power_layer.hpp."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array

from .neuron import Neuron


class Power(Neuron):
    """y = (shift + scale x) ^ power, dx = dy power scale (shift + scale x) ^ (power - 1).

    Where power * scale is 0, y is a constant (1 for power 0) and dx is 0. A negative number to a fractional power is NaN.
    Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.
    """

    type = "Power"
    param_block = ("power_param",)
    kernel = "power"

    def constants(self) -> tuple[float, float, float]:
        return self.param.power_param.scale, self.param.power_param.shift, self.param.power_param.power

    def value(self, x: Array, out: Array) -> None:
        param = self.param.power_param
        if param.power * param.scale == 0:
            # 0.0 ** -1 raises in Python; a negative base would be complex
            out[...] = np.float64(param.shift) ** param.power if param.power else 1
            return
        np.multiply(x, param.scale, out=out)
        out += param.shift
        if param.power != 1:
            np.power(out, param.power, out=out)

    def slope(self, x: Array) -> Array:
        param = self.param.power_param
        factor = param.power * param.scale
        if factor == 0 or param.power == 1:  # 0 * 0^-1 would be NaN
            return np.full_like(x, factor)
        return factor * np.power(param.shift + param.scale * x, param.power - 1)
