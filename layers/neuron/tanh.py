"""TanH: y = tanh(x). Source: Caffe's tanh_layer.hpp."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array

from .neuron import Neuron


class TanH(Neuron):
    """y = tanh(x), dx = dy (1 - y^2). Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.
    """

    type = "TanH"
    kernel = "hyperbolic_tangent"

    def value(self, x: Array, out: Array) -> None:
        np.tanh(x, out=out)

    def slope(self, x: Array) -> Array:
        y: Array = np.tanh(x)
        return 1 - y * y
