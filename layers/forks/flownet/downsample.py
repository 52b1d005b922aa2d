"""Downsample: maps made smaller with a linear filter, corners on corners; NaN counts as unknown.

    y = A x B^T / A (x is known) B^T, with the weights max(0, 1 - |place - pixel| / ratio) of rows in A (h, H), of columns in B
    (w, W)

Place i of h lies at i ratio, ratio = (H - 1) / (h - 1); y is NaN where more than half as much weight is unknown as known.
Source: FlowNet 2's downsample_layer.cu (Ilg et al., 2017).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer


class Downsample(Layer):
    """y (N, C, h, w): the weighted mean of the known pixels around each place. It has no gradient, in the fork neither.

    bottom: x (N, C, H, W), optionally a map of the wanted size. top: y (N, C, top_height, top_width), of downsample_param or
    the map. A map of the wanted size is copied.
    Raises LayerError for bottoms without four axes and a pixel, and for a size that is 0, 1 or larger than the map's.
    """

    type = "Downsample"
    num_bottom = (1, 2)
    num_top = 1
    param_block = ("downsample_param",)
    index_bottoms = (0, 1)
    weight_names = ()
    has_gradient = False

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for i, blob in enumerate(bottom):
            if len(blob.shape) != 4 or 0 in blob.shape[2:]:
                raise self.error(f"the maps must be (N, C, H, W) with pixels, got shape {blob.shape}", f"bottom[{i}]")
        param, shape = self.param.downsample_param, bottom[0].shape
        size = bottom[1].shape[2:] if len(bottom) > 1 else (param.top_height, param.top_width)
        self.same = size == shape[2:]
        if not self.same and (min(size) < 2 or any(a > b for a, b in zip(size, shape[2:]))):
            raise self.error(
                f"the size must be from 2 x 2 to the map's {shape[2]} x {shape[3]}, got {size}", "downsample_param"
            )
        if not self.same:
            self.rows, self.columns = (weights(a, b).astype(self.dtype) for a, b in zip(shape[2:], size))
        top[0].reshape(*shape[:2], *size)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = bottom[0].data, top[0].data
        if self.same:
            y[...] = x
            return
        unknown = np.isnan(x)
        if not unknown.any():
            total = self.rows.sum(axis=1)[:, None] * self.columns.sum(axis=1)
            np.divide(self.rows @ x @ self.columns.T, total, out=y)
            return
        known, lost = (self.rows @ mask.astype(self.dtype) @ self.columns.T for mask in (~unknown, unknown))
        values = self.rows @ np.where(unknown, self.dtype.type(0), x) @ self.columns.T
        y[...] = np.nan
        np.divide(values, known, out=y, where=lost <= known / 2)


def weights(size: int, output: int) -> Array:
    """What each of size pixels adds to each of output places (output, size), before the division by their sum."""
    ratio = np.float32(size - 1) / np.float32(output - 1)
    at = np.arange(output, dtype=np.float32) / np.float32(output - 1) * np.float32(size - 1)
    return np.asarray(np.maximum(0, 1 - np.abs(np.arange(size, dtype=np.float32) - at[:, None]) / ratio))
