"""ELU: y = x, or alpha (exp(x) - 1) where x <= 0. Source: Caffe's elu_layer.hpp (Clevert et al., 2015)."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array

from .neuron import Neuron


class ELU(Neuron):
    """y = x where x > 0, else alpha (exp(x) - 1). Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.
    """

    type = "ELU"
    param_block = ("elu_param",)
    kernel = "elu"

    def constants(self) -> tuple[float, float, float]:
        return self.param.elu_param.alpha, 0.0, 0.0

    def value(self, x: Array, out: Array) -> None:
        negative = self.param.elu_param.alpha * np.expm1(np.minimum(x, 0))
        np.maximum(x, 0, out=out)
        out += negative

    def slope(self, x: Array) -> Array:
        negative = self.param.elu_param.alpha * np.exp(np.minimum(x, 0))
        return np.where(x > 0, x.dtype.type(1), negative)
