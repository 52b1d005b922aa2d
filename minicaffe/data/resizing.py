"""resize_param: images (H, W, C) of bytes resized as by OpenCV. Only AREA smooths when shrinking.

    WARP: exactly height x width.   FIT_SMALL_SIZE: keeps the aspect ratio, both sides at least that.
    FIT_LARGE_SIZE_AND_PAD: keeps the aspect ratio, both sides at most that, padded on both sides.

Source: the SSD fork's im_transforms.cpp; OpenCV's resize.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2

from .augmentation import as_bytes
from .image_bytes import Pixels, check_size, resized, strips, used_of
from .images import without_means

Array = NDArray[Any]
Param = caffe_pb2.ResizeParameter
Taps = tuple[NDArray[np.int64], Array]
"""For each new position: the first old pixel used (new,), and the weights of it and the following pixels (new, taps)."""


def check_resize(param: caffe_pb2.ResizeParameter) -> None:
    """Raise DataError for a missing height or width."""
    if not (param.height and param.width):
        raise DataError(f"resize_param needs a height and a width > 0, got {param.height} and {param.width}")


def resized_by(pixels: Pixels, param: caffe_pb2.ResizeParameter, random: np.random.Generator) -> tuple[Pixels, Array | None]:
    """Return pixels (H, W, C) resized by a random interp_mode, and the padded frame (4,) relative to the image, or None."""
    modes = list(param.interp_mode) or [Param.LINEAR]
    mode = modes[int(random.integers(len(modes)))]
    height, width = fitted_size(pixels.shape[0], pixels.shape[1], param)
    image = interpolated(pixels, height, width, mode)
    if param.resize_mode != Param.FIT_LARGE_SIZE_AND_PAD:
        return image, None
    return padded(image, param)


def extrapolation(size: tuple[int, int], param: caffe_pb2.ResizeParameter) -> Array | None:
    """Return factors (4,) that convert boxes relative to an image of size (height, width).

    The results are relative to height_scale x width_scale. Returns None without these and in modes other than FIT_SMALL_SIZE.
    Raises DataError if the image is smaller.
    """
    scale = (param.height_scale, param.width_scale)
    if not all(scale) or param.resize_mode != Param.FIT_SMALL_SIZE:
        return None
    if size[0] < scale[0] or size[1] < scale[1]:
        wanted = f"height_scale {scale[0]} and width_scale {scale[1]}"
        raise DataError(f"resize_param: {wanted} are larger than the image, {size[1]} wide and {size[0]} high")
    return np.array([size[1] / scale[1], size[0] / scale[0]] * 2)


def fitted_size(height: int, width: int, param: caffe_pb2.ResizeParameter) -> tuple[int, int]:
    """Return the height and width of an interpolated image, before padding."""
    high, wide = param.height, param.width
    if param.resize_mode == Param.WARP:
        return high, wide
    if (width * high > wide * height) == (param.resize_mode == Param.FIT_LARGE_SIZE_AND_PAD):  # the width decides
        return max(wide * height // width, 1), wide
    return high, max(high * width // height, 1)


def padded(pixels: Pixels, param: caffe_pb2.ResizeParameter) -> tuple[Pixels, Array]:
    """Return pixels (H, W, C) padded to height x width, and the padded frame (4,) relative to pixels. Raises DataError."""
    check_size("an image padded to", param.height, param.width)
    height, width, channels = pixels.shape
    if len(param.pad_value) not in (0, 1, channels):
        raise DataError(f"{len(param.pad_value)} pad_value given for {channels} channels: give one, or one for each")
    top, left = (param.height - height) // 2, (param.width - width) // 2
    bottom, right = param.height - height - top, param.width - width - left
    if param.pad_mode == Param.CONSTANT:
        image = np.empty((param.height, param.width, channels), np.uint8)
        image[...] = as_bytes(np.array(param.pad_value or [0]))
        image[top : top + height, left : left + width] = pixels
    else:
        sides = ((top, bottom), (left, right), (0, 0))
        image = np.pad(pixels, sides, "reflect" if param.pad_mode == Param.MIRRORED else "edge")
    return image, np.array([-left / width, -top / height, 1 + right / width, 1 + bottom / height])


def interpolated(pixels: Pixels, height: int, width: int, mode: int) -> Pixels:
    """Return pixels (H, W, C) as (height, width, C), by an Interp_mode. Raises DataError for more than limits.pixels."""
    old = pixels.shape[:2]
    if old == (height, width):
        return pixels
    check_size("an image resized to", height, width)
    if mode == Param.LINEAR:
        return resized(pixels, height, width)
    if mode == Param.NEAREST:
        rows, columns = (np.arange(new) * size // new for new, size in zip((height, width), old))  # OpenCV adds no half pixel
        nearest: Pixels = pixels[rows[:, None], columns]
        return nearest
    if mode == Param.AREA and height <= old[0] and width <= old[1]:
        return averaged(pixels, height, width, dtype=np.uint8)
    taps = area_taps if mode == Param.AREA else cubic_taps if mode == Param.CUBIC else lanczos_taps
    return _resampled(pixels, height, width, taps, np.uint8)


def resize_cubic(values: Array, height: int, width: int) -> Array:
    """Return values (H, W, C) as (height, width, C) float32: OpenCV's INTER_CUBIC.

    Raises DataError for more than limits.pixels.
    """
    if values.shape[:2] == (height, width):
        return values.astype(np.float32)
    check_size("maps resized to", height, width)
    return _resampled(values, height, width, cubic_taps)


def _resampled(
    values: Array, height: int, width: int, taps: Callable[[int, int], Taps], dtype: type[np.generic] = np.float32
) -> Array:
    """Return values (H, W, C) as (height, width, C) of dtype. Bytes are rounded and clipped."""
    (y, y_weights), (x, x_weights) = (
        _clipped(taps(size, new), size) for size, new in zip(values.shape[:2], (height, width), strict=True)
    )
    used, x = used_of(*x)  # rows are combined before columns, so drop unused columns first
    if height > values.shape[0]:  # enlarging reads each row more than once, so drop them for all strips
        values, used = values[:, used], np.arange(len(used))
    resampled = np.empty((height, width, values.shape[2]), dtype)
    for rows in strips(height, max(values.shape[1], width) * values.shape[2]):
        high, at = used_of(*y[:, rows])
        rows_done = _weighted(values[high][:, used].astype(np.float32), at, y_weights[:, rows], 0)
        resampled[rows] = _as(_weighted(rows_done, x, x_weights, 1), dtype)
    return resampled


def _as(values: Array, dtype: type[np.generic]) -> Array:
    return as_bytes(values) if dtype == np.uint8 else values


def averaged(
    values: Array,
    height: int,
    width: int,
    *,
    scale: float | None = None,
    means: Sequence[float] | None = None,
    dtype: type[np.generic] = np.float32,
) -> Array:
    """Return values (H, W, C) averaged over height x width equal parts. A pixel on an edge counts by the part inside.

    scale: parts are 1 / scale long, the last less where the axis ends. means: of the channels, subtracted from the values as
    float32 first. dtype: of the result; bytes are rounded and clipped.
    """
    edges, low = _edges(values.shape[0], height, scale)
    part, lengths = _column(edges - low), _lengths(values.shape[0], height, edges, scale)
    result = np.empty((height, width, values.shape[2]), dtype)
    # before: sums of the rows above the strip; last: sums of the rows above the last edge.
    before, last = np.zeros((1, *values.shape[1:])), np.empty((0, *values.shape[1:]))
    done = 0
    for rows in strips(values.shape[0], values.shape[1] * values.shape[2]):
        block = without_means(values[rows].astype(np.float32), means) if means is not None else values[rows]
        sums = np.concatenate([before, block]).cumsum(axis=0)  # sums[i] covers the rows before row i of the strip
        stop = int(np.searchsorted(low, rows.stop))
        at = low[done:stop] - rows.start
        at_edges = np.concatenate([last, sums[at] + part[done:stop] * block[at].astype(np.float64)])
        first = max(done - 1, 0)
        parts = np.diff(at_edges, axis=0)
        parts *= lengths[first : first + len(parts)]
        result[first : first + len(parts)] = _as(_averaged_columns(parts, width, scale), dtype)
        before, last, done = sums[-1:], at_edges[-1:], stop
    return result


def _averaged_columns(values: Array, width: int, scale: float | None) -> Array:
    """Return float64 values (H, W, C) averaged over the parts of each row."""
    old = values.shape[1]
    edges, low = _edges(old, width, scale)
    sums = np.concatenate([np.zeros_like(values[:, :1]), values.cumsum(axis=1)], axis=1)
    at_edges = sums[:, low] + (edges - low)[:, None] * values[:, low]
    parts = np.diff(at_edges, axis=1)
    parts *= _lengths(old, width, edges, scale)[:, 0]
    return parts


def _edges(old: int, new: int, scale: float | None) -> tuple[Array, NDArray[np.int64]]:
    """Return the edges of the parts (new + 1,), and the pixel in which each lies."""
    edges = np.arange(new + 1) * (old / new) if scale is None else np.minimum(np.arange(new + 1) / scale, old)
    return edges, np.minimum(edges.astype(np.int64), old - 1)  # the last edge is the end of the last pixel


def _lengths(old: int, new: int, edges: Array, scale: float | None) -> Array:
    """Return the factors of the sums of the parts, (new, 1, 1), which make them means."""
    return _column(np.full(new, new / old) if scale is None else 1 / np.diff(edges))


def _column(values: Array) -> Array:
    return values.reshape(-1, 1, 1)


def _positions(old: int, new: int) -> tuple[NDArray[np.int64], Array]:
    """Return for each new position the old pixel before its centre, and the distance between their centres."""
    at = (np.arange(new) + 0.5) * (old / new) - 0.5
    low = np.floor(at).astype(np.int64)
    return low, at - low


def cubic_taps(old: int, new: int) -> Taps:
    """Return the taps of four pixels by Keys' cubic with a = -0.75."""
    low, part = _positions(old, new)
    t = np.abs(part[:, None] - np.arange(-1, 3))
    near = (1.25 * t - 2.25) * t**2 + 1  # (a + 2) t^3 - (a + 3) t^2 + 1
    far = -0.75 * (((t - 5) * t + 8) * t - 4)  # a (t^3 - 5 t^2 + 8 t - 4)
    return low - 1, np.where(t <= 1, near, far)


def lanczos_taps(old: int, new: int) -> Taps:
    """Return the taps of eight pixels by sinc(t) sinc(t / 4), normalised to sum to 1."""
    low, part = _positions(old, new)
    t = part[:, None] - np.arange(-3, 5)
    weights = np.sinc(t) * np.sinc(t / 4)
    return low - 3, weights / weights.sum(axis=1, keepdims=True)


def area_taps(old: int, new: int) -> Taps:
    """Return the taps of two pixels, for enlarging by AREA.

    They are constant within an old pixel, with a ramp only in new pixels that span two.
    """
    at = np.arange(new) * (old / new)
    low = np.floor(at).astype(np.int64)
    part = (np.arange(new) + 1) - (low + 1) * (new / old)
    part = np.where(part <= 0, 0, part - np.floor(part))
    return low, np.stack([1 - part, part], axis=1)


def _clipped(taps: Taps, old: int) -> tuple[NDArray[np.int64], Array]:
    """Return the old pixels and their weights, (taps, new) each."""
    low, weights = taps
    return np.clip(low + np.arange(weights.shape[1])[:, None], 0, old - 1), weights.T


def _weighted(values: Array, at: NDArray[np.int64], weights: Array, axis: int) -> Array:
    shape = [1] * values.ndim
    shape[axis] = -1
    total = np.float32(0)
    for places, weight in zip(at, weights, strict=True):  # tap by tap: all at once would take 4 or 8 times the memory
        total = total + weight.astype(np.float32).reshape(shape) * values.take(places, axis=axis)
    return np.asarray(total)
