"""noise_param: what the SSD fork does to images (H, W, C) of bytes after resizing them, one after the other in its order.

    grey, blurred, equalised, through JPEG, eroded, in fewer levels, inverted, sprinkled, as hue, saturation and value

Source: the SSD fork's im_transforms.cpp (ApplyNoise).
"""

from __future__ import annotations

import numpy as np

from .augmentation import as_bytes, hsv_of
from .errors import DataError
from .image_bytes import Pixels, encode_image, grey_of, read_image
from .proto import caffe_pb2


def check_noise(param: caffe_pb2.NoiseParameter) -> None:
    """Raises DataError for what is not built in, and for salt and pepper of no value or share."""
    for name in ("clahe", "convert_to_lab"):
        if getattr(param, name):
            raise DataError(f"noise_param.{name} is not built in")
    if param.saltpepper and not param.saltpepper_param.value:
        raise DataError("noise_param.saltpepper needs a saltpepper_param.value")
    if param.saltpepper and not 0 <= param.saltpepper_param.fraction <= 1:
        raise DataError(f"saltpepper_param.fraction must be within 0 .. 1, got {param.saltpepper_param.fraction:g}")
    if param.jpeg > 100:
        raise DataError(f"noise_param.jpeg is a quality, at most 100, got {param.jpeg:g}")


def noisy(pixels: Pixels, param: caffe_pb2.NoiseParameter, random: np.random.Generator) -> Pixels:
    """pixels (H, W, C) with the noise that param names, always, or by the chance prob where that is given."""
    if param.HasField("prob") and random.random() >= param.prob:
        return pixels
    if pixels.shape[2] not in (1, 3):
        raise DataError(f"noise_param needs images of 1 or 3 channels, got {pixels.shape[2]}")
    if param.decolorize and pixels.shape[2] == 3:
        pixels = np.repeat(grey_of(pixels), 3, axis=2)
    if param.gauss_blur:
        pixels = blurred(pixels)
    if param.hist_eq:
        pixels = equalised(pixels)
    if param.jpeg > 0:
        pixels = read_image(encode_image(pixels, "jpg", quality=int(param.jpeg)), pixels.shape[2] == 3)
    if param.erode:
        pixels = eroded(pixels)
    if param.posterize:
        pixels = pixels // 64 * 64 + 32
    if param.inverse:
        pixels = 255 - pixels
    if param.saltpepper:
        pixels = sprinkled(pixels, param.saltpepper_param, random)
    return hsv_of(pixels) if param.convert_to_hsv else pixels


def blurred(pixels: Pixels) -> Pixels:
    """By a Gaussian of 7 x 7 pixels and sigma 1.5, mirrored at the edges."""
    kernel = np.exp(-(np.arange(-3.0, 4.0) ** 2) / (2 * 1.5**2)).astype(np.float32)
    kernel /= kernel.sum()
    height, width = pixels.shape[:2]
    wide = np.pad(pixels, ((3, 3), (3, 3), (0, 0)), "reflect").astype(np.float32)
    rows = np.sum([weight * wide[k : k + height] for k, weight in enumerate(kernel)], axis=0)
    return as_bytes(np.sum([weight * rows[:, k : k + width] for k, weight in enumerate(kernel)], axis=0))


def equalised(pixels: Pixels) -> Pixels:
    """With a flat histogram of brightness; the colours, Cr and Cb, stay. (H, W, 1 or 3)"""
    if pixels.shape[2] != 3:
        return flat_histogram(pixels)
    blue, red = pixels[:, :, 0].astype(np.float32), pixels[:, :, 2].astype(np.float32)
    luma = grey_of(pixels)[:, :, 0]
    cr, cb = (as_bytes((red - luma) * 0.713 + 128) - 128.0, as_bytes((blue - luma) * 0.564 + 128) - 128.0)
    level = flat_histogram(luma).astype(np.float32)
    return as_bytes(np.stack([level + 1.773 * cb, level - 0.714 * cr - 0.344 * cb, level + 1.403 * cr], axis=2))


def flat_histogram(levels: Pixels) -> Pixels:
    """Each level in place of which stands the share of pixels up to it, of those above the lowest level, times 255."""
    counts = np.bincount(levels.ravel(), minlength=256)
    above = counts.cumsum() - counts[levels.min()]
    return as_bytes(above * (255 / max(above[-1], 1)))[levels] if above[-1] else levels


def eroded(pixels: Pixels) -> Pixels:
    """Each pixel the least of itself and its four neighbours."""
    height, width = pixels.shape[:2]
    wide = np.pad(pixels, ((1, 1), (1, 1), (0, 0)), "edge")
    shifts = [(1, 1), (0, 1), (2, 1), (1, 0), (1, 2)]
    least: Pixels = np.minimum.reduce([wide[y : y + height, x : x + width] for y, x in shifts])
    return least


def sprinkled(pixels: Pixels, param: caffe_pb2.SaltPepperParameter, random: np.random.Generator) -> Pixels:
    """A fraction of the pixels, some perhaps twice, of the colour value. Raises DataError."""
    height, width, channels = pixels.shape
    if len(param.value) not in (1, channels):
        raise DataError(f"{len(param.value)} saltpepper_param.value given for {channels} channels: give one, or one for each")
    count = int(param.fraction * height * width)
    pixels = pixels.copy()
    pixels[random.integers(height, size=count), random.integers(width, size=count)] = as_bytes(np.array(param.value))
    return pixels
