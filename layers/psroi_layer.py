"""PSROILayer: what the position-sensitive layers share: the channel rule c = (d * G + gh) * G + gw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.blob import Blob
from minicaffe.blocks import Scratch
from minicaffe.cuda.roi import PositionSensitive, Sizes
from minicaffe.errors import Error
from minicaffe.threads import parts, run

from .roi_geometry import Array, Ints
from .roi_layer import RoiLayer

PART = 2**23
"""Bytes of maps that are worked on at a time, about."""


class PSROILayer(RoiLayer):
    """bottom: x (N, output_dim * group_size^2, H, W); rois (R, 5). top: y (R, output_dim, group_size, group_size).

    A subclass's setup sets kernels.
    """

    position_sensitive = True
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


class GridPart(NamedTuple):
    """A part of the work: an image, its rois, a row of the grid over them, and some of its columns."""

    image: int
    rois: slice | Ints
    gh: int
    columns: slice


def run_parts(work: Callable[[GridPart, Scratch], None], images: Ints, group: int, size: int) -> None:
    """Do the work on all rois' bins, in parts, on all threads; size: bytes of an image's maps.

    A part is about as much as a core's cache holds. No two parts have the same channels of an image, or the same bins.
    """
    todo = list(_grid_parts(images, group, 1 + size // group // PART)) if size else []

    def some(mine: slice) -> None:
        scratch = Scratch()
        for part in todo[mine]:
            work(part, scratch)

    run(partial(some, mine) for mine in parts(len(todo)))


def gradient_of(x_shape: Sequence[int], dtype: DTypeLike, images: Ints, out: Array | None) -> Array:
    """An array for run_parts to fill: out if given, or a new one; 0 in the images that none of the rois is on."""
    dx = np.empty(tuple(x_shape), dtype) if out is None else out
    for image in set(range(len(dx))).difference(images.tolist()):
        dx[image] = 0
    return dx


def _grid_parts(images: Ints, group: int, each: int) -> Iterator[GridPart]:
    for image in np.unique(images).tolist():
        mine = np.flatnonzero(images == image)
        rois = slice(None) if len(mine) == len(images) else mine
        for gh in range(group):
            yield from (GridPart(image, rois, gh, columns) for columns in parts(group, each=each))


def grid(x: Array, group: int, part: GridPart) -> Array:
    """x (N, D * G * G, H, W) -> a view (D, P, H * W): the maps that the part's P places in the grid read."""
    channels, pixels = x.shape[1], x.shape[2] * x.shape[3]
    view: Array = x[part.image].reshape(channels // group**2, group, group, pixels)[:, part.gh, part.columns]
    return view
