"""Threshold: y = 1 where x > threshold, else 0. Source: Caffe's threshold_layer.hpp."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array

from .neuron import Neuron


class Threshold(Neuron):
    """y = 1 where x > threshold, else 0. Its gradient is 0: nothing is propagated through it.

    bottom: x (any shape). top: y (the same shape); may be in place. Raises no LayerError.
    """

    type = "Threshold"
    param_block = ("threshold_param",)
    has_gradient = False
    kernel = "threshold"
    index_bottoms = (0,)

    def constants(self) -> tuple[float, float, float]:
        return self.param.threshold_param.threshold, 0.0, 0.0

    def value(self, x: Array, out: Array) -> None:
        out[...] = x > self.param.threshold_param.threshold

    def slope(self, x: Array) -> Array:
        return np.zeros_like(x)
