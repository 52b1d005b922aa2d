"""PSROILayer: what the position-sensitive layers have in common: the channel rule c = (d * G + gh) * G + gw."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2
from minicaffe.threads import Scratch, get_num_threads, parts, run

from .operator import PositionSensitiveOperator
from .roi_geometry import Ints, RoiPlan
from .roi_layer import RoiLayer

PART = 2**23
"""Bytes of maps that are worked on at a time, about."""


class PSROILayer(RoiLayer):
    """bottom: x (N, output_dim * group_size^2, H, W); rois (R, 5). top: y (R, output_dim, group_size, group_size)."""

    operator: PositionSensitiveOperator

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        block = self.param_block[0]
        param = getattr(self.param, block)
        self.output_dim = int(param.output_dim)
        if self.output_dim <= 0:
            raise self.error(f"output_dim must be > 0, got {self.output_dim}", f"{block}.output_dim")
        if not param.HasField("spatial_scale"):
            raise self.error("spatial_scale must be given", block)
        self.read_operator(block)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        dim, group, shape = self.output_dim, self.operator.group_size, bottom[0].shape
        if len(shape) == 4 and shape[1] != dim * group**2:
            wanted = f"output_dim * group_size^2 = {dim} * {group}^2 = {dim * group**2}"
            raise self.error(f"the feature map has {shape[1]} channels, but {wanted} are needed", "bottom[0]")
        super().reshape(bottom, top)


def part_bytes(x: Blob, y: Blob, of_value: int, of_output: int) -> int:
    """The memory of all threads, each with a part of the grid: of_value bytes a number of its maps, of_output a number of y.

    x (N, D * G * G, H, W), y (R, D, G, G).
    """
    (rois, dim, group, _), pixels = y.shape, x.shape[2] * x.shape[3]
    columns = max(-(-group // len(_columns(group, of_value * x.count // max(x.shape[0], 1)))), 1)
    return get_num_threads() * columns * dim * (of_value * pixels + of_output * rois)


class GridPart(NamedTuple):
    """A part of the work: an image, its rois, a row of the grid over them, and some of its columns."""

    image: int
    rois: slice | Ints
    gh: int
    columns: slice


Work = Callable[[Array, GridPart, Scratch], Array]


def pool_in_parts(x: Array, plan: RoiPlan[Any], y: Array, size: int, means: Work) -> None:
    """x (N, D * G * G, H, W) -> y (R, D, G, G): means(maps (D, P, H * W) of a part's P places in the grid) -> (P, R, D).

    size: bytes that are worked on for an image.
    """
    x = np.ascontiguousarray(x)  # else _maps would copy the whole image for every part
    if not x.size:
        y[...] = 0  # no part runs: size is 0

    def pool(part: GridPart, scratch: Scratch) -> None:
        # the first index makes a view, so that rois may be an array of indices
        y[:, :, part.gh, part.columns][part.rois] = means(_maps(x, plan, part), part, scratch).transpose(1, 2, 0)

    _run_parts(pool, plan, size)


def backward_in_parts(dy: Array, plan: RoiPlan[Any], dx: Array, size: int, back: Work) -> None:
    """dy (R, D, G, G) -> dx (N, D * G * G, H, W): back(dy (P, R, D) of a part's P places in the grid) -> (P, H * W, D)."""
    for image in set(range(len(dx))).difference(plan.images.tolist()):
        dx[image] = 0  # no part writes the maps of an image without rois

    def backward(part: GridPart, scratch: Scratch) -> None:
        mine = dy[:, :, part.gh, part.columns][part.rois].transpose(2, 0, 1)
        _maps(dx, plan, part)[...] = back(mine, part, scratch).transpose(2, 0, 1)

    _run_parts(backward, plan, size)


def _maps(x: Array, plan: RoiPlan[Any], part: GridPart) -> Array:
    """x (N, D * G * G, H, W) -> a view (D, P, H * W): the maps that the part's P places in the grid read."""
    group = plan.shape[1]
    view: Array = x[part.image].reshape(x.shape[1] // group**2, group, group, -1)[:, part.gh, part.columns]
    return view


def _run_parts(work: Callable[[GridPart, Scratch], None], plan: RoiPlan[Any], size: int) -> None:
    """Do the work on all rois' bins, in parts, on all threads.

    A part is about as much as a core's cache holds. No two parts have the same channels of an image, or the same bins.
    """
    todo = list(_grid_parts(plan.images, plan.shape[1], size)) if size else []

    def some(mine: slice) -> None:
        scratch = Scratch()
        for part in todo[mine]:
            work(part, scratch)

    run(partial(some, mine) for mine in parts(len(todo)))


def _columns(group: int, size: int) -> list[slice]:
    """The columns of the grid in parts; size: bytes that are worked on for an image."""
    return parts(group, each=1 + size // group // PART)


def _grid_parts(images: Ints, group: int, size: int) -> Iterator[GridPart]:
    for image in np.unique(images).tolist():
        mine = np.flatnonzero(images == image)
        rois = slice(None) if len(mine) == len(images) else mine  # a slice takes views, indices copy
        for gh in range(group):
            yield from (GridPart(image, rois, gh, columns) for columns in _columns(group, size))


def group_cells(layer: caffe_pb2.LayerParameter, kind: type[Layer]) -> int:
    """Return group_size^2 of a position-sensitive layer of a prototxt, whose class is `kind`."""
    return int(getattr(layer, kind.param_block[0]).group_size) ** 2
