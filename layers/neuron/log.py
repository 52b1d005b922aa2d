"""Log: y = log_base(shift + scale x). Source: Caffe's log_layer.hpp."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob

from .neuron import Neuron


class Log(Neuron):
    """y = ln(shift + scale x) / ln(base), dx = dy scale / (shift + scale x) / ln(base); base -1 (the default) stands for e.

    bottom: x (any shape). top: y (the same shape); may be in place.
    Raises LayerError when base is neither -1 nor positive, or is 1.
    """

    type = "Log"
    param_block = ("log_param",)
    kernel = "logarithm"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        base = self.param.log_param.base
        if base != -1 and (base <= 0 or base == 1):
            raise self.error(f"base must be > 0 and not 1, or -1 for e, got {base:g}", "log_param.base")
        self.factor = 1.0 if base == -1 else 1 / math.log(base)

    def constants(self) -> tuple[float, float, float]:
        return self.param.log_param.scale, self.param.log_param.shift, self.factor

    def value(self, x: Array, out: Array) -> None:
        np.multiply(x, self.param.log_param.scale, out=out)
        out += self.param.log_param.shift
        np.log(out, out=out)
        out *= self.factor

    def slope(self, x: Array) -> Array:
        param = self.param.log_param
        return self.factor * param.scale / (param.shift + param.scale * x)
