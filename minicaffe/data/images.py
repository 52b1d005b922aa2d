"""Images for detection nets: reading, subtracting the mean, scaling and batching, as in py-faster-rcnn with OpenCV.

    image (H, W, 3), blue, green, red  ->  minus the means  ->  short side 600, long side at most 1000  ->  (1, 3, H', W')

With SCALE_MULTIPLE_OF, each side is then cut down to a multiple of it, and im_info holds the scales of x, y, x and y.

Source: py-faster-rcnn's utils/blob.py and fast_rcnn/test.py, and PVANET's; OpenCV's resize with INTER_LINEAR.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import DataError
from minicaffe.mode import TEST, TRAIN, Phase

from .image_bytes import check_size, opened, read_image, strips, used_of
from .settings import DetectionSettings

Array = NDArray[Any]
Scale = float | NDArray[np.float64]
"""Of an image: one for both axes, or those of x, y, x and y, as a box has them."""


def load_image(path: str | PathLike[str]) -> NDArray[np.uint8]:
    """Return an image file as an array.

    It is rotated by its EXIF orientation, as by cv2.imread since OpenCV 3.1.
    Grey is repeated, transparency is dropped, and 16 bits become 8.

    Parameters
    ----------
    path : str or path
        The image file.

    Returns
    -------
    (H, W, 3) ndarray
        uint8 pixels in the order blue, green, red.

    Raises
    ------
    DataError
        The file cannot be read as an image.
    """
    return read_image(path)


def image_size(path: str | PathLike[str]) -> tuple[int, int]:
    """Return the width and height of load_image's result, without decoding the pixels. Raises DataError."""
    with opened(path) as file:
        # Pillow gives a TIFF's rotated size, with the orientation still in its Exif.
        turned = file.format != "TIFF" and file.getexif().get(0x0112, 1) in (5, 6, 7, 8)
        return (file.height, file.width) if turned else (file.width, file.height)


def scale_for(height: int, width: int, target: int, max_size: int) -> float:
    """Return the factor that makes the short side target, or a smaller one if the long side would exceed max_size."""
    scale = target / min(height, width)
    if round(scale * max(height, width)) > max_size:
        scale = max_size / max(height, width)
    return scale


def resize_bilinear(
    image: Array, height: int, width: int, scale: float | None = None, means: Sequence[float] | None = None
) -> Array:
    """Return image (H, W, C) as (height, width, C): OpenCV's INTER_LINEAR, half-pixel centres, no smoothing when shrinking.

    scale: the factor of both axes (default: new size / old size on each axis). A float image keeps its type, others become
    float32. means: of the channels, subtracted from a float32 image first. Raises DataError for more than limits.pixels.
    """
    dtype = _float_type(image, means)
    if image.shape[:2] == (height, width) and scale in (None, 1.0):
        return without_means(image.astype(dtype), means)
    resized = np.empty((height, width, image.shape[2]), dtype)
    for rows, strip in bilinear_strips(image, height, width, scale, means):
        resized[rows] = strip
    return resized


def resize_area(image: Array, height: int, width: int) -> Array:
    """Return image (H, W, C) as float32 (height, width, C): an axis that shrinks is averaged, one that grows is interpolated.

    Raises DataError for more than limits.pixels.
    """
    return area_means(area_sums(resize_bilinear(image, max(height, image.shape[0]), max(width, image.shape[1]))), height, width)


def area_sums(image: Array) -> NDArray[np.float64]:
    """Return the sum of the pixels above and left of each corner of a pixel, (H + 1, W + 1, C), of image (H, W, C)."""
    height, width, channels = image.shape
    sums = np.zeros((height + 1, width + 1, channels))
    np.cumsum(image, axis=0, out=sums[1:, 1:])
    np.cumsum(sums, axis=1, out=sums)
    return sums


def area_means(sums: NDArray[np.float64], height: int, width: int) -> Array:
    """Return float32 (height, width, C), the means of equal parts of the image with these area_sums, which is not smaller."""
    means = np.empty((height, width, sums.shape[2]), np.float32)
    (y, y_part), (x, x_part) = (_ends(old - 1, new) for old, new in zip(sums.shape, (height, width), strict=False))
    count = (sums.shape[0] - 1) * (sums.shape[1] - 1) / (height * width)
    for rows in strips(height, sums.shape[1] * sums.shape[2]):
        of = slice(rows.start, rows.stop + 1)
        across = sums[y[of]] + y_part[of, None, None] * (sums[y[of] + 1] - sums[y[of]])
        corners = across[:, x] + x_part[:, None] * (across[:, x + 1] - across[:, x])
        means[rows] = np.diff(np.diff(corners, axis=0), axis=1) / count
    return means


def _ends(old: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the ends of `new` equal parts of `old` pixels, (new + 1,): the pixel, and the position in it."""
    ends = np.arange(new + 1, dtype=np.float64) * (old / new)
    low = np.minimum(ends.astype(np.int64), old - 1)
    return low, ends - low


def bilinear_strips(
    image: Array, height: int, width: int, scale: float | None = None, means: Sequence[float] | None = None
) -> Iterator[tuple[slice, Array]]:
    """Yield the rows of resize_bilinear's result strip by strip, so that it need not be in memory as a whole."""
    dtype = _float_type(image, means)
    check_size("an image resized to", height, width)
    left_at, right_at, x_part = _samples(image.shape[1], width, scale, dtype)
    used, (left_at, right_at) = used_of(left_at, right_at)
    low, high, part = _samples(image.shape[0], height, scale, dtype)
    if height > image.shape[0]:  # enlarging reads each row more than once, so drop unused columns first
        image, used = image[:, used], np.arange(len(used))
    for rows in strips(height, max(image.shape[1], width) * image.shape[2]):
        # Rows are interpolated before columns, so drop the unused columns here.
        picked = (image[at[rows]] if len(used) == image.shape[1] else image[at[rows]][:, used] for at in (low, high))
        upper, lower = (without_means(each.astype(dtype, copy=False), means) for each in picked)
        by_row = upper + part[rows, None, None] * (lower - upper)
        left = by_row.take(left_at, axis=1)
        yield rows, left + x_part[None, :, None] * (by_row.take(right_at, axis=1) - left)


def _float_type(image: Array, means: Sequence[float] | None) -> np.dtype[Any]:
    return image.dtype if image.dtype in (np.float32, np.float64) and means is None else np.dtype(np.float32)


def without_means(values: Array, means: Sequence[float] | None) -> Array:
    """Subtract the means of the channels from values (H, W, C) in place, and return values."""
    if means is not None:
        values -= np.asarray(means, values.dtype)
    return values


def _samples(old: int, new: int, scale: float | None, dtype: Any) -> tuple[Array, Array, Array]:
    """Return for each new position the pixel before it, the one after, and the position between them."""
    # OpenCV maps by a given factor, not by the rounded sizes.
    at = (np.arange(new) + 0.5) * (1 / scale if scale else old / new) - 0.5
    at = np.clip(at, 0, old - 1)
    low = np.floor(at).astype(int)
    return low, np.minimum(low + 1, old - 1), (at - low).astype(dtype)


def scaled_image(
    image: Array, pixel_means: Sequence[float], target: int, max_size: int, multiple: int = 1
) -> tuple[NDArray[np.float32], Scale]:
    """Return image (H, W, 3) minus the means, resized, and its scale.

    multiple: each side becomes a multiple of it, at least once. Raises DataError for another shape or an empty image.
    """
    _check_image(image)
    height, width = image.shape[:2]
    scale = scale_for(height, width, target, max_size)
    if multiple > 1:
        high, wide = (max(int(side * scale / multiple), 1) * multiple for side in (height, width))
        return resize_bilinear(image, high, wide, means=pixel_means), np.array([wide / width, high / height] * 2)
    return scaled_by(image, pixel_means, scale), scale


def scaled_by(image: Array, pixel_means: Sequence[float], scale: float) -> Array:
    """Return image (H, W, 3) minus the means, resized by scale. Raises DataError for another shape or an empty image."""
    _check_image(image)
    height, width = image.shape[:2]
    # round, like OpenCV's cvRound, rounds half to even.
    return resize_bilinear(image, max(round(height * scale), 1), max(round(width * scale), 1), scale, pixel_means)


def _check_image(image: Array) -> None:
    if image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
        raise DataError(f"an image must be (height, width, 3), got shape {image.shape}")


def image_blob(images: Sequence[Array]) -> NDArray[np.float32]:
    """Return images (H, W, 3) as one blob (N, 3, H, W) of the largest height and width, zeros below and to the right."""
    size = np.max([image.shape[:2] for image in images], axis=0)
    blob = np.zeros((len(images), 3, *size), np.float32)
    for place, image in zip(blob, images, strict=True):
        place[:, : image.shape[0], : image.shape[1]] = image.transpose(2, 0, 1)
    return blob


def prepare_image(
    image: Array, settings: DetectionSettings, phase: Phase = TEST
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return image (H, W, 3), blue, green, red, as data (1, 3, H', W') and im_info (1, 3): H', W', scale.

    The image gets the phase's first scale.

    With the setting scale_multiple_of, im_info is (1, 6): H', W', and the scales of x, y, x and y.
    """
    given = settings.train if phase == TRAIN else settings.test
    scaled, scale = scaled_image(image, settings.pixel_means, given.scales[0], given.max_size, given.scale_multiple_of)
    return image_blob([scaled]), np.array([[*scaled.shape[:2], *np.atleast_1d(scale)]], np.float32)
