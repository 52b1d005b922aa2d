"""PSROILayer: the common part of the position-sensitive layers. Its channel rule is c = (d * G + gh) * G + gw.

Means of bilinear samples in position-sensitive bins, and their transpose: each bin is a weighted sum of rows of a
channels-last map.

The samples of a bin are a grid: columns are weighted first, then rows. A place's rois lie one after another, and weights are
repeated for each channel, so that every product is one long pass over numbers that the cache holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layer import Layer
from minicaffe.layers.roi.operator import PositionSensitiveOperator
from minicaffe.layers.roi.roi_geometry import Ints, RoiPlan
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.layers.roi.roi_samples import SamplePlan, bilinear_taps
from minicaffe.layers.roi.row_sums import add_rows, items
from minicaffe.proto import caffe_pb2
from minicaffe.threads import Scratch, get_num_threads, parts, run

PART = 2**23
"""Approximate bytes of maps processed at a time."""


class PSROILayer(RoiLayer):
    """A position-sensitive layer.

    bottom: x (N, output_dim * group_size^2, H, W); rois (R, 5). top: y (R, output_dim, group_size, group_size).
    """

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
    """Return the memory of all threads, each with a part of the grid.

    of_value: bytes for each number of the part's maps; of_output: for each number of y. x (N, D * G * G, H, W), y (R, D, G, G).
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
    """Compute y (R, D, G, G) from x (N, D * G * G, H, W), part by part.

    means maps a part's maps (D, P, H * W), P being its grid positions, to (P, R, D). size: bytes of work for an image.
    """
    x = np.ascontiguousarray(x)  # otherwise _maps would copy the whole image for each part
    if not x.size:
        y[...] = 0  # size is 0, so no part runs

    def pool(part: GridPart, scratch: Scratch) -> None:
        # The first index makes a view, so that rois may be an array of indices.
        y[:, :, part.gh, part.columns][part.rois] = means(_maps(x, plan, part), part, scratch).transpose(1, 2, 0)

    _run_parts(pool, plan, size)


def backward_in_parts(dy: Array, plan: RoiPlan[Any], dx: Array, size: int, back: Work) -> None:
    """Compute dx (N, D * G * G, H, W) from dy (R, D, G, G), part by part.

    back maps a part's dy (P, R, D), P being its grid positions, to (P, H * W, D).
    """
    for image in set(range(len(dx))).difference(plan.images.tolist()):
        dx[image] = 0  # no part writes the maps of an image without rois

    def backward(part: GridPart, scratch: Scratch) -> None:
        mine = dy[:, :, part.gh, part.columns][part.rois].transpose(2, 0, 1)
        _maps(dx, plan, part)[...] = back(mine, part, scratch).transpose(2, 0, 1)

    _run_parts(backward, plan, size)


def _maps(x: Array, plan: RoiPlan[Any], part: GridPart) -> Array:
    """Return a view (D, P, H * W) of x (N, D * G * G, H, W): the maps of the part's P grid positions."""
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
    """Return the columns of the grid in parts. size: bytes of work for an image."""
    return parts(group, each=1 + size // group // PART)


def _grid_parts(images: Ints, group: int, size: int) -> Iterator[GridPart]:
    for image in np.unique(images).tolist():
        mine = np.flatnonzero(images == image)
        rois = slice(None) if len(mine) == len(images) else mine  # a slice takes views; indices would copy
        for gh in range(group):
            yield from (GridPart(image, rois, gh, columns) for columns in _columns(group, size))


def group_cells(layer: caffe_pb2.LayerParameter, kind: type[Layer]) -> int:
    """Return group_size^2 of a prototxt's position-sensitive layer, whose class is `kind`."""
    return int(getattr(layer, kind.param_block[0]).group_size) ** 2


NONE = 2**40
"""The offset of a pixel that no sample reads: past any map."""

CHUNK = 2**22
"""Approximate bytes of weighted rows that backward makes at a time."""


class GridTaps(NamedTuple):
    """The pixels that the grid's bins read on a map (H * W,).

    rows: (G, KH, R); columns: (KW, G, R). The pixel is their sum; columns' weights hold the divisor. For a part of the grid
    rows are (KH, R), or (KH, P, R) if they differ between its positions, and columns are (KW, P, R).
    """

    rows: Ints
    row_weight: Array
    columns: Ints
    column_weight: Array

    def of(self, part: GridPart, pixels: int) -> GridTaps:
        """Return a part's rows (KH, R) and columns (KW, P, R), on the maps of its P grid positions, one after another."""
        columns = self.columns[:, part.columns][..., part.rois]
        start = np.arange(columns.shape[1])[:, None] * pixels  # where each place's map starts
        weight = self.column_weight[:, part.columns][..., part.rois]
        return GridTaps(self.rows[part.gh][:, part.rois], self.row_weight[part.gh][:, part.rois], columns + start, weight)


def grid_taps(plan: SamplePlan) -> GridTaps:
    """Return the taps of all bins."""
    samples, size = plan.places, plan.size
    rows, columns = bilinear_taps(samples.h, size[0]), bilinear_taps(samples.w, size[1])
    row = np.where(rows.pixel < 0, NONE, rows.pixel * size[1])  # the first pixel of each row
    column = np.where(columns.pixel < 0, NONE, columns.pixel)
    weight = columns.weight / samples.per_bin[:, None, None]
    return GridTaps(
        np.ascontiguousarray(row.transpose(1, 2, 0)),
        np.ascontiguousarray(rows.weight.transpose(1, 2, 0)),
        np.ascontiguousarray(column.transpose(2, 1, 0)),
        np.ascontiguousarray(weight.transpose(2, 1, 0)),
    )


def pool_part(x: Array, taps: GridTaps, scratch: Scratch) -> Array:
    """Return a part's means (P, R, D), in scratch, from x (D, P, H * W) and its taps."""
    dim, places, pixels = x.shape
    maps = scratch("maps", places * pixels + 1, dim, dtype=x.dtype)
    maps[:-1].reshape(places, pixels, dim)[...] = x.transpose(1, 2, 0)
    maps[-1] = 0  # "clip" maps NONE to this row
    # (KW, P, R * D), (KH, [P,] R * D)
    by_column, by_row = _for_channels(taps.column_weight, dim), _for_channels(taps.row_weight, dim)
    values = scratch("values", *by_column.shape, dtype=x.dtype)
    row_mean = scratch("row mean", *by_column.shape[1:], dtype=x.dtype)
    means = scratch("means", *by_column.shape[1:], dtype=x.dtype)
    means[...] = 0
    with np.errstate(invalid="ignore", over="ignore"):
        for row, weight in zip(taps.rows, by_row):
            items(maps).take((taps.columns + row).ravel(), out=items(values.reshape(-1, dim)), mode="clip")
            values *= by_column
            # np.add.reduce adds a single number pairwise, so its rounding would depend on the number of threads.
            row_mean[...] = values[0]
            for column in values[1:]:
                row_mean += column
            row_mean *= weight
            means += row_mean
    return means.reshape(places, -1, dim)


def part_backward(dy: Array, taps: GridTaps, pixels: int, group: int, scratch: Scratch) -> Array:
    """Return (P, H * W, D), in scratch: dy (P, R, D) added to the pixels that its samples read, with their weights.

    group: the grid's columns.
    """
    places, rois, dim = dy.shape
    maps = scratch("maps", places * pixels, dim, dtype=dy.dtype)
    maps[...] = 0
    # Count the columns of the whole grid: a part's number depends on the threads, but the order of sums must not.
    each = len(taps.rows) * len(taps.columns) * group * dim * dy.itemsize
    step = max(1, CHUNK // max(each, 1))
    for some in (slice(r, r + step) for r in range(0, rois, step)):
        by_row = _for_channels(taps.row_weight[..., some], dim)
        by_column = _for_channels(taps.column_weight[..., some], dim)
        weighted = scratch("weighted", len(by_row), *by_column.shape, dtype=dy.dtype)  # (KH, KW, P, R' * D)
        mine = dy[:, some].reshape(places, -1)
        with np.errstate(invalid="ignore", over="ignore"):
            for out, weight in zip(weighted, by_row):
                np.multiply(by_column, mine * weight, out=out)
        rows = taps.rows[..., some]
        across = rows.reshape(len(rows), 1, -1, rows.shape[-1])  # (KH, 1, P or 1, R')
        target = (across + taps.columns[..., some]).ravel()  # (KH, KW, P, R'), as weighted
        source = np.flatnonzero(target < len(maps))  # without the NONEs
        add_rows(weighted.reshape(-1, dim), source, target[source], maps, scratch)
    return maps.reshape(places, pixels, dim)


def _for_channels(weight: Array, dim: int) -> Array:
    """Return weight (..., R) repeated for each channel: (..., R * dim)."""
    each = np.empty((*weight.shape, dim), weight.dtype)
    each[...] = weight[..., None]
    return each.reshape(*weight.shape[:-1], -1)
