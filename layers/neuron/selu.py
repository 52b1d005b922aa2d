"""SeLu: y = lambda (x where x > 0, else alpha (e^x - 1)). Source: DeepDetect's selu_layer.cpp (Klambauer et al., 2017)."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array

from .neuron import Neuron


class SeLu(Neuron):
    """y = lambda x where x > 0, else lambda alpha (e^x - 1); dx = dy lambda, or dy lambda alpha e^x. Raises no LayerError.

    bottom: x (any shape). top: y (the same shape); may be in place.
    """

    type = "SeLu"
    param_block = ("selu_param",)
    kernel = "selu"

    def constants(self) -> tuple[float, float, float]:
        return getattr(self.param.selu_param, "lambda"), self.param.selu_param.alpha, 0.0

    def value(self, x: Array, out: Array) -> None:
        scale, alpha, _ = self.constants()
        negative = alpha * np.expm1(np.minimum(x, 0))
        np.maximum(x, 0, out=out)
        out += negative
        out *= scale

    def slope(self, x: Array) -> Array:
        scale, alpha, _ = self.constants()
        return np.where(x > 0, x.dtype.type(scale), scale * alpha * np.exp(np.minimum(x, 0)))
