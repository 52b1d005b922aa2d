"""ReLU6: y = min(max(x, 0) + negative_slope min(x, 0), 6). Source: MobileNet-YOLO's relu6_layer.cpp (Krizhevsky, 2010)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layers.elementwise.epilogue import relu

from .neuron import Neuron

MOST = 6.0


class ReLU6(Neuron):
    """y = x where x > 0, else negative_slope x, and at most 6; dx = dy, times the slope for x <= 0, and 0 where y is 6.

    bottom: x (any shape). top: y (the same shape); may be in place. relu6_param.negative_slope defaults to 0. A relu_param has
    no effect, as in the forks, but a warning. Raises no errors of its own.
    """

    type = "ReLU6"
    param_block = ("relu6_param",)
    kernel = "relu6"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.negative_slope = self.param.relu6_param.negative_slope
        if self.param.HasField("relu_param"):
            self.warn("relu_param has no effect; negative_slope is a field of relu6_param", "relu_param")

    def constants(self) -> tuple[float, float, float]:
        return self.negative_slope, MOST, 0.0

    def value(self, x: Array, out: Array) -> None:
        np.minimum(relu(x, self.negative_slope, out=out), MOST, out=out)

    def slope(self, x: Array) -> Array:
        slope: Array = np.where(x > 0, x.dtype.type(1), x.dtype.type(self.negative_slope))
        return slope * (relu(x, self.negative_slope) < MOST)
