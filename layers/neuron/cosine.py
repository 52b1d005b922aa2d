"""Cosine: y = cos x. Source: happynear's cosine_layer.cpp, whose backward is not the gradient."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array

from .neuron import Neuron


class Cosine(Neuron):
    """y = cos x, x in radians; dx = -dy sin x. Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.
    """

    type = "Cosine"
    kernel = "cosine"

    def value(self, x: Array, out: Array) -> None:
        np.cos(x, out=out)

    def slope(self, x: Array) -> Array:
        slope: Array = -np.sin(x)
        return slope
