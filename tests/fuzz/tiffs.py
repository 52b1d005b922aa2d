"""TIFF files, tag by tag: what Pillow does not write."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import PIL
from PIL import Image

WIDTH, LENGTH, BITS, COMPRESSION, PHOTOMETRIC, OFFSETS, ORIENTATION, SAMPLES = 256, 257, 258, 259, 262, 273, 274, 277
ROWS_PER_STRIP, BYTE_COUNTS, PLANAR, TILE_WIDTH, TILE_LENGTH, TILE_OFFSETS, TILE_BYTE_COUNTS = 278, 279, 284, 322, 323, 324, 325
DEFLATE = 8
PILLOW_12 = int(PIL.__version__.partition(".")[0]) < 13
"""It cannot read the unpacked YCbCr that it writes."""
ONLY = {"jpeg": ("RGB", "L", "CMYK", "YCbCr"), "group4": ("1",)}
"""Modes that a packing is for; any, of others."""


def tiff(tags: Mapping[int, int | Sequence[int]], data: bytes) -> bytes:
    """A little-endian TIFF of one image whose strips or tiles begin at byte 8, where data stands."""
    at = 8 + len(data) + len(data) % 2
    beyond, entries, more = at + 2 + 12 * len(tags) + 4, b"", b""
    for tag, given in sorted(tags.items()):
        values = [given] if isinstance(given, int) else list(given)
        kind, letter = (3, "H") if max(values) < 1 << 16 else (4, "I")
        packed = struct.pack(f"<{len(values)}{letter}", *values)
        place = packed.ljust(4, b"\0") if len(packed) <= 4 else struct.pack("<I", beyond + len(more))
        more += packed if len(packed) > 4 else b""
        entries += struct.pack("<HHI", tag, kind, len(values)) + place
    whole = data + b"\0" * (len(data) % 2) + struct.pack("<H", len(tags)) + entries + b"\0" * 4 + more
    return b"II*\0" + struct.pack("<I", at) + whole


def tiled(width: int, height: int, tile_width: int, tile_height: int, tile: bytes) -> bytes:
    """One grey image of one tile, packed with zlib."""
    packed = zlib.compress(tile, 9)
    tags = {
        WIDTH: width,
        LENGTH: height,
        BITS: 8,
        COMPRESSION: DEFLATE,
        PHOTOMETRIC: 1,
        SAMPLES: 1,
        TILE_WIDTH: tile_width,
        TILE_LENGTH: tile_height,
        TILE_OFFSETS: 8,
        TILE_BYTE_COUNTS: len(packed),
    }
    return tiff(tags, packed)


def all_kinds() -> Iterator[bytes]:
    """One of each: strips, tiles, planes, turned, each mode and each packing."""
    pixels = np.random.default_rng(0).integers(0, 256, (18, 20, 3), np.uint8)
    image = Image.fromarray(pixels)
    for mode in ("RGB", "L", "P", "1", "I;16", "F", "RGBA", "CMYK", "YCbCr"):
        for packing in ("raw", "tiff_lzw", "tiff_adobe_deflate", "jpeg", "packbits", "group4"):
            if mode not in ONLY.get(packing, mode) or (PILLOW_12 and (mode, packing) == ("YCbCr", "raw")):
                continue
            of_mode = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 200) if mode == "I;16" else image.convert(mode)
            out = io.BytesIO()
            of_mode.save(out, "tiff", compression=packing)
            yield out.getvalue()
    for orientation in range(2, 9):
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        for packing in ("raw", "tiff_lzw"):
            out = io.BytesIO()
            image.save(out, "tiff", exif=exif, compression=packing)
            yield out.getvalue()
    for tile_width, tile_height in ((16, 16), (32, 32), (32, 16)):
        yield tiled(5, 7, tile_width, tile_height, bytes(range(256)) * (tile_width * tile_height // 256))
    planes = pixels.transpose(2, 0, 1).tobytes()
    tags = {WIDTH: 20, LENGTH: 18, BITS: [8, 8, 8], PHOTOMETRIC: 2, SAMPLES: 3, PLANAR: 2, ROWS_PER_STRIP: 18}
    yield tiff({**tags, COMPRESSION: 1, OFFSETS: [8, 368, 728], BYTE_COUNTS: [360] * 3}, planes)
    packed = [zlib.compress(planes[at : at + 360]) for at in (0, 360, 720)]
    starts = [8, 8 + len(packed[0]), 8 + len(packed[0]) + len(packed[1])]
    yield tiff({**tags, COMPRESSION: DEFLATE, OFFSETS: starts, BYTE_COUNTS: [len(p) for p in packed]}, b"".join(packed))
    quarters = [pixels[y : y + 9, x : x + 10] for y in (0, 9) for x in (0, 10)]
    padded = [np.pad(q, ((0, 7), (0, 6), (0, 0))).tobytes() for q in quarters]
    yield tiff(
        {
            WIDTH: 32, LENGTH: 32, BITS: [8, 8, 8], COMPRESSION: 1, PHOTOMETRIC: 2, SAMPLES: 3, TILE_WIDTH: 16, TILE_LENGTH: 16,
            TILE_OFFSETS: [8 + 768 * i for i in range(4)], TILE_BYTE_COUNTS: [768] * 4,
        },
        b"".join(padded),
    )  # fmt: skip
