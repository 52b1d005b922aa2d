"""Mask R-CNN's ROIAlign: the mean of a grid of bilinear samples in each bin.

    y[r, c, ph, pw] = 1 / (nh * nw) * sum over nh x nw places of the bilinear value of x[n_r, c]

Source: Mask R-CNN (He et al. 2017), ROIAlign_cpu.cpp of maskrcnn-benchmark. Corners are scaled, not rounded; the size is
x2 - x1, at least 1 (not so with aligned, which also moves the roi by half a pixel). n = sampling_ratio, or when that is
not > 0 the bin's size rounded up. Places lie at (i + 0.5) / n of the bin; those outside [-1, H] count as 0:
RoiAlign.plan. The definition is the loop of means_by_definition in roi_samples.py.

Compiled, the fast way weighs each row of pixels by columns once, then adds rows, a block of channels at a time: pool_samples
and samples_backward. In NumPy it is two small matrix products for each roi, and backward their transposes: columns first, by
one product for each row of pixels, read where they lie; then rows. Channels are worked on in parts whose maps stay in the
cache while all rois read them, and no two threads write the same outputs. A matrix holds zeros for pixels that a bin does not
read, and zero times NaN is NaN: arrays with a value that is not finite go pixel by pixel, so that it spoils its own bin only.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.roi import Means
from minicaffe.kernels import kernel
from minicaffe.layer import data_bytes
from minicaffe.threads import get_num_threads, parts, run

from .operator import GridOperator
from .roi_geometry import AxisSteps, Ints, RoiPlan, at_least, cut_axis, cut_corners
from .roi_samples import SamplePlan, Samples, bilinear_taps

PART = 2**22
"""Approximate bytes of maps processed at a time."""

PAD = 16
"""Numbers between pixels. At a distance of a power of two, pixels would share few cache lines."""


@kernel
def pool_means(x: Array, plan: SamplePlan, y: Array) -> None:
    """Write y (R, C, PH, PW): the means of the samples of x (N, C, H, W)."""
    if not np.isfinite(x).all():
        _pool_by_pixels(x, plan, y)
        return
    blocks = list(_blocks(plan))
    run(partial(_pool, x[:, channels], blocks, y[:, channels]) for channels in _channel_parts(x.shape[1], x[:1].nbytes))


@kernel
def add_means(dy: Array, plan: SamplePlan, dx: Array) -> None:
    """Write dx (N, C, H, W) from dy (R, C, PH, PW)."""
    if not np.isfinite(dy).all():
        _backward_by_pixels(dy, plan, dx)
        return
    blocks, channel_parts = list(_blocks(plan)), _channel_parts(dx.shape[1], dx[:1].nbytes)
    run(partial(_backward, dy[:, channels], blocks, dx[:, channels]) for channels in channel_parts)


@dataclass(frozen=True, kw_only=True)
class GridMeans(GridOperator):
    """An operator whose y are the means of a grid of bilinear samples in each bin."""

    @abstractmethod
    def most_samples(self, length: int, bins: int) -> int:
        """Return the samples of a bin along an axis, if a roi has the map's whole length."""

    def pool(self, x: Array, plan: SamplePlan, y: Array | None, argmax: NDArray[np.int32] | None) -> None:
        assert y is not None
        pool_means(x, plan, y)

    def pool_backward(self, dy: Array, plan: SamplePlan, argmax: Array | None, dx: Array) -> None:
        add_means(dy, plan, dx)

    def working_bytes(self, x: Blob, y: Blob, *, train: bool, backward: bool) -> int:
        """Return the bytes for rois that cover the whole map.

        They are the samples' taps and matrices, first in float64; then the matrices and, on each thread, a part of the maps,
        twice in backward. Before that, one byte for each number of the maps, or of y in backward.
        """
        (_, channels, height, width), (rois, _, pooled_h, pooled_w) = x.shape, y.shape
        size, each = x.dtype.itemsize, len(_channel_parts(channels, data_bytes([x]) // max(x.shape[0], 1)))
        axes = (pooled_h, height), (pooled_w, width)
        samples = sum(pooled * self.most_samples(length, pooled) for pooled, length in axes)
        numbers = [rois * pooled * length for pooled, length in axes]
        making = 2 * rois * samples * (8 + size) + size * sum(numbers) + 8 * max(numbers)
        parts_at_work = get_num_threads() * data_bytes([x]) // max(each, 1)
        return max(x.count, y.count if backward else 0, making, size * sum(numbers) + parts_at_work * (2 if backward else 1))


@dataclass(frozen=True, kw_only=True)
class RoiAlign(GridMeans):
    """Means of samples. sampling_ratio: samples along a bin's side; if not > 0, as many as the bin has pixels."""

    sampling_ratio: int = 0
    aligned: bool = False

    def most_samples(self, length: int, bins: int) -> int:
        return self.sampling_ratio if self.sampling_ratio > 0 else -(-length // bins)

    def plan(self, rois: Array, size: tuple[int, int]) -> SamplePlan:
        """Return the plan of rois, scaled, moved by half a pixel if aligned, and cut into bins, and their samples.

        Nothing is rounded.
        """
        dtype = rois.dtype.type
        scaled = rois[:, 1:] * dtype(self.spatial_scale)
        corners = scaled - dtype(0.5 if self.aligned else 0)

        def cut(first: Array, last: Array, count: int) -> AxisSteps:
            return cut_axis(first, last - first if self.aligned else at_least(1, last - first), count)

        steps = cut_corners(scaled, corners, (self.pooled_h, self.pooled_w), cut)
        w, count_w = _axis_samples(steps.w, size[1], self.sampling_ratio)
        h, count_h = _axis_samples(steps.h, size[0], self.sampling_ratio)
        # The divisor is 1 for bins without samples.
        return RoiPlan(rois, size, steps, Samples(h, w, np.maximum(count_h * count_w, dtype(1))))

    def gpu_kernels(self, dtype: np.dtype[Any]) -> Means:
        return Means("roi_align_mean", dtype, (self.sampling_ratio, int(self.aligned)))


def _axis_samples(steps: AxisSteps, size: int, sampling_ratio: int) -> tuple[Array, Array]:
    """Return positions (R, pooled, K) along an axis, NaN outside [-1, size], and the number of samples in a bin (R,).

    Only the K places of a bin that can be on the map are listed.
    """
    length, start = steps.length, steps.start
    dtype = length.dtype.type
    count = sample_counts(length, sampling_ratio)
    step = np.maximum(length, 0).astype(np.float64) / np.maximum(count, 1)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        low = np.floor((-1 - start) / step[:, None]) - 2  # 2 more, because the places are rounded to their type
        high = np.ceil((size - start) / step[:, None]) + 2
    moving, total = step[:, None] > 0, count[:, None].astype(np.float64)  # step 0: aligned and x2 <= x1
    low = np.where(moving, low, 0).clip(0, total)
    high = np.where(moving, high, total).clip(0, total)
    number = low[:, :, None] + np.arange(int((high - low).max(initial=0)))
    # In the original's order of operations.
    offset = (number.astype(dtype) + dtype(0.5)) * length[:, None, None] / np.maximum(count, 1)[:, None, None]
    places = start[:, :, None] + offset
    used = (number < count[:, None, None]) & (places >= -1) & (places <= size) & (size > 0)
    return np.where(used, places, dtype(np.nan)), count


def sample_counts(length: Array, sampling_ratio: int) -> Array:
    """Return the number of samples (R,) for a bin's length (R,) along one axis, including samples off the map."""
    if sampling_ratio > 0:
        return np.full_like(length, sampling_ratio)
    counts: Array = np.maximum(np.ceil(length), length.dtype.type(0))
    return counts


class Block(NamedTuple):
    """The pixels that a roi reads: a block of an image, and its matrices by_row (PH, h) and by_column (PW, w)."""

    image: int
    rows: slice
    columns: slice
    by_row: Array
    by_column: Array


def _blocks(plan: SamplePlan) -> Iterator[Block]:
    """Yield the block of each roi."""
    (height, width), samples, images = plan.size, plan.places, plan.images.tolist()
    # (R, P, 2 K) each; the columns' weights include the divisor.
    rows, columns = bilinear_taps(samples.h, height), bilinear_taps(samples.w, width)
    by_row, by_column = rows.matrices(height), columns.matrices(width) / samples.per_bin[:, None, None]
    for r, (top, bottom, left, right) in enumerate(zip(*rows.span(), *columns.span())):
        yield Block(images[r], slice(top, bottom), slice(left, right), by_row[r, :, top:bottom], by_column[r, :, left:right])


def _channel_parts(channels: int, size: int) -> list[slice]:
    """Return the channels in parts. size: the bytes of an image."""
    if not channels:
        return []
    return parts(channels, least=32, each=-(-size // (PART * get_num_threads())))


def _pool(x: Array, blocks: Sequence[Block], y: Array) -> None:
    _, c, h, _ = x.shape
    pooled_h, pooled_w = y.shape[2:]
    pixels = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    by_columns = np.zeros((h, pooled_w, c + PAD), x.dtype)  # zeros, because the padding is multiplied too
    means = np.empty((pooled_h, pooled_w, c + PAD), x.dtype)
    channels_first = means[..., :c].transpose(2, 0, 1)
    for (image, rows, columns, by_row, by_column), out in zip(blocks, y):
        across = by_columns[: by_row.shape[1]]
        np.matmul(by_column, pixels[image, rows, columns], out=across[..., :c])  # (PW, w) @ (h', w, c)
        # (PH, h') @ (h', PW * (c + PAD)) is contiguous because it includes the padding, so BLAS needs no copy.
        np.matmul(by_row, across.reshape(len(across), pooled_w * (c + PAD)), out=means.reshape(pooled_h, -1))
        out[...] = channels_first


def _backward(dy: Array, blocks: Sequence[Block], dx: Array) -> None:
    n, c, h, w = dx.shape
    pooled_h, pooled_w = dy.shape[2:]
    pixels = np.zeros((n, h, w, c), dx.dtype)
    each = np.empty((pooled_h, pooled_w, c), dx.dtype)
    for (image, rows, columns, by_row, by_column), mine in zip(blocks, dy):
        each[...] = mine.transpose(1, 2, 0)
        across = np.matmul(by_row.T, each.reshape(pooled_h, pooled_w * c)).reshape(-1, pooled_w, c)  # (h', PW, c)
        pixels[image, rows, columns] += np.matmul(by_column.T, across)
    dx[...] = pixels.transpose(0, 3, 1, 2)


def _pool_by_pixels(x: Array, plan: SamplePlan, y: Array) -> None:
    """Run GridMeans.pool, reading only the pixels of a bin's samples: a NaN affects no other bin."""
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    for r, (image, rows, columns, weight) in enumerate(_pixels(plan)):
        with np.errstate(invalid="ignore"):
            values = x[image, rows[:, None], columns] * weight[..., None]
            values[rows < 0] = 0  # index -1 has read some pixel, which may be NaN
            values[:, columns < 0] = 0
            # (PH, 2 KH, PW, 2 KW, C)
            bins = values.reshape(y.shape[2], len(rows) // y.shape[2], y.shape[3], len(columns) // y.shape[3], y.shape[1])
            y[r] = bins.sum(axis=(1, 3)).transpose(2, 0, 1)


def _backward_by_pixels(dy: Array, plan: SamplePlan, dx: Array) -> None:
    """Run GridMeans.pool_backward, writing only the pixels that a bin's samples read."""
    pooled_h, pooled_w = dy.shape[2:]
    pixels = np.zeros((len(dx), *dx.shape[2:], dx.shape[1]), dx.dtype)
    for r, (image, rows, columns, weight) in enumerate(_pixels(plan)):
        with np.errstate(invalid="ignore"):
            each = dy[r].transpose(1, 2, 0).repeat(len(rows) // pooled_h, axis=0).repeat(len(columns) // pooled_w, axis=1)
            each *= weight[..., None]
            h, w = rows >= 0, columns >= 0
            # += would add only once if samples share a pixel.
            np.add.at(pixels[image], (rows[h][:, None], columns[w]), each[h][:, w])
    dx[...] = pixels.transpose(0, 3, 1, 2)


def _pixels(plan: SamplePlan) -> Iterator[tuple[int, Ints, Ints, Array]]:
    """Yield for each roi its image, the rows and columns of its samples' pixels, bin after bin, and their weights."""
    samples, images = plan.places, plan.images.tolist()
    rows, columns = bilinear_taps(samples.h, plan.size[0]), bilinear_taps(samples.w, plan.size[1])
    for r, per_bin in enumerate(samples.per_bin):
        weight = np.multiply.outer(rows.weight[r].ravel(), columns.weight[r].ravel() / per_bin)
        yield images[r], rows.pixel[r].ravel(), columns.pixel[r].ravel(), weight


MEAN_KERNELS = (pool_means,), (add_means,)
"""The kernels of layers that take means of samples."""
