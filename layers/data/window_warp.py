"""Where a window with its context goes in the crop. Source: Caffe's window_data_layer.cpp.

the box is widened so that context_pad pixels surround it after warping -> clipped to the image -> size and place in the crop
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.blob import Array
from minicaffe.data.data_transformer import check_mean, read_mean
from minicaffe.data.image_bytes import Pixels, resized
from minicaffe.proto import caffe_pb2

from .scenes import rounded

Box = tuple[int, int, int, int]


class Placed(NamedTuple):
    """The box to cut out (x1, y1, x2, y2, inclusive), the size to warp it to, and where in the crop that begins."""

    box: Box
    height: int
    width: int
    top: int = 0
    left: int = 0


def placed(box: Box, image: tuple[int, int], crop: int, context_pad: int, square: bool, mirrored: bool) -> Placed:
    """Place a box of an image (height, width) in a crop x crop square; mirrored: the padding changes sides too."""
    if not context_pad and not square:
        return Placed(box, crop, crop)
    return padded(_widened(box, crop, context_pad, square), image, crop, mirrored)


def padded(box: Box, image: tuple[int, int], crop: int, mirrored: bool) -> Placed:
    """Place a box that may reach beyond its image (height, width) in a crop x crop square."""
    x1, y1, x2, y2 = box
    f = np.float32
    # in float32, as the original: float64 would place some crops a pixel away
    scale_x, scale_y = f(crop) / f(x2 - x1 + 1), f(crop) / f(y2 - y1 + 1)
    left, top = max(0, -x1), max(0, -y1)
    right, bottom = max(0, x2 - image[1] + 1), max(0, y2 - image[0] + 1)
    clipped = (x1 + left, y1 + top, x2 - right, y2 - bottom)
    width = rounded(f(clipped[2] - clipped[0] + 1) * scale_x)
    height = rounded(f(clipped[3] - clipped[1] + 1) * scale_y)
    pad_w = rounded(f(right if mirrored else left) * scale_x)
    pad_h = rounded(f(top) * scale_y)
    return Placed(clipped, min(height, crop - pad_h), min(width, crop - pad_w), pad_h, pad_w)


def clipped(box: Box, image: tuple[int, int], crop: int, context_pad: int, square: bool) -> Box:
    """Return what a box with its context has inside an image (height, width)."""
    if context_pad or square:
        box = _widened(box, crop, context_pad, square)
    x1, y1, x2, y2 = box
    return max(0, x1), max(0, y1), min(x2, image[1] - 1), min(y2, image[0] - 1)


def warp_into(out: Array, pixels: Pixels, place: Placed, mirrored: bool, mean: Array | None, scale: float = 1) -> None:
    """Write what a box has inside its image to its place in out (C, crop, crop): (pixel - mean) * scale."""
    if place.height < 1 or place.width < 1:
        return
    x1, y1, x2, y2 = place.box
    warped = resized(pixels[y1 : y2 + 1, x1 : x2 + 1], place.height, place.width)
    rows, columns = slice(place.top, place.top + place.height), slice(place.left, place.left + place.width)
    values = (warped[:, ::-1] if mirrored else warped).transpose(2, 0, 1).astype(out.dtype)
    if mean is not None:
        values -= mean[:, rows, columns]
    out[:, rows, columns] = values * out.dtype.type(scale)


def centred_mean(transform: caffe_pb2.TransformationParameter, shape: tuple[int, int, int], dtype: DTypeLike) -> Array | None:
    """Return the centre of the mean image, or the mean values, as (C, crop, crop); None without. Raises DataError."""
    mean = read_mean(transform, dtype)
    if mean is None:
        return None
    if transform.mean_file:
        off = max((mean.shape[2] - shape[1]) // 2, 0)  # the width's for both axes, as in the original
        mean = mean[:, off : off + shape[1], off : off + shape[1]]
    check_mean(mean, shape, transform.mean_file)
    return np.broadcast_to(mean, shape)


def _widened(box: Box, crop: int, context_pad: int, square: bool) -> Box:
    """Return the box around the same centre, crop / (crop - 2 context_pad) times as large."""
    f = np.float32
    x1, y1, x2, y2 = box
    factor = f(crop) / f(crop - 2 * context_pad)
    half_height, half_width = f(y2 - y1 + 1) / f(2), f(x2 - x1 + 1) / f(2)
    center_x, center_y = f(x1) + half_width, f(y1) + half_height
    if square:
        half_height = half_width = max(half_height, half_width)
    return (
        rounded(center_x - half_width * factor),
        rounded(center_y - half_height * factor),
        rounded(center_x + half_width * factor),
        rounded(center_y + half_height * factor),
    )
