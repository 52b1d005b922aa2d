"""Swish: y = x / (1 + exp(-beta x)). Source: Caffe's swish_layer.hpp (Ramachandran et al., 2017)."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array

from .neuron import Neuron
from .sigmoid import sigmoid


class Swish(Neuron):
    """y = x s with s = 1 / (1 + exp(-beta x)); dx = dy (s + beta y (1 - s)). Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.
    """

    type = "Swish"
    param_block = ("swish_param",)
    kernel = "swish"

    def constants(self) -> tuple[float, float, float]:
        return self.param.swish_param.beta, 0.0, 0.0

    def value(self, x: Array, out: Array) -> None:
        np.multiply(x, sigmoid(self.param.swish_param.beta * x), out=out)

    def slope(self, x: Array) -> Array:
        beta = self.param.swish_param.beta
        s = sigmoid(beta * x)
        dx: Array = s + beta * x * s * (1 - s)
        return dx
