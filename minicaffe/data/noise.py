"""noise_param: the SSD fork's noise on images (H, W, C) of bytes, applied after resizing in a fixed order.

    grey, blur, equalisation, equalisation by tiles, JPEG, erosion, fewer levels, inversion, salt and pepper,
    conversion to hue, saturation and value, conversion to L*a*b*

Equalisation by tiles is contrast-limited adaptive histogram equalisation (CLAHE), with OpenCV's bytes:

    each of 8 x 8 tiles: a histogram, clipped at clip * area / 256, the excess distributed over all levels -> its cumulative sum
    each pixel: the tables of the four nearest tiles, interpolated bilinearly

Source: the SSD fork's im_transforms.cpp (ApplyNoise); Zuiderveld, Contrast Limited Adaptive Histogram Equalization (Graphics
Gems IV, 1994); OpenCV's clahe.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.augmentation import as_bytes, hsv_of
from minicaffe.data.image_bytes import Pixels, encode_image, grey_of, in_strips, read_image
from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2

Array = NDArray[Any]
Levels = NDArray[np.uint8]
TILES = 8


def equalised_by_tiles(levels: Levels, clip: float = 4.0) -> Levels:
    """Return levels (H, W), equalised by tiles. clip: a level's maximum count, relative to a uniform histogram."""
    height, width = levels.shape
    uneven = height % TILES or width % TILES
    # As in OpenCV: if one axis is not divisible by TILES, a divisible one still grows by TILES.
    more = [(0, TILES - size % TILES if uneven else 0) for size in (height, width)]
    tables, high, wide = tile_tables(np.pad(levels, more, "reflect"), clip)
    upper, lower, part = _around(height, high)
    left, right, x_part = _around(width, wide)
    down = part[:, None]
    rows = []
    for row in (upper, lower):
        at = [tables[row[:, None], column[None, :], levels].astype(np.float32) for column in (left, right)]
        rows.append(at[0] * (1 - x_part) + at[1] * x_part)
    return as_bytes(rows[0] * (1 - down) + rows[1] * down)


def tile_tables(levels: Levels, clip: float) -> tuple[Levels, int, int]:
    """Return the new levels (TILES, TILES, 256) in each tile of levels (H, W), and a tile's height and width.

    H and W are multiples of TILES.
    """
    high, wide = (size // TILES for size in levels.shape)
    tile = (np.arange(levels.shape[0]) // high)[:, None] * TILES + np.arange(levels.shape[1]) // wide
    counts = np.bincount((tile * 256 + levels).ravel(), minlength=TILES * TILES * 256).reshape(-1, 256)
    counts = clipped(counts, max(int(clip * high * wide / 256), 1))
    scale = np.float32(255) / np.float32(high * wide)
    return as_bytes(counts.cumsum(axis=1).astype(np.float32) * scale).reshape(TILES, TILES, 256), high, wide


def clipped(counts: Array, limit: int) -> Array:
    """Return histograms (n, 256) clipped at limit, with the excess distributed evenly, and its remainder at equal steps."""
    excess = np.maximum(counts - limit, 0).sum(axis=1, keepdims=True)
    rest = excess % 256
    step = np.maximum(256 // np.maximum(rest, 1), 1)
    levels = np.arange(256)
    result: Array = np.minimum(counts, limit) + excess // 256 + ((levels % step == 0) & (levels // step < rest))
    return result


def _around(count: int, size: int) -> tuple[Array, Array, Array]:
    """Return for each pixel the tiles with the nearest centres before and after it, and its position between them."""
    # Tile centres are at 0, 1, ...
    at = np.arange(count, dtype=np.float32) * (np.float32(1) / np.float32(size)) - np.float32(0.5)
    low = np.floor(at).astype(np.int64)
    return np.maximum(low, 0), np.minimum(low + 1, TILES - 1), (at - low).astype(np.float32)


def check_noise(param: caffe_pb2.NoiseParameter) -> None:
    """Raise DataError for salt and pepper without a value or with a bad fraction, and for a bad JPEG quality."""
    if param.saltpepper and not param.saltpepper_param.value:
        raise DataError("noise_param.saltpepper needs a saltpepper_param.value")
    if param.saltpepper and not 0 <= param.saltpepper_param.fraction <= 1:
        raise DataError(f"saltpepper_param.fraction must be within 0 .. 1, got {param.saltpepper_param.fraction:g}")
    if param.jpeg > 100:
        raise DataError(f"noise_param.jpeg is a quality, at most 100, got {param.jpeg:g}")


def noisy(pixels: Pixels, param: caffe_pb2.NoiseParameter, random: np.random.Generator) -> NDArray[Any]:
    """Return pixels (H, W, C) with the noise of param, with probability prob (default: 1).

    The result is float32 with convert_to_lab, else bytes. Raises DataError.
    """
    if param.HasField("prob") and random.random() >= param.prob:
        return pixels
    if pixels.shape[2] not in (1, 3):
        raise DataError(f"noise_param needs images of 1 or 3 channels, got {pixels.shape[2]}")
    if param.decolorize and pixels.shape[2] == 3:
        pixels = np.repeat(grey_of(pixels), 3, axis=2)
    if param.gauss_blur:
        pixels = blurred(pixels)
    if param.hist_eq:
        pixels = equalised(pixels, flat_histogram)
    if param.clahe:
        pixels = equalised(pixels, equalised_by_tiles)
    if param.jpeg > 0:
        pixels = read_image(encode_image(pixels, "jpg", quality=int(param.jpeg)), pixels.shape[2] == 3)
    if param.erode:
        pixels = eroded(pixels)
    if param.posterize:
        pixels = pixels // 64 * 64 + 32  # four levels
    if param.inverse:
        pixels = 255 - pixels
    if param.saltpepper:
        pixels = salt_and_pepper(pixels, param.saltpepper_param, random)
    if param.convert_to_hsv:
        pixels = hsv_of(pixels)
    return lab_of(pixels) if param.convert_to_lab else pixels


def blurred(pixels: Pixels) -> Pixels:
    """Return pixels blurred by a Gaussian of 7 x 7 pixels and sigma 1.5, reflected at the edges."""
    kernel = np.exp(-(np.arange(-3.0, 4.0) ** 2) / (2 * 1.5**2)).astype(np.float32)
    kernel /= kernel.sum()
    height, width = pixels.shape[:2]
    wide = np.pad(pixels, ((3, 3), (3, 3), (0, 0)), "reflect").astype(np.float32)
    rows = np.sum([weight * wide[k : k + height] for k, weight in enumerate(kernel)], axis=0)  # separable: rows, then columns
    return as_bytes(np.sum([weight * rows[:, k : k + width] for k, weight in enumerate(kernel)], axis=0))


def equalised(pixels: Pixels, equalise: Callable[[Pixels], Pixels]) -> Pixels:
    """Return pixels (H, W, 1 or 3) with equalise applied to the brightness (H, W). The colours, Cr and Cb, are unchanged."""
    if pixels.shape[2] != 3:
        return equalise(pixels[:, :, 0])[:, :, None]
    blue, green, red = np.moveaxis(pixels.astype(np.int64), 2, 0)
    luma = _shifted(1868 * blue + 9617 * green + 4899 * red)  # 0.114, 0.587 and 0.299 in 1 / 2^14
    cr, cb = (np.clip(_shifted(weight * (c - luma)), -128, 127) for weight, c in ((11682, red), (9241, blue)))  # 0.713, 0.564
    level = equalise(luma.astype(np.uint8)).astype(np.int64)
    colours = [_shifted(29049 * cb), _shifted(-5636 * cb - 11698 * cr), _shifted(22987 * cr)]  # 1.773; 0.344, 0.714; 1.403
    return np.clip(level[:, :, None] + np.stack(colours, axis=2), 0, 255).astype(np.uint8)


def _shifted(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return values / 2^14, rounded, as OpenCV converts bytes to YCrCb and back."""
    return (values + 8192) >> 14


def flat_histogram(levels: Pixels) -> Pixels:
    """Return levels with each replaced by 255 times the fraction of pixels up to it, among those above the lowest level."""
    counts = np.bincount(levels.ravel(), minlength=256)
    above = counts.cumsum() - counts[levels.min()]
    return as_bytes(above * (255 / max(above[-1], 1)))[levels] if above[-1] else levels


def eroded(pixels: Pixels) -> Pixels:
    """Return pixels with each replaced by the minimum of itself and its four neighbours."""
    height, width = pixels.shape[:2]
    wide = np.pad(pixels, ((1, 1), (1, 1), (0, 0)), "edge")
    shifts = [(1, 1), (0, 1), (2, 1), (1, 0), (1, 2)]
    least: Pixels = np.minimum.reduce([wide[y : y + height, x : x + width] for y, x in shifts])
    return least


def salt_and_pepper(pixels: Pixels, param: caffe_pb2.SaltPepperParameter, random: np.random.Generator) -> Pixels:
    """Return pixels with a fraction of them, drawn with replacement, set to value. Raises DataError."""
    height, width, channels = pixels.shape
    if len(param.value) not in (1, channels):
        raise DataError(f"{len(param.value)} saltpepper_param.value given for {channels} channels: give one, or one for each")
    count = int(param.fraction * height * width)
    pixels = pixels.copy()
    pixels[random.integers(height, size=count), random.integers(width, size=count)] = as_bytes(np.array(param.value))
    return pixels


BGR_TO_XYZ = np.array([[0.180423, 0.357580, 0.412453], [0.072169, 0.715160, 0.212671], [0.950227, 0.119193, 0.019334]])
"""From linear blue, green, red to X, Y, Z."""
WHITE = np.array([0.950456, 1.0, 1.088754])
"""X, Y, Z of white (D65)."""


def lab_of(pixels: Pixels) -> NDArray[np.float32]:
    """Return bytes of sRGB (H, W, 3), blue, green, red, as L* (0 .. 100), a*, b*. Raises DataError.

    The result is within 0.5 of OpenCV's table.
    """
    if pixels.shape[2] != 3:
        raise DataError(f"L*a*b* needs images of 3 channels, got {pixels.shape[2]}")
    return in_strips(_lab, pixels, np.float32)


def _lab(pixels: Pixels) -> NDArray[np.float64]:
    levels = np.arange(256) / 255
    linear = np.where(levels <= 0.04045, levels / 12.92, ((levels + 0.055) / 1.055) ** 2.4)  # sRGB's transfer function
    xyz = linear[pixels] @ BGR_TO_XYZ.T / WHITE
    x, y, z = np.moveaxis(np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116), 2, 0)  # CIE: linear near black
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=2)
