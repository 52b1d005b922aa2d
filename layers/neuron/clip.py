"""Clip: y = min(max(x, lower), upper). Source: Caffe's clip_layer.hpp."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob

from .neuron import Neuron


class Clip(Neuron):
    """y = x kept within [min, max]; dx = dy where x is inside, both ends included, else 0.

    bottom: x (any shape). top: y (the same shape); may be in place.
    Raises LayerError when min or max is not given, or min > max.
    """

    type = "Clip"
    param_block = ("clip_param",)
    kernel = "clip"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        param = self.param.clip_param
        if not (param.HasField("min") and param.HasField("max")):
            raise self.error("clip_param needs both min and max", "clip_param")
        if param.min > param.max:
            raise self.error(f"needs min <= max, got min {param.min:g} and max {param.max:g}", "clip_param.min")

    def constants(self) -> tuple[float, float, float]:
        return self.param.clip_param.min, self.param.clip_param.max, 0.0

    def value(self, x: Array, out: Array) -> None:
        np.clip(x, self.param.clip_param.min, self.param.clip_param.max, out=out)

    def slope(self, x: Array) -> Array:
        return (x >= self.param.clip_param.min) & (x <= self.param.clip_param.max)
