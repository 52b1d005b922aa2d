"""Exp: y = base ^ (shift + scale x). Source: Caffe's exp_layer.hpp."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob

from .neuron import Neuron


class Exp(Neuron):
    """y = base ^ (shift + scale x), dx = dy y scale ln(base); base -1 (the default) stands for e.

    bottom: x (any shape). top: y (the same shape); may be in place.
    Raises LayerError when base is neither -1 nor positive.
    """

    type = "Exp"
    param_block = ("exp_param",)
    kernel = "exponential"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        param = self.param.exp_param
        if param.base != -1 and param.base <= 0:
            raise self.error(f"base must be > 0, or -1 for e, got {param.base:g}", "exp_param.base")
        log_base = 1.0 if param.base == -1 else math.log(param.base)
        self.scale, self.shift = log_base * param.scale, log_base * param.shift  # base ^ z = e ^ (z ln base)

    def constants(self) -> tuple[float, float, float]:
        return self.scale, self.shift, 0.0

    def value(self, x: Array, out: Array) -> None:
        np.multiply(x, self.scale, out=out)
        out += self.shift
        np.exp(out, out=out)

    def slope(self, x: Array) -> Array:
        return self.scale * np.exp(self.scale * x + self.shift)
