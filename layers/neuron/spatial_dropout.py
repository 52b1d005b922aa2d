"""ENet's SpatialDropoutLayer: whole maps are dropped at random.

    y = x m / (1 - p),  m = 0 with probability p and 1 otherwise, one for each map; without training m = 1

Source: ENet's spatial_dropout.py, which divides by 1 - p in both phases.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.layers.proposal.param_str import StandIn, layer_parameters


class SpatialDropout(StandIn):
    """y = x m / (1 - p), with one m for each map; dx = dy m / (1 - p). Stands in for spatial_dropout.SpatialDropoutLayer.

    bottom: x (N, C, ...). top: y (x's shape).
    param_str: p, above 0 and below 1, and phase: TRAIN drops maps, whatever phase the net has.
    Raises LayerError for fewer axes than two and for another p.
    """

    type = "Python"
    num_bottom = 1
    num_top = 1
    param_block = ("python_param",)
    weight_names = ()
    keeps_places = True
    param_keys = ("p", "phase")
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        values = layer_parameters(self)
        try:
            self.p = float(values.get("p", ""))
        except (TypeError, ValueError):
            self.p = 0.0
        if not 0 < self.p < 1 or "phase" not in values:
            given = f"p must be above 0 and below 1, and phase TRAIN or TEST; got {values}"
            raise self.error(f"param_str: {given}", "python_param.param_str")
        self.drops = values["phase"] == "TRAIN"

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom[0].shape) < 2:
            raise self.error(f"x must have at least two axes, got shape {bottom[0].shape}", "bottom[0]")
        top[0].reshape(bottom[0].shape)
        self.factors: Array = np.full(bottom[0].shape[:2], 1 / (1 - self.p), self.dtype)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.drops:
            kept = rng.generator().random(self.factors.shape) >= self.p
            self.factors = (kept / (1 - self.p)).astype(self.dtype)
        self._times_factors(bottom[0].data, top[0].data)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            self._times_factors(top[0].diff, bottom[0].diff)

    def _times_factors(self, x: Array, out: Array) -> None:
        np.multiply(x, self.factors.reshape(*self.factors.shape, *[1] * (x.ndim - 2)), out=out)
