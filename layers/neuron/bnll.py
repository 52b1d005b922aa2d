"""BNLL: y = ln(1 + exp(x)), the binomial normal log likelihood (softplus). Source: Caffe's bnll_layer.hpp."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array

from .neuron import Neuron
from .sigmoid import sigmoid


class BNLL(Neuron):
    """y = ln(1 + exp(x)), dx = dy / (1 + exp(-x)); no x overflows. Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.
    """

    type = "BNLL"
    kernel = "bnll"

    def value(self, x: Array, out: Array) -> None:
        np.logaddexp(x, 0, out=out)

    def slope(self, x: Array) -> Array:
        return sigmoid(x)
