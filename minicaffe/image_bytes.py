"""Image files as OpenCV's imread and imdecode give them to Caffe: (H, W, C) bytes; blue, green, red; or grey; or as they are.

Source: Caffe's util/io.cpp (ReadImageToCVMat, DecodeDatumToCVMat, CVMatToDatum).
"""

from __future__ import annotations

import io
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import limits
from .errors import DataError, Error

Pixels = NDArray[np.uint8]
"""An image (H, W, C) of bytes, channels in the order blue, green, red (, alpha)."""


def read_image(file: str | PathLike[str] | bytes, color: bool | None = True, name: str = "") -> Pixels:
    """An image file, or the bytes of one, as (H, W, C). color: three channels; False: one, grey; None: as stored.

    Turned upright by its EXIF orientation, but not with color None. name stands for bytes in errors. Raises DataError.
    """
    from PIL import Image, ImageOps

    name = name or str(file if isinstance(file, str | PathLike) else "image")
    try:
        with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file) as opened:
            check_size(opened, name)
            image = opened if color is None else ImageOps.exif_transpose(opened)
            return _channels(_eight_bits(image), color, str(opened.format))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        reason = "not an image, or damaged" if "cannot identify" in str(error) else getattr(error, "strerror", None) or error
        raise DataError(f"{name}: cannot read the image: {reason}") from error


def check_size(opened: Any, name: str) -> None:
    """Raises DataError for an image that Pillow has opened, but not decoded, with more than limits.pixels."""
    try:
        limits.check(f"{name}: the image", opened.width * opened.height, "pixels")
    except Error as error:
        raise DataError(str(error)) from error


def _eight_bits(image: Any) -> Any:
    """A 16-bit image as an 8-bit one; any other as it is."""
    from PIL import Image

    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if image.mode.startswith("I") else image


def _channels(image: Any, color: bool | None, format_: str) -> Pixels:
    if color is None:
        grey = image.mode in ("1", "L", "LA")
        alpha = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
        pixels = np.asarray(image.convert("L" if grey and not alpha else "RGBA" if alpha else "RGB"))
        return pixels[:, :, None] if pixels.ndim == 2 else np.ascontiguousarray(pixels[:, :, [2, 1, 0, 3][: pixels.shape[2]]])
    if color:
        return np.ascontiguousarray(np.asarray(image.convert("RGB"))[:, :, ::-1])
    if image.mode in ("1", "L", "LA") or format_ == "JPEG":
        return np.asarray(image.convert("L"))[:, :, None]
    return grey_of(np.asarray(image.convert("RGB"))[:, :, ::-1], PNG_GREY if format_ == "PNG" else GREY)


PNG_GREY = np.array([3737, 19234, 9797, 0], np.int64)
"""Weights of blue, green and red, in 1/32768, and what is added before the division: libpng's, which reads grey for OpenCV."""
GREY = np.array([3736, 19234, 9798, 16384], np.int64)
"""OpenCV's own."""


def grey_of(pixels: Pixels, weights: NDArray[np.int64] = GREY) -> Pixels:
    """(H, W, 3) blue, green, red -> (H, W, 1): 0.114 B + 0.587 G + 0.299 R in fixed point."""
    grey: NDArray[np.int64] = (pixels @ weights[:3] + weights[3]) >> 15
    return grey.astype(np.uint8)[:, :, None]


def resized(pixels: Pixels, height: int, width: int) -> Pixels:
    """(H, W, C) bytes as (height, width, C): bilinear in fixed point, within one grey level of OpenCV."""
    if pixels.shape[:2] == (height, width):
        return pixels
    low, high, part = _samples(pixels.shape[0], height)
    x_low, x_high, x_part = _samples(pixels.shape[1], width)
    wide = pixels.astype(np.int64)
    rows = wide[:, x_low] * (2048 - x_part)[:, None] + wide[:, x_high] * x_part[:, None]
    upper = (rows[low] >> 4) * (2048 - part)[:, None, None] >> 16
    lower = (rows[high] >> 4) * part[:, None, None] >> 16
    return ((upper + lower + 2) >> 2).astype(np.uint8)


def _samples(old: int, new: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """For each of new positions: the pixel before it, the one after, and how far between them it lies, in 1/2048."""
    at = ((np.arange(new) + 0.5) * (old / new) - 0.5).astype(np.float32)
    low = np.floor(at).astype(np.int64)
    part = np.where((low < 0) | (low >= old - 1), 0, at - low)
    low = np.clip(low, 0, old - 1)
    return low, np.minimum(low + 1, old - 1), np.rint(part * 2048).astype(np.int64)


def encode_image(pixels: Pixels, kind: str, name: str = "image", quality: int = 95) -> bytes:
    """(H, W, 1 or 3) as the bytes of a file of this kind ("png", "jpg"). Raises DataError for one that Pillow cannot write.

    quality: of a JPEG.
    """
    from PIL import Image

    format_ = Image.registered_extensions().get("." + kind.lower().lstrip("."))
    if format_ is None or format_ not in Image.SAVE:
        raise DataError(f'{name}: cannot encode images as "{kind}"')
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels[:, :, ::-1]))
    buffer = io.BytesIO()
    image.save(buffer, format_, **({"quality": quality} if format_ == "JPEG" else {}))
    return buffer.getvalue()
