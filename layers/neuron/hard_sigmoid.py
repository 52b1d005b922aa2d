"""HardSigmoid: y = min(1, max(0, 0.2 x + 0.5)). Source: MobileNet-YOLO's hard_sigmoid_layer.cpp."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array

from .neuron import Neuron

SCALE, SHIFT = 0.2, 0.5


class HardSigmoid(Neuron):
    """y = 0.2 x + 0.5, at least 0 and at most 1; dx = 0.2 dy where y is inside, else 0.

    bottom: x (any shape). top: y (the same shape); may be in place.
    """

    type = "HardSigmoid"
    kernel = "hard_sigmoid"

    def constants(self) -> tuple[float, float, float]:
        return SCALE, SHIFT, 0.0

    def value(self, x: Array, out: Array) -> None:
        np.multiply(x, SCALE, out=out)
        out += SHIFT
        np.clip(out, 0, 1, out=out)

    def slope(self, x: Array) -> Array:
        line = x * SCALE + SHIFT
        slope: Array = ((line > 0) & (line < 1)) * x.dtype.type(SCALE)
        return slope
