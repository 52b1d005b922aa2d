"""Caffe's ROIAlign: the maximum of bilinear samples at unit steps in each bin.

    y[r, c, ph, pw] = max of the bilinear values of x[n_r, c] at (hstart + i, wstart + j) below (hend, wend)

Source: the ROIAlign layer written for Caffe (roi_align_layer.cu). Corners are scaled, not rounded; the size is x2 - x1 + 1
on the map, never clamped up, so that a malformed roi is empty; bins are clipped to [0, H]: RoiAlignMax.plan. The
neighbours of a place are its floor and ceil; one outside the map adds 0; at a whole coordinate both are one pixel, added
twice: four_pixels. The definition is roi_align_max_by_definition.

In NumPy, forward works on bins that have as many samples each way together, so that every step is one pass over many
samples with their channels side by side. Backward puts each dy on its greatest sample, which is an assignment, since a
sample belongs to one bin and is greatest at most once in a channel; then the samples on the pixels, two small matrix
products for each roi. Blocks of rois, and in backward of channels, are tasks, the same on however many threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.roi import Winners
from minicaffe.kernels import kernel
from minicaffe.layer import data_bytes
from minicaffe.threads import get_num_threads, run

from .operator import GridOperator
from .roi_geometry import LOWEST, AxisSteps, Ints, RoiPlan, cut_axis, cut_corners
from .roi_samples import SamplePlan, Samples

CHUNK = 2**20
"""Values of y that a task works on."""

VALUES = 2**18
"""Samples' values that one step of a task works on, unless one bin's samples have more."""

CHANNELS = 256
"""Channels of a task of backward."""

ROIS = 64
"""Rois whose matrices are kept at a time."""


@kernel
def pool_maxima(x: Array, plan: SamplePlan, y: Array | None, argmax: NDArray[np.int32] | None) -> None:
    """Write y (R, C, PH, PW), the maxima of the samples of x (N, C, H, W), and argmax. None: not wanted."""
    rois, high, wide = plan.shape
    table, images = _bordered(x), plan.images
    clean = max(float(x.max(initial=0)), -float(x.min(initial=0))) < -LOWEST / 8  # True only if every sample is above -FLT_MAX
    step = max(1, CHUNK // max(x.shape[1] * high * wide, 1))

    def pool(part: slice) -> None:
        samples = Samples(*(array[part] for array in plan.places))
        maxima, numbers = _greatest(table, images[part], samples, plan.size, clean, argmax is not None)
        if y is not None:
            y[part] = maxima.transpose(0, 3, 1, 2)
        if argmax is not None:
            argmax[part] = numbers.transpose(0, 3, 1, 2)

    run([partial(pool, slice(r, r + step)) for r in range(0, rois, step)])


@kernel
def add_at_samples(dy: Array, plan: SamplePlan, argmax: Array, dx: Array) -> None:
    """Write dx (N, C, H, W) from dy (R, C, PH, PW), at the greatest samples."""
    if not np.isfinite(dy).all():
        _add_at_pixels(dy, plan, argmax, dx)
        return
    images, (height, width), samples = plan.images, plan.size, plan.places
    pixels = np.zeros((len(dx), height, width, dx.shape[1]), dx.dtype)
    for part in (slice(r, r + ROIS) for r in range(0, len(dy), ROIS)):
        axes = [(_axis(rows, height), _axis(columns, width)) for rows, columns in zip(samples.h[part], samples.w[part])]
        of_part = dy[part], argmax[part], images[part], axes
        blocks = (slice(c, c + CHANNELS) for c in range(0, dx.shape[1], CHANNELS))
        run([partial(_add_matrices, *of_part, block, pixels[..., block]) for block in blocks])
    dx[...] = pixels.transpose(0, 3, 1, 2)


@dataclass(frozen=True, kw_only=True)
class RoiAlignMax(GridOperator):
    """Maxima of samples. argmax holds i * (W + 1) + j of each bin's first greatest sample, -1 for none."""

    takes_maxima = True

    def plan(self, rois: Array, size: tuple[int, int]) -> SamplePlan:
        """Return the plan of rois, scaled and cut into bins, and their samples. Nothing is rounded."""
        one = rois.dtype.type(1)
        corners = rois[:, 1:] * rois.dtype.type(self.spatial_scale)
        pooled = self.pooled_h, self.pooled_w
        steps = cut_corners(corners, corners, pooled, lambda first, last, n: cut_axis(first, last - first + one, n))
        h, w = _axis_samples(steps.h, size[0]), _axis_samples(steps.w, size[1])
        return RoiPlan(rois, size, steps, Samples(h, w, np.ones(len(rois), rois.dtype)))

    def pool(self, x: Array, plan: SamplePlan, y: Array | None, argmax: NDArray[np.int32] | None) -> None:
        pool_maxima(x, plan, y, argmax)

    def pool_backward(self, dy: Array, plan: SamplePlan, argmax: Array | None, dx: Array) -> None:
        assert argmax is not None
        add_at_samples(dy, plan, argmax, dx)

    def working_bytes(self, x: Blob, y: Blob, *, train: bool, backward: bool) -> int:
        """Return the bytes of forward, or of backward for rois that cover the whole map.

        Forward: a copy of the maps and, on each thread, a task's maxima and a step's samples, four times (values, and weighted,
        summed and compared ones).

        Backward: the maps and the matrices of some rois; on each thread dy at a roi's samples (and at the last one's), their
        numbers, and dy on its rows and on its pixels. Before that, one byte for each number of dy.
        """
        of_task = min(CHUNK, y.count) * (2 if train else 1) + 4 * VALUES
        size, threads = x.dtype.itemsize, get_num_threads()
        forward = data_bytes([x]) + threads * of_task * size
        if not backward:
            return forward
        (rois, channels, pooled_h, pooled_w), (height, width) = y.shape, x.shape[2:]
        whole = np.array([[0, 0, 0, width - 1, height - 1]], x.dtype)
        places = replace(self, spatial_scale=1).plan(whole, (height, width)).places
        tall, broad = (np.count_nonzero(~np.isnan(axis)) for axis in (places.h, places.w))
        matrices = min(rois, ROIS) * (tall * (height + 1) + broad * (width + 1))
        of_roi = min(CHANNELS, channels) * (size * (2 * tall * broad + (tall + height) * width) + 8 * pooled_h * pooled_w)
        return int(max(forward, y.count, data_bytes([x]) + size * matrices + threads * of_roi))

    def gpu_kernels(self, dtype: np.dtype[Any]) -> Winners:
        return Winners("roi_align_max", dtype)


def _axis_samples(steps: AxisSteps, size: int) -> Array:
    """Return sample positions (R, pooled, K) along an axis, one pixel apart from the bin's start; NaN from its end on."""
    start, end = steps.start.clip(0, size), steps.end.clip(0, size)
    # + 1: rounding may add one place.
    places = np.ones((*start.shape, int(np.ceil(end - start).max(initial=0)) + 1), start.dtype)
    places[:, :, 0] = start
    np.cumsum(places, axis=2, out=places)  # as in the original's loop: start + i would round otherwise
    return np.where(places < end[:, :, None], places, start.dtype.type(np.nan))


def roi_align_max_by_definition(  # noqa: PLR0913, PLR0917 - the arrays of a plan
    x: Array, rois: Ints, sh: Array, sw: Array, one: Any, lowest: Any, y: Array, argmax: NDArray[np.int32], first: int
) -> None:
    """Write the maxima of one image's samples to y and their numbers to argmax, both (R, C, PH, PW).

    x (H + 1, W + 1, C') has zeros past the map; it holds the channels from `first` on. sh (R, PH, KH) and sw (R, PW, KW):
    sample positions. argmax: i * (W + 1) + j of each greatest sample. An empty bin has 0 and -1. y or argmax without elements:
    not wanted.
    """
    best, where = np.empty(x.shape[2], x.dtype), np.empty(x.shape[2], np.int32)
    for r in rois:
        for ph in range(sh.shape[1]):
            for pw in range(sw.shape[1]):
                best[:] = 0 if np.isnan(sh[r, ph, 0]) or np.isnan(sw[r, pw, 0]) else lowest
                where[:] = -1
                for i in range(sh.shape[2]):
                    h = sh[r, ph, i]
                    if np.isnan(h):  # the end of the bin's samples
                        break
                    top, bottom = int(np.floor(h)), int(np.ceil(h))
                    of_top, of_bottom = one - h + np.floor(h), one - np.ceil(h) + h
                    for j in range(sw.shape[2]):
                        w = sw[r, pw, j]
                        if np.isnan(w):
                            break
                        left, right = int(np.floor(w)), int(np.ceil(w))
                        of_left, of_right = one - w + np.floor(w), one - np.ceil(w) + w
                        low_left, low_right = x[bottom, left], x[bottom, right]
                        high_left, high_right = x[top, left], x[top, right]
                        by_low_left, by_low_right = of_left * of_bottom, of_right * of_bottom
                        by_high_left, by_high_right = of_left * of_top, of_right * of_top
                        number = np.int32(i * x.shape[1] + j)
                        for c in range(len(best)):
                            # In the original's order of additions.
                            value = by_low_left * low_left[c] + by_low_right * low_right[c]
                            value = value + by_high_left * high_left[c] + by_high_right * high_right[c]
                            greater = value > best[c]
                            where[c] = number if greater else where[c]
                            best[c] = value if greater else best[c]
                if y.size:
                    for c in range(len(best)):
                        y[r, first + c, ph, pw] = best[c]
                if argmax.size:
                    for c in range(len(best)):
                        argmax[r, first + c, ph, pw] = where[c]


def roi_align_max_backward_by_definition(  # noqa: PLR0913, PLR0917 - the arrays of a plan
    dy: Array, images: Ints, sh: Array, sw: Array, one: Any, argmax: Array, dx: Array, first: int, end: int
) -> None:
    """Add each dy (R, C, PH, PW) to dx (N, C, H, W) at its greatest sample's pixels, with their weights.

    Only channels from first to end are computed.
    """
    height, width = dx.shape[2], dx.shape[3]
    for r in range(len(dy)):
        for c in range(first, end):
            plane = dx[images[r], c]
            for ph in range(dy.shape[2]):
                for pw in range(dy.shape[3]):
                    if argmax[r, c, ph, pw] < 0:
                        continue
                    # Unsigned, because it divides faster.
                    number = np.uint32(argmax[r, c, ph, pw])
                    i, j = number // np.uint32(width + 1), number % np.uint32(width + 1)
                    if i >= sh.shape[2] or j >= sw.shape[2] or np.isnan(sh[r, ph, i]) or np.isnan(sw[r, pw, j]):
                        continue  # argmax belongs to other rois
                    h, w, each = sh[r, ph, i], sw[r, pw, j], dy[r, c, ph, pw]
                    top, bottom, left, right = int(np.floor(h)), int(np.ceil(h)), int(np.floor(w)), int(np.ceil(w))
                    of_top, of_bottom = one - h + np.floor(h), one - np.ceil(h) + h
                    of_left, of_right = one - w + np.floor(w), one - np.ceil(w) + w
                    plane[top, left] += of_top * of_left * each
                    if right < width:
                        plane[top, right] += of_top * of_right * each
                    if bottom < height:
                        plane[bottom, left] += of_bottom * of_left * each
                    if bottom < height and right < width:
                        plane[bottom, right] += of_bottom * of_right * each


def sample_value(plane: Array, h: Any, w: Any) -> Any:
    """Return the bilinear value of plane (H, W) at h, w, summed in the original's order and type."""
    value = plane.dtype.type(0)
    for row, column, weight in four_pixels(h, w, plane.shape):
        value += weight * plane[row, column]
    return value


def four_pixels(h: Any, w: Any, size: tuple[int, ...]) -> Iterator[tuple[int, int, Any]]:
    """Yield (row, column, weight) of the map's pixels that a sample at h, w reads."""
    # The ceil's row first, as in the original's order of additions.
    for (row, row_weight), (column, column_weight) in product(reversed(two_pixels(h, size[0])), two_pixels(w, size[1])):
        if row >= 0 and column >= 0:
            yield row, column, column_weight * row_weight


def two_pixels(place: Any, size: int) -> list[tuple[int, Any]]:
    """Return a position's floor and ceil along an axis, with their weights; -1 for a pixel past the map."""
    one, low, high = place.dtype.type(1), np.floor(place), np.ceil(place)
    return [(int(low), one - place + low), (int(high) if high < size else -1, one - high + place)]


# Forward.


class Taps(NamedTuple):
    """The floor and ceil of positions along an axis and their weights, in the positions' shape. NaN positions are left out."""

    low: Ints
    high: Ints
    low_weight: Array
    high_weight: Array

    def of(self, bins: tuple[Ints, Ints], count: int) -> Taps:
        """Return the taps of some bins (B,), the first `count` of each: (count, B)."""
        return Taps(*(array[bins[0], bins[1], :count].T for array in self))


def taps(places: Array) -> Taps:
    place = np.where(np.isnan(places), 0, places)
    low, high, one = np.floor(place), np.ceil(place), place.dtype.type(1)
    return Taps(low.astype(np.int64), high.astype(np.int64), one - place + low, one - high + place)


def _bordered(x: Array) -> Array:
    """Return x (N, C, H, W) as (N * (H + 1) * (W + 1), C), with a row and a column of zeros past each map."""
    n, c, h, w = x.shape
    table = np.zeros((n, h + 1, w + 1, c), x.dtype)
    table[:, :h, :w] = x.transpose(0, 2, 3, 1)
    return table.reshape(n * (h + 1) * (w + 1), c)


def _greatest(
    table: Array, images: Ints, samples: Samples, size: tuple[int, int], clean: bool, argmax: bool
) -> tuple[Array, NDArray[np.int32]]:
    """Return the bins' maxima (R, PH, PW, C) and, with argmax, the numbers of their samples.

    clean: no value is -FLT_MAX or below.
    """
    rois, high, wide, channels = len(images), samples.h.shape[1], samples.w.shape[1], table.shape[1]
    maxima = _padded(rois * high * wide, channels, table.dtype)
    numbers = _padded(rois * high * wide if argmax else 0, channels, np.int32)
    rows, columns = taps(samples.h), taps(samples.w)
    for count, bins in _alike(samples, channels):
        if not count[0] * count[1]:
            maxima[bins] = 0
            numbers[bins if argmax else []] = -1
            continue
        r, i, j = np.unravel_index(bins, (rois, high, wide))
        first = images[r] * ((size[0] + 1) * (size[1] + 1))
        with np.errstate(invalid="ignore", over="ignore"):
            values = _values_at(table, first, size[1] + 1, rows.of((r, i), count[0]), columns.of((r, j), count[1]))
        if not clean:
            np.fmax(values, table.dtype.type(LOWEST), out=values)  # so that NaN and -inf never win
        of_bins = np.maximum.reduce(values, axis=0)  # (B, C)
        maxima[bins] = of_bins
        if argmax:
            numbers[bins] = _first_greatest(values, of_bins, count, size[1] + 1)
    return maxima.reshape(rois, high, wide, channels), numbers.reshape(rois if argmax else 0, high, wide, channels)


def _padded(rows: int, channels: int, dtype: Any) -> Array:
    """Return an array (rows, C) whose rows are 16 elements further apart.

    Rows a power of two apart would share few cache lines.
    """
    return np.empty((rows, channels + 16), dtype)[:, :channels]


def _alike(samples: Samples, channels: int) -> Iterator[tuple[tuple[int, int], Ints]]:
    """Yield (SH, SW) and the bins with that many samples each way, as many bins as a step takes.

    The bins are numbered in (R, PH, PW).
    """
    high, wide = (np.count_nonzero(~np.isnan(axis), axis=2) for axis in (samples.h, samples.w))
    kinds = (high[:, :, None] * (samples.w.shape[2] + 1) + wide[:, None, :]).ravel()  # one number for both SH and SW
    order = np.argsort(kinds, kind="stable")
    for bins in np.split(order, np.flatnonzero(np.diff(kinds[order])) + 1):
        if not len(bins):  # np.split gives one empty part for an empty array
            continue
        tall, broad = map(int, divmod(kinds[bins[0]], samples.w.shape[2] + 1))
        step = max(1, VALUES // max(tall * broad * channels, 1))
        yield from (((tall, broad), bins[b : b + step]) for b in range(0, len(bins), step))


def _values_at(table: Array, first: Ints, width: int, rows: Taps, columns: Taps) -> Array:
    """Return the samples (SH * SW, B, C) at rows (SH, B) x columns (SW, B) of maps in table.

    A map's pixels, `width` to a row, start at row `first` (B,) of table. The order of the additions is the original's.
    """
    values = np.zeros((rows.low.shape[0], *columns.low.shape, table.shape[1]), table.dtype)
    part = np.empty(values.shape, table.dtype)
    for row, row_weight in ((rows.high, rows.high_weight), (rows.low, rows.low_weight)):
        for column, column_weight in ((columns.low, columns.low_weight), (columns.high, columns.high_weight)):
            pixel = (first + row * width)[:, None] + column  # (SH, SW, B)
            table.take(pixel, axis=0, out=part, mode="clip")  # "clip" avoids the copy of out that "raise" makes
            part *= (column_weight * row_weight[:, None])[..., None]
            values += part
    samples: Array = values.reshape(len(values) * values.shape[1], *values.shape[2:])
    return samples


def _first_greatest(values: Array, maxima: Array, count: tuple[int, int], width: int) -> NDArray[np.int32]:
    """Return i * width + j of each bin's first sample that equals its maximum; -1 for none.

    values: (SH * SW, B, C); maxima: (B, C). The method takes the greatest of small integers, mostly of one byte, that count the
    bin's samples from the last.
    """
    hits = np.equal(values, maxima).view(np.uint8)
    from_last = np.arange(len(values), 0, -1).astype(np.min_scalar_type(len(values)))[:, None, None]
    hits = np.multiply(hits, from_last, out=hits) if from_last.dtype == np.uint8 else hits * from_last
    greatest = np.maximum.reduce(hits, axis=0)
    i, j = np.divmod(len(values) - np.arange(len(values) + 1), max(count[1], 1))  # at index g: of sample len - g
    number = np.asarray(i * width + j, np.int32)
    number[0] = -1
    found = np.empty(greatest.shape, np.int32)
    number.take(greatest, out=found, mode="clip")
    found[maxima <= LOWEST] = -1
    return found


# Backward.


class Axis(NamedTuple):
    """One roi along one axis.

    first: the first pixel that its samples read; weights (pixels, S): those of its S samples on the pixels from there; starts
    (P,): the number of each bin's first sample.
    """

    first: int
    weights: Array
    starts: Ints


def _axis(places: Array, size: int) -> Axis:
    """Return the axis of a roi's sample positions (P, K). size: the map's length."""
    used = ~np.isnan(places)
    counts = np.count_nonzero(used, axis=1)
    of_used = taps(places[used])
    weights = np.zeros((size + 1, len(of_used.low)), places.dtype)
    for pixel, weight in ((of_used.low, of_used.low_weight), (of_used.high, of_used.high_weight)):
        weights[pixel, np.arange(len(pixel))] += weight  # at a whole coordinate, low and high are the same pixel
    # bottom excludes the zero border.
    top, bottom = int(of_used.low.min(initial=size)), min(int(of_used.high.max(initial=-1)) + 1, size)
    return Axis(top, weights[top:bottom], counts.cumsum() - counts)


def _add_matrices(dy: Array, argmax: Array, images: Ints, axes: list[tuple[Axis, Axis]], block: slice, dx: Array) -> None:
    """Add some rois' dy in a block of channels to dx (N, H, W, C'), which holds that block."""
    _, _, w, c = dx.shape
    channel = np.arange(c, dtype=np.int32)[:, None, None]
    for r, (rows, columns) in enumerate(axes):
        if not rows.weights.size or not columns.weights.size:
            continue
        (high, tall), (wide, broad) = rows.weights.shape, columns.weights.shape
        won = argmax[r, block]
        # From i * (W + 1) + j in the bin to i * broad + j, then from the bin's number to the roi's.
        number = won + won // (w + 1) * (broad - w - 1) + np.add.outer(rows.starts * broad, columns.starts)
        number[won < 0] = tall * broad  # one past the samples, which `each` drops
        each = np.zeros((tall * broad + 1, c), dx.dtype)
        each.reshape(-1)[number * c + channel] = dy[r, block]
        across = np.matmul(columns.weights, each[:-1].reshape(tall, broad, c))  # (tall, wide, c)
        pixels = np.matmul(rows.weights, across.reshape(tall, wide * c))
        own = dx[images[r], rows.first : rows.first + high, columns.first : columns.first + wide]
        own += pixels.reshape(own.shape)


def _add_at_pixels(dy: Array, plan: SamplePlan, argmax: Array, dx: Array) -> None:
    """Run pool_backward for dy with NaN.

    A matrix's zero times NaN is NaN, so this writes only the pixels that are read.
    """
    _, c, h, w = dx.shape
    plane = (plan.images[:, None] * c + np.arange(c))[:, :, None, None]
    sums = np.zeros(dx.size)  # float64, in which bincount adds
    step = max(1, CHUNK // max(dy[:1].size, 1))
    for part in (slice(r, r + step) for r in range(0, len(dy), step)):
        samples = Samples(*(array[part] for array in plan.places))
        for row, column, weight in pixels_of_maxima(argmax[part], samples, plan.size):
            index = np.where((row >= 0) & (column >= 0), (plane[part] * h + row) * w + column, -1).ravel()
            used = index >= 0
            sums += np.bincount(index[used], (weight * dy[part]).ravel()[used], dx.size)
    dx[...] = sums.reshape(dx.shape)


def pixels_of_maxima(argmax: Array, samples: Samples, size: tuple[int, int]) -> Iterator[tuple[Ints, Ints, Array]]:
    """Yield row, column and weight of each of the four pixels that the greatest samples read.

    They have argmax's shape (R, C, PH, PW); -1 for a row or a column past the map, and if nothing won.
    """
    i, j = np.divmod(np.where(argmax >= 0, argmax, 0), size[1] + 1)
    r, _, ph, pw = np.ogrid[tuple(slice(n) for n in argmax.shape)]
    rows, columns = taps(samples.h[r, ph, i]), taps(samples.w[r, pw, j])
    for row, row_weight in ((rows.low, rows.low_weight), (rows.high, rows.high_weight)):
        for column, column_weight in ((columns.low, columns.low_weight), (columns.high, columns.high_weight)):
            on_map = (argmax >= 0) & (row < size[0]) & (column < size[1])
            yield np.where(on_map, row, -1), np.where(on_map, column, -1), row_weight * column_weight
