"""AbsVal: y = |x|. Source: Caffe's absval_layer.hpp."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array

from .neuron import Neuron


class AbsVal(Neuron):
    """y = |x|, dx = dy sign(x), 0 at x = 0. Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.
    """

    type = "AbsVal"
    kernel = "abs_val"

    def value(self, x: Array, out: Array) -> None:
        np.abs(x, out=out)

    def slope(self, x: Array) -> Array:
        return np.sign(x)
