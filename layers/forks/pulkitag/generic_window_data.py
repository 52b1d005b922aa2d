"""GenericWindowData: groups of windows cut out of images, one group after the other, with numbers as labels.

Source: pulkitag/caffe's generic_window_data_layer.cpp and crop_data_layer.cpp, whose images of a group draw equal random
numbers. Unlike WindowData it warps what a window has inside its image to the whole crop.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.blob import Array
from minicaffe.data.image_bytes import Pixels, read_image, resized
from minicaffe.data.image_check import readable
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import WHOLE, Shard, current_shard
from minicaffe.data.state_fields import Fields
from minicaffe.data.window_file import Cut, WindowGroups, read_window_groups
from minicaffe.errors import DataError
from minicaffe.files import granted
from minicaffe.layers.data.prefetching import PrefetchingLayer
from minicaffe.layers.data.window_warp import Box, centred_mean, clipped
from minicaffe.proto import caffe_pb2


class GenericWindowData(PrefetchingLayer):
    """The examples of a file in order, from the first again after the last: of each its images' windows as channels.

    No bottom. top: data (batch_size, images * C, crop_size, crop_size): (pixel - mean) * scale, C being 3, or 1 with is_gray;
    labels (batch_size, numbers, 1, 1). generic_window_data_param: crop_mode "warp" or "square", and context_pad, as
    WindowData's, but what lies outside the image is left out; random_crop: a random place of the crop's size, one for all
    images of an example, in place of the windows; mirror: at random, likewise. transform_param gives the mean, whose centre
    counts.
    cache_images and is_ready have no effect on the numbers.
    Raises LayerError for a file or an image that cannot be read, an image of another size, or too small, and sizes of 0.
    """

    type = "GenericWindowData"
    num_top = 2
    param_block = ("generic_window_data_param", "transform_param")

    def make_source(self, tops: int, generator: np.random.Generator) -> GroupSource:
        param = self.param.generic_window_data_param
        self.positive(param.batch_size, "generic_window_data_param.batch_size")
        self.positive(param.crop_size, "generic_window_data_param.crop_size")
        if param.crop_mode not in ("warp", "square"):
            raise self.error(
                f'crop_mode "{param.crop_mode}" is neither "warp" nor "square"', "generic_window_data_param.crop_mode"
            )
        if 2 * param.context_pad >= param.crop_size:
            message = f"context_pad {param.context_pad} on both sides leaves nothing of crop_size {param.crop_size}"
            raise self.error(message, "generic_window_data_param.context_pad")
        groups = read_window_groups(granted(param.source))
        return GroupSource(groups, param, self.param.transform_param, generator, self.dtype, current_shard(self.phase))


class GroupSource:
    """Batches of examples."""

    def __init__(
        self,
        groups: WindowGroups,
        param: caffe_pb2.GenericWindowDataParameter,
        transform: caffe_pb2.TransformationParameter,
        generator: np.random.Generator,
        dtype: DTypeLike,
        shard: Shard = WHOLE,
    ) -> None:
        self.param, self.generator, self.shard = param, generator, shard
        cuts = {cut.path: cut for example in groups.cuts for cut in example}
        good = set(readable(list(cuts), lambda path: self._pixels(cuts[path]), lambda path: (param.source, path), param.source))
        kept = [i for i, example in enumerate(groups.cuts) if all(cut.path in good for cut in example)]
        if not kept:
            raise DataError(f"{param.source}: every example has an image that cannot be used")
        self.groups = WindowGroups([groups.cuts[i] for i in kept], [groups.labels[i] for i in kept])
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.channels, self.next = 1 if param.is_gray else 3, 0
        self.mean = centred_mean(transform, (self.channels, param.crop_size, param.crop_size), self.dtype)
        shard.rank_stream(generator)

    def shapes(self) -> list[tuple[int, ...]]:
        batch, crop = self.param.batch_size, self.param.crop_size
        images, numbers = len(self.groups.cuts[0]), len(self.groups.labels[0])
        return [(batch, images * self.channels, crop, crop), (batch, numbers, 1, 1)]

    def next_batch(self) -> Batch:
        data, labels = (np.empty(shape, self.dtype) for shape in self.shapes())
        for i in range(len(data)):
            example = (self.next + self.shard.rank) % len(self.groups.cuts)
            self.next = (self.next + self.shard.count) % len(self.groups.cuts)
            labels[i, :, 0, 0] = self.groups.labels[example]
            place, mirrored = self.generator.random(2), self.param.mirror and bool(self.generator.integers(2))
            for cut, out in zip(self.groups.cuts[example], data[i].reshape(-1, self.channels, *data.shape[2:]), strict=True):
                self._put(cut, place, mirrored, out)
        return data, labels

    def state(self) -> dict[str, Any]:
        return {"next": self.next, **self.shard.state(self.generator)}

    def restore(self, state: dict[str, Any]) -> None:
        self.next = Fields(state).whole("next", 0, len(self.groups.cuts) - 1)
        self.shard.restore(self.generator, state)

    def fingerprint(self) -> dict[str, Any]:
        return {"examples": len(self.groups.cuts), "checksum": zlib.crc32(repr(self.groups).encode())}

    def _put(self, cut: Cut, place: Array, mirrored: bool, out: Array) -> None:
        """Cut the window out, warp it, and write it to out (C, crop, crop)."""
        pixels = self._pixels(cut)
        x1, y1, x2, y2 = self._box(cut, place, f"{self.param.root_folder}{cut.path}")
        warped = resized(pixels[y1 : y2 + 1, x1 : x2 + 1], self.param.crop_size, self.param.crop_size)
        warped = warped.reshape(*warped.shape[:2], -1)
        values = (warped[:, ::-1] if mirrored else warped).transpose(2, 0, 1).astype(self.dtype)
        if self.mean is not None:
            values -= self.mean
        out[...] = values * self.dtype.type(self.param.scale)

    def _pixels(self, cut: Cut) -> Pixels:
        """A cut's image, which has the listed size."""
        path = granted(f"{self.param.root_folder}{cut.path}")
        pixels = read_image(path, not self.param.is_gray)
        if pixels.shape[:2] != (cut.height, cut.width):
            raise DataError(
                f"{path}: is {pixels.shape[1]} x {pixels.shape[0]}, {self.param.source} says {cut.width} x {cut.height}"
            )
        return pixels

    def _box(self, cut: Cut, place: Array, path: str) -> Box:
        """The box to cut out. place (2,): where in [0, 1) a random crop begins, of its range down and across."""
        crop, size = self.param.crop_size, (cut.height, cut.width)
        if not self.param.random_crop:
            return clipped(cut.box, size, crop, self.param.context_pad, self.param.crop_mode == "square")
        if min(size) <= crop:  # as the original, which divides by what is left over
            raise DataError(f"{path}: is {cut.width} x {cut.height}, a random crop of {crop} needs more")
        y1, x1 = (int(share * (length - crop)) for share, length in zip(place, size, strict=True))
        return clipped(
            (x1, y1, x1 + crop - 1, y1 + crop - 1), size, crop, self.param.context_pad, self.param.crop_mode == "square"
        )
