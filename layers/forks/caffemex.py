"""Mask: the pixels that a mask selects. Each pixel, with its channels, becomes an item.

    y[k, c] = x[0, c, h_k, w_k]        (h_k, w_k): the k-th pixel, row by row, whose mask is 1 or more

Source: CaffeMex's mask_layer.cpp (sciencefans/CaffeMex_v2).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.layers.proposal.dynamic_tops import DynamicTops


class Mask(DynamicTops):
    """The pixels of one image whose mask is 1.

    bottom: x (1, C, H, W); mask (1, 1, H, W) of zeros and ones. top: y (K, C, 1, 1), K being how many pixels are kept; it has
    its true shape from the first forward on, before that all H W pixels.
    Raises LayerError for other shapes, and for a mask with other numbers, for which the original's K, the sum of the absolute
    values, is not how many it copies.
    """

    type = "Mask"
    num_bottom = 2
    num_top = 1
    index_bottoms = (1,)
    weight_names = ()

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._mask_known = False

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, mask = bottom[0].shape, bottom[1].shape
        if len(x) != 4 or x[0] != 1:
            raise self.error(f"x must be (1, C, H, W), got shape {x}", "bottom[0]")
        if mask != (1, 1, *x[2:]):
            raise self.error(f"the mask must be (1, 1, {x[2]}, {x[3]}), got shape {mask}", "bottom[1]")
        values = bottom[1].read_data().reshape(-1)  # read in reshape, which precedes each forward
        if self._mask_known and not np.isin(values, (0, 1)).all():
            other = values[~np.isin(values, (0, 1))][0]
            raise self.error(f"the mask must hold zeros and ones, got {other:g}", "bottom[1]")
        self._kept = np.flatnonzero(values == 1)
        pixels = len(self._kept) if self._mask_known else len(values)
        self._mask_known = True
        top[0].reshape(pixels, x[1], 1, 1)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        y.reshape(y.shape[:2])[...] = x.reshape(x.shape[1], x.shape[2] * x.shape[3])[:, self._kept].T

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            dx, dy = bottom[0].diff, top[0].diff
            dx[...] = 0
            dx.reshape(dx.shape[1], dx.shape[2] * dx.shape[3])[:, self._kept] = dy.reshape(dy.shape[:2]).T
