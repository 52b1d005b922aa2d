"""Dropout: y = x * mask * scale, mask_i = 1 with probability 1 - dropout_ratio.

Source: Caffe's dropout_layer.hpp (Srivastava et al., 2014), and the scale_train of Fast R-CNN's fork.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import rng
from minicaffe.blob import Blob
from minicaffe.layer import Layer
from minicaffe.mode import TRAIN


class Dropout(Layer):
    """Drop each element with probability dropout_ratio while training; one new mask for each forward.

    scale_train (default): y = x * mask / (1 - dropout_ratio) in TRAIN, y = x in TEST.
    Otherwise: y = x * mask in TRAIN, y = x * (1 - dropout_ratio) in TEST.
    bottom: x (any shape). top: y (the same shape); may be in place.
    Raises LayerError when dropout_ratio is not in [0, 1).
    """

    type = "Dropout"
    num_bottom = 1
    num_top = 1
    in_place = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.dropout_param
        self.dropout_ratio, self.scale_train = param.dropout_ratio, param.scale_train
        if not 0 <= self.dropout_ratio < 1:
            raise self.error(f"dropout_ratio must be in [0, 1), got {self.dropout_ratio:g}", "dropout_param.dropout_ratio")
        self._factor: NDArray[Any] | float = 1.0

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        keep = 1 - self.dropout_ratio
        if self.phase == TRAIN:
            self._factor = dropout_mask(bottom[0].shape, self.dropout_ratio, self.dtype)
            if self.scale_train:
                self._factor /= keep
        else:
            self._factor = 1.0 if self.scale_train else keep
        self._times_factor(bottom[0].data, top[0].data, top[0] is bottom[0])

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            self._times_factor(top[0].diff, bottom[0].diff, top[0] is bottom[0])

    def _times_factor(self, source: NDArray[Any], target: NDArray[Any], in_place: bool) -> None:
        if isinstance(self._factor, float) and self._factor == 1:
            if not in_place:
                target[...] = source
        else:
            np.multiply(source, self._factor, out=target)


def dropout_mask(shape: tuple[int, ...], dropout_ratio: float, dtype: np.dtype[Any]) -> NDArray[Any]:
    """shape -> 0s and 1s of dtype (float32 or float64), each 0 with probability dropout_ratio, from the one generator."""
    mask = rng.generator().random(shape, dtype=dtype.type)
    return np.greater_equal(mask, dropout_ratio, out=mask)
