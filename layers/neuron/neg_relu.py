"""NegReLU: y = min(x, 0). Source: FlowNet 2's neg_relu_layer.cpp (Ilg et al., 2017)."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array

from .neuron import Neuron


class NegReLU(Neuron):
    """y = min(x, 0); dx = dy where x < 0, else 0. Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.
    """

    type = "NegReLU"
    kernel = "neg_relu"

    def value(self, x: Array, out: Array) -> None:
        np.minimum(x, 0, out=out)

    def slope(self, x: Array) -> Array:
        slope: Array = (x < 0).astype(x.dtype)
        return slope
