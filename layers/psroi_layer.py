"""PSROILayer: what the position-sensitive layers share: the channel rule c = (d * G + gh) * G + gw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Blob
from minicaffe.cuda.roi import PositionSensitive, Sizes
from minicaffe.errors import Error

from .roi_geometry import Array, Bins
from .roi_layer import RoiLayer


class PSROILayer(RoiLayer):
    """bottom: x (N, output_dim * group_size^2, H, W); rois (R, 5). top: y (R, output_dim, group_size, group_size).

    A subclass's setup sets kernels.
    """

    kernels: PositionSensitive

    def read_group(self, param: Any, block: str) -> None:
        """Take spatial_scale, output_dim and group_size from param; LayerError when one is missing or not positive."""
        self.output_dim = self.read_positive(param, block, "output_dim")
        self.group_size = self.read_positive(param, block, "group_size")
        if not param.HasField("spatial_scale"):
            raise self.error("spatial_scale must be given", block)
        self.spatial_scale = self.read_scale(param, block)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.check_shapes(bottom)
        dim, group, channels = self.output_dim, self.group_size, bottom[0].shape[1]
        if channels != dim * group**2:
            wanted = f"output_dim * group_size^2 = {dim} * {group}^2 = {dim * group**2}"
            raise self.error(f"the feature map has {channels} channels, but {wanted} are needed", "bottom[0]")
        top[0].reshape(bottom[1].shape[0], dim, group, group)

    def pool_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        self.kernels.pool(sizes, bottom[0], bottom[1], top[0], bad)

    def spread_gpu(self, top: Sequence[Blob], bottom: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        self.kernels.backward(sizes, bottom[1], top[0], bottom[0], bad)


def check_channels(channels: int, group: int) -> None:
    """Error unless the channels are a multiple of group^2."""
    if channels % group**2:
        raise Error(f"{channels} channels are not a multiple of group_size^2 = {group**2}")


def grouped(x: Array, group: int) -> Array:
    """x (N, D * G * G, H, W) -> a copy (N, G, G, H, W, D): the map that each bin reads."""
    n, c, h, w = x.shape
    return np.ascontiguousarray(x.reshape(n, c // group**2, group, group, h, w).transpose(0, 2, 3, 4, 5, 1))


def ungrouped(maps: Array) -> Array:
    """The inverse of grouped: (N, G, G, H, W, D) -> (N, D * G * G, H, W)."""
    n, group, _, h, w, dim = maps.shape
    x: Array = maps.transpose(0, 5, 1, 2, 3, 4).reshape(n, dim * group**2, h, w)
    return x


def bin_slices(bins: Bins) -> Iterator[tuple[int, int, int, slice, slice]]:
    """(roi, gh, gw, rows, columns) of every bin that is not empty."""
    rows = np.stack([bins.hstart, bins.hend], axis=2).tolist()
    columns = np.stack([bins.wstart, bins.wend], axis=2).tolist()
    for r, (row_spans, column_spans) in enumerate(zip(rows, columns)):
        spans = [(gw, slice(*span)) for gw, span in enumerate(column_spans) if span[0] < span[1]]
        for gh, (start, end) in enumerate(row_spans):
            if start < end:
                yield from ((r, gh, gw, slice(start, end), column) for gw, column in spans)
