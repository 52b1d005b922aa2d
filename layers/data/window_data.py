"""WindowData: boxes cut out of images and warped to one size, for R-CNN's fine-tuning. Source: window_data_layer.cpp."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.blob import Array
from minicaffe.data.image_bytes import Pixels, read_image
from minicaffe.data.image_check import readable
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import WHOLE, Shard, current_shard
from minicaffe.data.window_file import Window, WindowFile, read_window_file
from minicaffe.errors import DataError
from minicaffe.files import granted
from minicaffe.proto import caffe_pb2

from .prefetching import PrefetchingLayer
from .window_warp import centred_mean, placed, warp_into


class WindowData(PrefetchingLayer):
    """Windows drawn at random: fg_fraction of a batch from those with overlap >= fg_threshold, the others, first in the batch,
    from those below bg_threshold.

    No bottom. top: data (batch_size, C, crop_size, crop_size): (pixel - mean) * window_data_param.scale; labels (batch_size,),
    0 for background. crop_mode: "warp", or "square" (the box is made square first). context_pad: so many pixels around the box.
    What lies outside the image is 0. From transform_param come crop_size, mirror and the mean, whose centre is subtracted.
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
        # the original tests fg first: no window is both
        others = [w._replace(label=0) for w in self.windows if w.overlap < min(param.bg_threshold, param.fg_threshold)]
        count = int(np.float32(param.batch_size) * np.float32(param.fg_fraction))  # the original multiplies floats and cuts
        self.draws = ((others, param.batch_size - count), (objects, count))  # background first, as the original fills batches
        for windows, wanted, kind in ((others, param.batch_size - count, "background"), (objects, count, "object")):
            if wanted and not windows:
                raise DataError(f"{param.source}: a batch takes {wanted} {kind} windows, but the file has none")
        self.shard = shard
        shard.rank_stream(generator)

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.param.batch_size, self.channels, self.crop, self.crop), (self.param.batch_size,)]

    def next_batch(self) -> Batch:
        data, labels = (np.zeros(shape, self.dtype) for shape in self.shapes())  # zeros: what a window has outside its image
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
        """Cut the window out, warp it, and write it to out (C, crop, crop)."""
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
        """Return the image in colour; with cache_images its file's bytes are kept."""
        path = self._path(image)
        if not self.param.cache_images:
            return read_image(path)
        try:
            if image not in self.cache:
                self.cache[image] = Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot read the image: {error.strerror or error}") from error
        return read_image(self.cache[image], name=path)
