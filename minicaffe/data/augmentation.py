"""SSD's augmentations distort_param and expand_param, on bytes (H, W, C); blue, green, red.

    distorted: x + b; c x; saturation times s; hue plus h, each with its own probability, contrast before or after the colours
    expanded: the image at a random place on a canvas r times as wide and high, r uniform in 1 .. max_expand_ratio

Source: Liu et al., SSD (arXiv:1512.02325), section 3.6; the SSD fork's im_transforms.cpp and data_transformer.cpp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2

from .image_bytes import Pixels, check_size, in_strips

Array = NDArray[Any]


def check_distortion(param: caffe_pb2.DistortionParameter) -> None:
    """Raise DataError for negative deltas and empty ranges."""
    for name in ("brightness_delta", "hue_delta", "contrast_lower", "saturation_lower"):
        if not 0 <= getattr(param, name) < np.inf:
            raise DataError(f"distort_param.{name} must be >= 0 and finite, got {getattr(param, name):g}")
    for name in ("contrast", "saturation"):
        low, high = getattr(param, f"{name}_lower"), getattr(param, f"{name}_upper")
        if not low <= high < np.inf:
            raise DataError(f"distort_param.{name}_upper must be >= {name}_lower {low:g} and finite, got {high:g}")


def distorted(pixels: Pixels, param: caffe_pb2.DistortionParameter, random: np.random.Generator) -> Pixels:
    """Return pixels (H, W, C) with brightness, contrast, saturation, hue and order of channels changed at random."""
    contrast_first = random.random() > 0.5  # the fork distorts in either of two orders
    if random.random() < param.brightness_prob:
        more = random.uniform(-param.brightness_delta, param.brightness_delta)
        pixels = in_strips(lambda part: as_bytes(part.astype(np.float32) + more), pixels)
    if contrast_first:
        pixels = _other_contrast(pixels, param, random)
    if random.random() < param.saturation_prob:
        pixels = saturated(pixels, random.uniform(param.saturation_lower, param.saturation_upper))
    if random.random() < param.hue_prob:
        pixels = hue_shifted(pixels, random.uniform(-param.hue_delta, param.hue_delta))
    if not contrast_first:
        pixels = _other_contrast(pixels, param, random)
    if random.random() < param.random_order_prob:
        pixels = pixels[:, :, random.permutation(pixels.shape[2])]
    return pixels


def _other_contrast(pixels: Pixels, param: caffe_pb2.DistortionParameter, random: np.random.Generator) -> Pixels:
    if random.random() < param.contrast_prob:
        factor = random.uniform(param.contrast_lower, param.contrast_upper)
        return in_strips(lambda part: as_bytes(part.astype(np.float32) * factor), pixels)
    return pixels


def saturated(pixels: Pixels, factor: float) -> Pixels:
    """Return pixels (H, W, 3) with the saturation multiplied by factor."""
    hsv = hsv_of(pixels)
    hsv[:, :, 1:2] = in_strips(lambda part: as_bytes(part.astype(np.float32) * factor), hsv[:, :, 1:2])
    return bgr_of(hsv)


def hue_shifted(pixels: Pixels, delta: float) -> Pixels:
    """Return pixels (H, W, 3) with delta added to the hue, in steps of 2 degrees.

    A negative sum becomes 0 (red), as in the fork.
    """
    hsv = hsv_of(pixels)
    hsv[:, :, :1] = in_strips(lambda part: as_bytes(part.astype(np.float32) + delta), hsv[:, :, :1])
    return bgr_of(hsv)


def expanded(
    pixels: Pixels, param: caffe_pb2.ExpansionParameter, mean: Array | None, random: np.random.Generator
) -> tuple[Pixels, Array | None]:
    """Return pixels (H, W, C) on a larger canvas, and the canvas (4,) relative to the image.

    The canvas has the colour of mean (C or 1, 1, 1), or 0 if it is None.

    At random, or for a max_expand_ratio of 1, the unchanged image and None. Raises DataError above limits.pixels.
    """
    if random.random() > param.prob or abs(param.max_expand_ratio - 1) < 0.01:
        return pixels, None
    height, width, channels = pixels.shape
    ratio = random.uniform(1, param.max_expand_ratio)
    high, wide = int(height * ratio), int(width * ratio)
    check_size("an image expanded to", high, wide)
    top, left = int(random.uniform(0, high - height)), int(random.uniform(0, wide - width))
    canvas = np.empty((high, wide, channels), np.uint8)
    canvas[...] = 0 if mean is None else as_bytes(mean.ravel())
    canvas[top : top + height, left : left + width] = pixels
    return canvas, np.array([-left / width, -top / height, (wide - left) / width, (high - top) / height])


def as_bytes(values: Array) -> NDArray[np.uint8]:
    """Return values, rounded and clipped to 0 .. 255."""
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def hsv_of(pixels: Pixels) -> Pixels:
    """Return blue, green, red (H, W, 3) as hue (in steps of 2 degrees, 0 .. 179), saturation and value. Raises DataError."""
    if pixels.shape[2] != 3:
        raise DataError(f"hue and saturation need images of 3 channels, got {pixels.shape[2]}")
    return in_strips(_hsv, pixels)


def _hsv(pixels: Pixels) -> Pixels:
    blue, green, red = pixels.transpose(2, 0, 1).astype(np.float32, order="C")
    value = np.maximum(np.maximum(blue, green), red)
    span = value - np.minimum(np.minimum(blue, green), red)
    safe = np.maximum(span, 1)  # avoids a division by 0 for grey, whose hue is 0
    turns = [(green - blue) / safe, 2 + (blue - red) / safe, 4 + (red - green) / safe]
    # OpenCV's hue has 180 steps, 30 for each sixth of the circle.
    hue = np.rint(np.where(value == red, turns[0], np.where(value == green, turns[1], turns[2])) * 30)
    saturation = 255 * span / np.maximum(value, 1)
    return as_bytes(np.stack([np.where(hue < 0, hue + 180, hue), saturation, value], axis=2))


def bgr_of(hsv: Pixels) -> Pixels:
    """Return hue, saturation and value as blue, green and red, the inverse of hsv_of. The hue is taken modulo 180."""
    return in_strips(_bgr, hsv)


def _bgr(hsv: Pixels) -> Pixels:
    hue, saturation, value = np.moveaxis(hsv.astype(np.float32), 2, 0)
    channels = []
    for offset in (1, 3, 5):  # V - V S clip(min(k, 4 - k), 0, 1) with k = (offset + H / 60 degrees) mod 6: blue, green, red
        at = (offset + hue / 30) % 6
        channels.append(value * (1 - saturation / 255 * np.clip(np.minimum(at, 4 - at), 0, 1)))
    return as_bytes(np.stack(channels, axis=2))
