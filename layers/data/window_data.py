"""WindowData: boxes cut out of images and warped to one size, to fine-tune R-CNN.

The box is widened so that context_pad pixels surround it after warping -> clipped to the image -> size and place in the crop
Source: Caffe's window_data_layer.cpp.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.blob import Array
from minicaffe.data.data_transformer import check_mean, read_mean
from minicaffe.data.image_bytes import Pixels, read_image, resized
from minicaffe.data.image_check import readable
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import WHOLE, Shard, current_shard
from minicaffe.data.window_file import Window, WindowFile, read_window_file
from minicaffe.errors import DataError, unread
from minicaffe.files import granted
from minicaffe.layers.data.prefetching import PrefetchingLayer
from minicaffe.layers.data.scenes import rounded
from minicaffe.proto import caffe_pb2

Box = tuple[int, int, int, int]


class Placed(NamedTuple):
    """The box to cut out (x1, y1, x2, y2, inclusive), the size to warp it to, and its position in the crop."""

    box: Box
    height: int
    width: int
    top: int = 0
    left: int = 0


def placed(box: Box, image: tuple[int, int], crop: int, context_pad: int, square: bool, mirrored: bool) -> Placed:
    """Place a box of an image (height, width) in a crop x crop square. Mirroring also mirrors the padding."""
    if not context_pad and not square:
        return Placed(box, crop, crop)
    return padded(_widened(box, crop, context_pad, square), image, crop, mirrored)


def padded(box: Box, image: tuple[int, int], crop: int, mirrored: bool) -> Placed:
    """Place a box that may reach beyond its image (height, width) in a crop x crop square."""
    x1, y1, x2, y2 = box
    f = np.float32
    # In float32, as in the original: float64 would shift some crops by a pixel.
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
    """Return the part of a box, with its context, inside an image (height, width)."""
    if context_pad or square:
        box = _widened(box, crop, context_pad, square)
    x1, y1, x2, y2 = box
    return max(0, x1), max(0, y1), min(x2, image[1] - 1), min(y2, image[0] - 1)


def warp_into(out: Array, pixels: Pixels, place: Placed, mirrored: bool, mean: Array | None, scale: float = 1) -> None:
    """Write the part of a box inside its image to its position in out (C, crop, crop): (pixel - mean) * scale."""
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
    """Return the centre of the mean image, or the mean values, as (C, crop, crop); None without a mean. Raises DataError."""
    mean = read_mean(transform, dtype)
    if mean is None:
        return None
    if transform.mean_file:
        off = max((mean.shape[2] - shape[1]) // 2, 0)  # as in the original, the width's offset serves both axes
        mean = mean[:, off : off + shape[1], off : off + shape[1]]
    check_mean(mean, shape, transform.mean_file)
    return np.broadcast_to(mean, shape)


def _widened(box: Box, crop: int, context_pad: int, square: bool) -> Box:
    """Return the box with the same centre, crop / (crop - 2 context_pad) times as large."""
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


class WindowData(PrefetchingLayer):
    """Windows drawn at random: those with overlap below bg_threshold first, then those with overlap >= fg_threshold.

    fg_fraction of a batch is foreground. No bottom. top: data (batch_size, C, crop_size, crop_size): (pixel - mean) *
    window_data_param.scale; labels (batch_size,), 0 for background. crop_mode: "warp", or "square" (the box is made square
    first). context_pad: pixels around the box. What lies outside the image is 0. From transform_param come crop_size, mirror
    and the mean, whose centre is subtracted.
    Raises LayerError for a window file that cannot be read, no windows to draw from, an image that cannot be read or lacks a
    window's pixels, and a mean that does not fit.
    """

    type = "WindowData"
    num_top = 2
    param_block = ("window_data_param", "transform_param")

    def make_source(self, tops: int, generator: np.random.Generator) -> WindowSource:
        param, transform = self.param.window_data_param, self.param.transform_param
        self.positive(param.batch_size, "window_data_param.batch_size")
        self.positive(transform.crop_size, "transform_param.crop_size")
        if param.crop_mode not in ("warp", "square"):
            raise self.error(f'crop_mode "{param.crop_mode}" is neither "warp" nor "square"', "window_data_param.crop_mode")
        if 2 * param.context_pad >= transform.crop_size:
            message = f"context_pad {param.context_pad} on both sides leaves nothing of crop_size {transform.crop_size}"
            raise self.error(message, "window_data_param.context_pad")
        if not 0 <= param.fg_fraction <= 1:
            raise self.error(f"fg_fraction must be in [0, 1], got {param.fg_fraction:g}", "window_data_param.fg_fraction")
        file, shard = read_window_file(granted(param.source)), current_shard(self.phase)
        return WindowSource(file, param, transform, generator, self.dtype, shard)


class WindowSource:
    """Batches of windows, background first."""

    def __init__(
        self,
        file: WindowFile,
        param: caffe_pb2.WindowDataParameter,
        transform: caffe_pb2.TransformationParameter,
        generator: np.random.Generator,
        dtype: DTypeLike,
        shard: Shard = WHOLE,
    ) -> None:
        self.param, self.crop, self.mirror = param, transform.crop_size, transform.mirror
        self.generator, self.images, self.channels = generator, file.images, file.channels
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.mean = centred_mean(transform, (self.channels, self.crop, self.crop), self.dtype)
        self.cache: dict[int, bytes] = {}
        good = set(readable(range(len(file.images)), self._pixels, lambda i: (param.source, i), param.source))
        self.windows = [window for window in file.windows if window.image in good]
        objects = [window for window in self.windows if window.overlap >= param.fg_threshold]
        if wrong := [window for window in objects if window.label < 1]:
            raise DataError(f"{param.source}: an object's window has class {wrong[0].label}; classes begin at 1")
        # The original tests fg first, so no window is both.
        others = [w._replace(label=0) for w in self.windows if w.overlap < min(param.bg_threshold, param.fg_threshold)]
        # the original multiplies floats and truncates
        count = int(np.float32(param.batch_size) * np.float32(param.fg_fraction))
        self.draws = ((others, param.batch_size - count), (objects, count))  # the original fills batches with background first
        for windows, wanted, kind in ((others, param.batch_size - count, "background"), (objects, count, "object")):
            if wanted and not windows:
                raise DataError(f"{param.source}: a batch takes {wanted} {kind} windows, but the file has none")
        self.shard = shard
        shard.rank_stream(generator)

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.param.batch_size, self.channels, self.crop, self.crop), (self.param.batch_size,)]

    def next_batch(self) -> Batch:
        data, labels = (np.zeros(shape, self.dtype) for shape in self.shapes())  # zeros where a window extends past its image
        at = 0
        for windows, count in self.draws:
            for _ in range(count):
                window = self._draw(windows)
                self._put(window, self.mirror and bool(self.generator.integers(2)), data[at])
                labels[at] = window.label
                at += 1
        return data, labels

    def state(self) -> dict[str, Any]:
        return self.shard.state(self.generator)

    def restore(self, state: dict[str, Any]) -> None:
        self.shard.restore(self.generator, state)

    def fingerprint(self) -> dict[str, Any]:
        windows = zlib.crc32(repr([tuple(window) for window in self.windows]).encode())
        return {"images": len(self.images), "windows": len(self.windows), "checksum": windows}

    def _draw(self, windows: Sequence[Window]) -> Window:
        return windows[int(self.generator.integers(len(windows)))]

    def _put(self, window: Window, mirrored: bool, out: Array) -> None:
        """Cut out the window, warp it, and write it to out (C, crop, crop)."""
        pixels = self._pixels(window.image)
        height, width, channels = pixels.shape
        if channels != len(out):
            raise DataError(f"{self._path(window.image)}: has {channels} channels, {self.param.source} says {len(out)}")
        place = placed(
            window.box, (height, width), self.crop, self.param.context_pad, self.param.crop_mode == "square", mirrored
        )
        x1, y1, x2, y2 = place.box
        if x1 < 0 or y1 < 0 or x2 >= width or y2 >= height or x2 < x1 or y2 < y1:
            raise DataError(f"{self._path(window.image)}: is {width} x {height}, which lacks the window {window.box}")
        warp_into(out, pixels, place, mirrored, self.mean, self.param.scale)

    def _path(self, image: int) -> str:
        return granted(f"{self.param.root_folder}{self.images[image]}")

    def _pixels(self, image: int) -> Pixels:
        """Return the image in colour. With cache_images the bytes of its file are kept."""
        path = self._path(image)
        if not self.param.cache_images:
            return read_image(path)
        try:
            if image not in self.cache:
                self.cache[image] = Path(path).read_bytes()
        except OSError as error:
            raise DataError(unread(str(path), "cannot read the image", error)) from error
        return read_image(self.cache[image], name=path)
