"""Dropout: y = x * mask * scale, mask_i = 1 with probability 1 - dropout_ratio.

Source: Caffe's dropout_layer.hpp (Srivastava et al., 2014), the scale_train of Fast R-CNN's fork, and the sample_weights_test
of caffe-segnet (Kendall et al., Bayesian SegNet, 2015).

ENet's SpatialDropoutLayer: whole maps are dropped at random.

    y = x m / (1 - p),  m = 0 with probability p and 1 otherwise, one for each map; without training m = 1

Source: ENet's spatial_dropout.py, which divides by 1 - p in both phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.cuda.launches import data_pair, diff_pair
from minicaffe.layer import Costs, Unary
from minicaffe.layers.proposal.param_str import StandIn, layer_parameters
from minicaffe.mode import TRAIN
from minicaffe.threads import Index, each_block


class Dropout(Unary):
    """Random elements zeroed with probability dropout_ratio in TRAIN, with a new mask for each forward.

    scale_train (default): y = x * mask / (1 - dropout_ratio) in TRAIN, y = x in TEST.
    Otherwise: y = x * mask in TRAIN, y = x * (1 - dropout_ratio) in TEST.
    sample_weights_test: TEST draws a mask too, and computes what TRAIN does.
    bottom: x (any shape). top: y (the same shape); may be in place.
    Raises LayerError when dropout_ratio is not in [0, 1).
    """

    type = "Dropout"
    in_place = True
    param_block = ("dropout_param",)
    elementwise = True
    mask: Blob
    """The mask of the last forward, uint8, of the bottom's shape: 1 for kept elements. Without `draws` it is not used."""
    draws: bool
    """True in TRAIN, and in TEST with sample_weights_test."""
    factor: float
    """The factor of the kept elements in the last forward."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.dropout_param
        self.dropout_ratio, self.scale_train = param.dropout_ratio, param.scale_train
        if not 0 <= self.dropout_ratio < 1:
            raise self.error(f"dropout_ratio must be in [0, 1), got {self.dropout_ratio:g}", "dropout_param.dropout_ratio")
        self.mask, self.factor = Blob((), np.uint8), 1.0  # one byte, where Caffe keeps 4
        self.draws = self.phase == TRAIN or param.sample_weights_test
        self.stateful = self.phase != TRAIN and self.draws  # the same masks for a seed, image after image
        self.copies = (int(self.draws), 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(bottom[0].shape)
        self.only_shares = self.scale_train and top[0] is bottom[0] and not self.stateful
        if self.draws:
            self.mask.reshape(bottom[0].shape)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(saved=bottom[0].count if self.draws else 0)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._draw()
        self._times_factor(bottom[0].data, top[0].data, top[0] is bottom[0])

    def _draw(self) -> None:
        """Draw a new mask, and set its factor."""
        keep = 1 - self.dropout_ratio
        if self.draws:
            self.mask.data[...] = dropout_mask(self.mask.shape, self.dropout_ratio, self.dtype)
            # Caffe's scale_ has the blobs' type.
            self.factor = float(self.dtype.type(1) / self.dtype.type(keep)) if self.scale_train else 1.0
        else:
            self.factor = 1.0 if self.scale_train else keep

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            self._times_factor(top[0].diff, bottom[0].diff, top[0] is bottom[0])

    def _times_factor(self, source: Array, target: Array, in_place: bool) -> None:
        if self._does_nothing and in_place:
            return
        x, y, factor = source.reshape(-1), target.reshape(-1), self.factor
        mask = self.mask.read_data().reshape(-1) if self.draws else None

        def step(index: Index) -> None:
            if mask is not None:
                np.multiply(x[index], mask[index], out=y[index])  # as in Caffe, a dropped NaN or inf gives NaN
                if factor != 1:
                    y[index] *= factor
            else:
                np.multiply(x[index], factor, out=y[index])

        each_block(x.shape, step)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._draw()
        if not self._does_nothing or top[0] is not bottom[0]:
            self._launch(top[0].count, *data_pair(bottom[0], top[0]))

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0] and (not self._does_nothing or top[0] is not bottom[0]):
            self._launch(top[0].count, *diff_pair(top[0], bottom[0]))

    @property
    def _does_nothing(self) -> bool:
        return not self.draws and self.factor == 1

    def _launch(self, count: int, source: int, target: int) -> None:
        mask = self.mask.device_data("read") if self.draws else 0
        self.launch("dropout.dropout", count, count, source, mask, self.factor, target)


def dropout_mask(shape: tuple[int, ...], dropout_ratio: float, dtype: np.dtype[Any]) -> Array:
    """Return 0s and 1s of that shape and dtype (float32 or float64), each 0 with probability dropout_ratio."""
    mask = rng.generator().random(shape, dtype=dtype.type)
    return np.greater_equal(mask, dropout_ratio, out=mask)


class SpatialDropout(StandIn):
    """y = x m / (1 - p), with one m for each map; dx = dy m / (1 - p). Stands in for spatial_dropout.SpatialDropoutLayer.

    bottom: x (N, C, ...). top: y (x's shape).
    param_str: p, above 0 and below 1, and phase: TRAIN drops maps, whatever phase the net has.
    Raises LayerError for fewer axes than two and for another p.
    """

    num_bottom = 1
    num_top = 1
    same_positions = True
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
