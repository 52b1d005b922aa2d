"""Image files as OpenCV's imread and imdecode read them for Caffe: bytes (H, W, C) as blue, green, red; grey; or as stored.

Source: Caffe's util/io.cpp (ReadImageToCVMat, DecodeDatumToCVMat, CVMatToDatum).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from math import prod
from os import SEEK_END, PathLike
from threading import RLock
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

from minicaffe import files, limits
from minicaffe.errors import DataError, Error, LimitError, out_of_memory, unread
from minicaffe.process_fork import renewed

START = 30
"""The number of bytes to look at."""

OTHERS = {
    rb"GIF8[79]a": "a GIF",
    rb"(?s).{4}ftypavi[fs]": "an AVIF",
    rb"(?s).{4}ftyp(hei[cxms]|hev[cmsx]|mif1|msf1)": "a HEIC",
    rb"\xff\x0a|\0\0\0\x0cJXL ": "a JPEG XL",
    rb"8BPS": "a Photoshop",
    rb"\x00\x00\x01\x00": "an ICO",
    rb"%!PS|\xc5\xd0\xd3\xc6": "a PostScript",
}
"""Pattern of the first bytes: the format, with its article."""


def other_format(start: bytes) -> str:
    """Return the kind of an image in an unsupported format, by its first bytes: "a GIF image"; "" for any other file."""
    return next((f"{kind} image" for pattern, kind in OTHERS.items() if re.match(pattern, start)), "")


Pixels = NDArray[np.uint8]
"""An image (H, W, C) of bytes, channels in the order blue, green, red (, alpha)."""

MOST_SCANS = 50
"""Most scans of a JPEG. libjpeg writes 10, jpegtran and mozjpeg a few more; decoding each takes the time of a whole image."""
PLAIN_PPM, MOST_COMMENTS = (b"P1", b"P2", b"P3"), 1000
"""PPMs whose pixels are written in digits, and their most comments."""
PIXEL_BYTES, FILE_BYTES = 8, 1 << 24
"""Most bytes of a file per pixel (four channels of 16 bits), and for everything else."""

FORMATS = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")
"""OpenCV's formats. Pillow has more, but its EPS reader starts another program, and its GIF reader takes memory before the size
is known. Of an animated WebP the first frame is read."""


def read_image(file: str | PathLike[str] | bytes, color: bool | None = True, name: str = "", *, upright: bool = True) -> Pixels:
    """Return an image file, or the bytes of one, as (H, W, C).

    color: True: three channels; False: one, grey; None: as stored.

    With upright it is rotated by its EXIF orientation, except for color None. name: of bytes, for errors. Raises DataError.
    """
    from PIL import ImageOps

    with opened(file, name) as stored:
        _check_cost(stored)
        if color is not None and upright:
            ImageOps.exif_transpose(stored, in_place=True)  # without in_place Pillow makes a copy
        return _channels(stored, color, str(stored.format))


def read_labels(file: str | PathLike[str] | bytes, name: str = "") -> Pixels:
    """Return a label image, or the bytes of one, as (H, W, 1): each pixel's class.

    An image with a palette gives its indices (PASCAL VOC's PNGs), another one its grey values. Raises DataError, also for
    colours and for more than 8 bits.
    """
    from PIL import ImageOps

    with opened(file, name) as stored:
        _check_cost(stored)
        ImageOps.exif_transpose(stored, in_place=True)
        if stored.mode.startswith(("I", "F")):
            raise ValueError("labels of more than 8 bits; write the classes as 8-bit grey values, or with a palette")
        return _converted(stored, 1, _classes)


def _classes(image: Any) -> Pixels:
    if image.mode in ("P", "PA"):
        return np.atleast_3d(np.array(image))[:, :, :1]
    if image.mode in ("1", "L", "LA"):
        return np.asarray(image.convert("L"))[:, :, None]
    pixels = np.asarray(image.convert("RGB"))
    if (pixels != pixels[:, :, :1]).any():
        raise ValueError("labels in colours; write the classes as 8-bit grey values, or with a palette")
    return pixels[:, :, :1]


def pixels_of(image: Any) -> Pixels:
    """Return a Pillow image as (H, W, 3) blue, green, red: turned upright, 16 bits made 8, grey repeated, alpha dropped."""
    from PIL import ImageOps

    return _channels(ImageOps.exif_transpose(image), True, "")


@contextmanager
def opened(file: str | PathLike[str] | bytes, name: str = "") -> Iterator[Any]:
    """Open an image file, or the bytes of one, with Pillow, without decoding its pixels.

    Raises DataError for another format than FORMATS, for more than limits.pixels in the image or a TIFF's tile, for more bytes
    than these may take, for too little memory, and for whatever Pillow raises, here or in the block.
    """
    name, count = name or str(file if isinstance(file, str | PathLike) else "image"), 0
    try:
        with io.BytesIO(file) if isinstance(file, bytes) else files.opened(file) as stream:
            length = stream.seek(0, SEEK_END)
            if length > most_bytes():
                most = f"{limits.pixels:,} pixels take at most {most_bytes():,}: {limits.raising('pixels')}"
                raise DataError(f"{name}: the image has {length:,} bytes, but {most}")
            stream.seek(0)
            head = stream.read(START)
            if kind := other_format(head):
                raise ValueError(f"{kind}, which is not supported; convert it to PNG or JPEG")
            count = _webp_pixels(head)
            limits.check(f"{name}: the image", count, "pixels")
            stream.seek(0)
            with _identified(stream) as image:
                count = image.width * image.height
                limits.check(f"{name}: the image", count, "pixels")
                if image.format == "TIFF":
                    limits.check(f"{name}: a tile of the image", _tile_pixels(image), "pixels")
                yield image
    except MemoryError as error:
        advice = f"make it smaller; {limits.refusing('pixels')}"
        raise DataError(f"{name}: {out_of_memory(error, f'{count:,} pixels')}: {advice}") from error
    except Error as error:
        raise DataError(str(error)) from error
    except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error, KeyError and others for damaged files
        unknown = f"not an image, or damaged (supported: {', '.join(_formats())})"
        damaged = "cannot identify" in str(error)
        what = "cannot read the image"
        raise DataError(f"{name}: {what}: {unknown}" if damaged else unread(str(name), what, error)) from error


_unlimited = renewed(RLock())
"""Held while Pillow's limit is off."""


@contextmanager
def _identified(stream: BinaryIO) -> Iterator[Any]:
    """Open the image in stream with Pillow, without Pillow's limit of pixels: limits.pixels decides.

    Pillow's limit is global, so it is off only while such a large image is read, which includes decoding a TIFF's pixels.
    """
    from PIL import Image

    try:
        image = Image.open(stream, formats=_formats())
    except Image.DecompressionBombError:
        with _unlimited:
            before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            try:
                with Image.open(stream, formats=_formats()) as image:
                    yield image
            finally:
                Image.MAX_IMAGE_PIXELS = before
        return
    with image:
        yield image


def most_bytes() -> int:
    """Return the most bytes that an image file may have."""
    return FILE_BYTES + PIXEL_BYTES * limits.pixels


def _tile_pixels(image: Any) -> int:
    """Return the number of pixels in a tile of a TIFF, which is always decoded whole; 0 for strips.

    Raises ValueError if libtiff, which decodes it, may read another size than Pillow: for a size that is not a number, and for
    one given twice, of which Pillow takes the last and libtiff the first.
    """
    size = [image.tag_v2[tag] for tag in (TILE_WIDTH, TILE_LENGTH) if tag in image.tag_v2]
    tags = _stored_tags(image)
    if any(not isinstance(side, int) for side in size) or max(tags.count(TILE_WIDTH), tags.count(TILE_LENGTH)) > 1:
        raise ValueError("the size of its tiles is ambiguous")
    return prod(size) if size else 0


def _stored_tags(image: Any) -> list[int]:
    """Return the numbers of a TIFF's tags, including repeated ones."""
    order: Literal["little", "big"] = "little" if image.tag_v2.prefix == b"II" else "big"
    with _kept_place(image.fp) as file:
        large = int.from_bytes(file.read(4)[2:], order) == BIG_TIFF
        file.seek(image.tag_v2.offset)
        count = int.from_bytes(file.read(8 if large else 2), order)
        entry = 20 if large else 12
        data = file.read(min(count, 1 << 16) * entry)  # a classic TIFF's count has 16 bits
    return [int.from_bytes(data[at : at + 2], order) for at in range(0, len(data), entry)]


def _check_cost(image: Any) -> None:
    """Raise ValueError for a JPEG of more than MOST_SCANS scans, and for a plain PPM of more than MOST_COMMENTS."""
    if image.format not in ("JPEG", "MPO", "PPM"):
        return
    with _kept_place(image.fp) as file:
        data = file.read()
    if image.format == "PPM":
        if data[:2] in PLAIN_PPM and data.count(b"#") > MOST_COMMENTS:
            raise ValueError(f"a PPM of more than {MOST_COMMENTS:,} comments takes too long: Pillow copies the rest for each")
        return
    if data.count(bytes([0xFF, START_OF_SCAN])) > MOST_SCANS and (scans := scan_count(data)) > MOST_SCANS:
        raise ValueError(f"a JPEG of {scans:,} scans, each of which is decoded whole; at most {MOST_SCANS} are read")


@contextmanager
def _kept_place(file: BinaryIO) -> Iterator[BinaryIO]:
    """Set the file to its beginning in the block, then restore its position."""
    at = file.tell()
    file.seek(0)
    try:
        yield file
    finally:
        file.seek(at)


def scan_count(data: bytes) -> int:
    """Return the number of scans in a JPEG. As in libjpeg, segments are skipped by length and scans up to the next marker."""
    count, at = 0, 2
    while found := _MARKER.search(data, at):
        marker, at = found[1][0], found.end()
        if marker == END_OF_IMAGE:
            break
        count += marker == START_OF_SCAN
        if marker >= START_OF_FRAME:  # the only marker below is TEM, which has no length
            at += max(int.from_bytes(data[at : at + 2], "big"), 2)
    return count


def _webp_pixels(head: bytes) -> int:
    """Return height x width from the first 30 bytes of a WebP file, or 0 for other files.

    Pillow takes memory for a WebP file as soon as it opens it.
    """
    if head[8:15] != b"WEBPVP8" or len(head) < 30:
        return 0
    if head[15:16] == b"X":  # extended: 24 bits each, less 1
        width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
    elif head[15:16] == b"L":  # lossless: 14 bits each, less 1
        bits = int.from_bytes(head[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        # Lossy: the top 2 bits of each are a scale.
        width, height = (int.from_bytes(head[at : at + 2], "little") & 0x3FFF for at in (26, 28))
    return width * height


TILE_WIDTH, TILE_LENGTH = 322, 323
"""Tags of a TIFF."""
BIG_TIFF = 43
"""The version of a TIFF with offsets of 64 bits."""
START_OF_FRAME, START_OF_SCAN, END_OF_IMAGE = 0xC0, 0xDA, 0xD9
_MARKER = re.compile(rb"\xff([^\x00\xd0-\xd7\xff])", re.DOTALL)
"""A JPEG's marker, other than stuffed bytes, restarts and fill bytes."""


@cache
def _formats() -> tuple[str, ...]:
    """Return the FORMATS that this Pillow was built with."""
    from PIL import Image

    Image.init()
    return tuple(kind for kind in FORMATS if kind in Image.OPEN)


def _eight_bits(image: Any) -> Any:
    """Return a 16-bit image as an 8-bit one, any other image unchanged."""
    from PIL import Image

    # Pillow's 16-bit modes are I;16 and I.
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)) if image.mode.startswith("I") else image


def _channels(image: Any, color: bool | None, format_: str) -> Pixels:
    grey = image.mode in ("1", "L", "LA") or image.mode.startswith("I")
    if color is None:
        alpha = image.mode in ("RGBA", "LA", "PA") or ("transparency" in image.info and not image.mode.startswith("I"))
        mode = "L" if grey and not alpha else "RGBA" if alpha else "RGB"
    else:
        mode = "L" if not color and (grey or format_ == "JPEG") else "RGB"
    if mode != "L" and color is False:
        weights = PNG_GREY if format_ == "PNG" else GREY
        return _converted(image, 1, lambda part: grey_of(np.asarray(part.convert("RGB"))[:, :, ::-1], weights))
    order = mode.replace("RGB", "BGR")
    return _converted(image, len(mode), lambda part: _stored(_eight_bits(part).convert(mode), order))


def _stored(image: Any, order: str) -> Pixels:
    """Return the image as (H, W, C), the channels in this order, as Pillow's raw encoder writes them."""
    return np.frombuffer(image.tobytes("raw", order), np.uint8).reshape(image.height, image.width, len(order))


def _converted(image: Any, channels: int, convert: Callable[[Any], Pixels]) -> Pixels:
    """Return convert's result (H, W, channels) for a Pillow image, strip by strip: a whole copy takes as much memory again."""
    pixels = np.empty((image.height, image.width, channels), np.uint8)
    for rows in strips(image.height, 4 * image.width):
        pixels[rows] = convert(image.crop((0, rows.start, image.width, rows.stop)))
    return pixels


STRIP = 2**18
"""Most numbers of a strip of rows, if it has more than one row: temporary arrays of so many stay in a CPU's cache."""


def strips(height: int, row: int) -> Iterator[slice]:
    """Yield the rows of an image in strips. row: the number of values in a row."""
    step = max(STRIP // max(row, 1), 1)
    return (slice(top, min(top + step, height)) for top in range(0, height, step))


def in_strips(change: Callable[[Pixels], NDArray[Any]], pixels: Pixels, dtype: Any = np.uint8) -> NDArray[Any]:
    """Apply a pixel-wise change, which keeps the shape, to pixels (H, W, C), strip by strip."""
    changed = np.empty(pixels.shape, dtype)
    for rows in strips(len(pixels), pixels.shape[1] * pixels.shape[2]):
        changed[rows] = change(pixels[rows])
    return changed


PNG_GREY = np.array([3737, 19234, 9797, 0], np.int64)
"""The weights of blue, green and red, in 1/32768, and the rounding term of libpng, with which OpenCV reads grey PNGs."""
GREY = np.array([3736, 19234, 9798, 16384], np.int64)
"""OpenCV's."""


def grey_of(pixels: Pixels, weights: NDArray[np.int64] = GREY) -> Pixels:
    """Return blue, green, red (H, W, 3) as grey (H, W, 1): 0.114 B + 0.587 G + 0.299 R in fixed point."""
    grey = np.empty((*pixels.shape[:2], 1), np.uint8)
    for rows in strips(len(pixels), 3 * pixels.shape[1]):
        grey[rows, :, 0] = (pixels[rows] @ weights[:3] + weights[3]) >> 15
    return grey


def check_size(what: str, height: int, width: int) -> None:
    """Raise DataError for an image of more than limits.pixels."""
    try:
        limits.check(f"{what} {width} x {height}", height * width, "pixels")
    except LimitError as error:
        raise DataError(str(error)) from error


def resized(pixels: Pixels, height: int, width: int) -> Pixels:
    """Return bytes (H, W, C) as (height, width, C): bilinear in fixed point, within one grey level of OpenCV.

    Raises DataError for more than limits.pixels.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    check_size("an image resized to", height, width)
    y, x = _samples(pixels.shape[0], height), _samples(pixels.shape[1], width)
    if height > pixels.shape[0]:  # each row is read more than once: drop the columns that no sample reads
        used, at = used_of(*x[:2])
        pixels, x = pixels[:, used], (at[0], at[1], x[2])
    whole = np.empty((height, width, pixels.shape[2]), np.uint8)
    for rows in strips(height, max(pixels.shape[1], width) * pixels.shape[2]):
        whole[rows] = _resized_rows(pixels, (y[0][rows], y[1][rows], y[2][rows]), x)
    return whole


Samples = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]
"""For each new position: the pixel before it, the one after, and the position between them in 1/2048."""


def _resized_rows(pixels: Pixels, y: Samples, x: Samples) -> NDArray[np.int32]:
    (low, high, part), (x_low, x_high, x_part) = y, x
    used, (low, high) = used_of(low, high)
    wide = pixels[used]
    rows = wide[:, x_low] * (2048 - x_part)[:, None] + wide[:, x_high] * x_part[:, None]
    # OpenCV's VResizeLinear for bytes uses 11-bit weights and drops low bits at these two steps.
    upper = (rows[low] >> 4) * (2048 - part)[:, None, None] >> 16
    lower = (rows[high] >> 4) * part[:, None, None] >> 16
    whole: NDArray[np.int32] = (upper + lower + 2) >> 2
    return whole


def used_of(*at: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct positions in `at`, sorted, and `at` as indices into these.

    Resizing selects these positions first, because an intermediate of all rows at the new width can be far larger than both
    images.
    """
    used, places = np.unique(np.stack(at), return_inverse=True)
    return used, places.reshape(len(at), *at[0].shape)


def _samples(old: int, new: int) -> Samples:
    at = ((np.arange(new) + 0.5) * (old / new) - 0.5).astype(np.float32)
    low = np.floor(at).astype(np.int64)
    part = np.where((low < 0) | (low >= old - 1), 0, at - low)
    low = np.clip(low, 0, old - 1)
    return low, np.minimum(low + 1, old - 1), np.rint(part * 2048).astype(np.int32)


def encode_image(pixels: Pixels, kind: str, name: str = "image", quality: int = 95) -> bytes:
    """Return pixels (H, W, 1 or 3) as the bytes of a file of this kind ("png", "jpg").

    quality: of a JPEG. Raises DataError for a kind that Pillow cannot write.
    """
    from PIL import Image

    format_ = Image.registered_extensions().get("." + kind.lower().lstrip("."))
    if format_ is None or format_ not in Image.SAVE:
        raise DataError(f'{name}: cannot encode images as "{kind}"')
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels[:, :, ::-1]))
    buffer = io.BytesIO()
    image.save(buffer, format_, **({"quality": quality} if format_ == "JPEG" else {}))
    return buffer.getvalue()
