"""Windows and squares cut out of images."""

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
from minicaffe.data.window_file import Cut, SquareBoxes, WindowGroups, read_square_boxes, read_window_groups
from minicaffe.errors import DataError
from minicaffe.files import granted
from minicaffe.layer import check_finite_fields
from minicaffe.layers.data.prefetching import PrefetchingLayer
from minicaffe.layers.data.scenes import rounded
from minicaffe.layers.data.window_data import Box, centred_mean, clipped, padded, warp_into
from minicaffe.proto import caffe_pb2


class GenericWindowData(PrefetchingLayer):
    """The examples of a file in order, again and again. An example's channels are the windows of its images.

    Source: pulkitag/caffe's generic_window_data_layer.cpp and crop_data_layer.cpp, whose images of a group draw equal random
    numbers. Unlike WindowData it warps what a window has inside its image to the whole crop.

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
        """Cut out the window, warp it, and write it to out (C, crop, crop)."""
        pixels = self._pixels(cut)
        x1, y1, x2, y2 = self._box(cut, place, f"{self.param.root_folder}{cut.path}")
        warped = resized(pixels[y1 : y2 + 1, x1 : x2 + 1], self.param.crop_size, self.param.crop_size)
        warped = warped.reshape(*warped.shape[:2], -1)
        values = (warped[:, ::-1] if mirrored else warped).transpose(2, 0, 1).astype(self.dtype)
        if self.mean is not None:
            values -= self.mean
        out[...] = values * self.dtype.type(self.param.scale)

    def _pixels(self, cut: Cut) -> Pixels:
        """Return a cut's image. Raises DataError if it has not the listed size."""
        path = granted(f"{self.param.root_folder}{cut.path}")
        pixels = read_image(path, not self.param.is_gray)
        if pixels.shape[:2] != (cut.height, cut.width):
            raise DataError(
                f"{path}: is {pixels.shape[1]} x {pixels.shape[0]}, {self.param.source} says {cut.width} x {cut.height}"
            )
        return pixels

    def _box(self, cut: Cut, place: Array, path: str) -> Box:
        """Return the box to cut out. place (2,): start of a random crop, down and across, in [0, 1) of its range."""
        crop, size = self.param.crop_size, (cut.height, cut.width)
        if not self.param.random_crop:
            return clipped(cut.box, size, crop, self.param.context_pad, self.param.crop_mode == "square")
        if min(size) <= crop:  # the original divides by size - crop
            raise DataError(f"{path}: is {cut.width} x {cut.height}, a random crop of {crop} needs more")
        y1, x1 = (int(share * (length - crop)) for share, length in zip(place, size, strict=True))
        return clipped(
            (x1, y1, x1 + crop - 1, y1 + crop - 1), size, crop, self.param.context_pad, self.param.crop_mode == "square"
        )


MOST_DRAWS = 10_000
"""Most squares that are drawn around one object before an error. Few are rejected if sizes and distances fit the images."""


class SquareBoxData(PrefetchingLayer):
    """Random squares around objects that are drawn at random from the file, warped to one size.

        size = max(image's height, width) * u, u in [mn_bxsz_by_imsz, mx_bxsz_by_imsz)
        centre = object + d, d in [-mx_dist, mx_dist) right and down; drawn again unless it is in the image and |d| < size

    Source: pulkitag/caffe's square_box_window_data_layer.cpp.

    No bottom. top: data (batch_size, C, crop_size, crop_size), blue, green, red: pixel - mean, and 0 for what lies outside the
    image; labels (batch_size, 1, 1, 1), which are 0: the original writes none. square_box_data_param: the sizes of squares in
    parts of the image's longer side, mx_dist in pixels. transform_param gives mirror (at random) and the mean, whose centre
    counts. The file has a box of each object, too, which has no effect on data.
    Raises LayerError for a file or an image that cannot be read, an image of another size, a size of 0, sizes or a distance
    that are no range, and an object that no square fits.
    """

    type = "SquareBoxData"
    num_top = 2
    param_block = ("square_box_data_param", "transform_param")

    def make_source(self, tops: int, generator: np.random.Generator) -> SquareBoxSource:
        param, block = self.param.square_box_data_param, "square_box_data_param"
        check_finite_fields(self, block)
        self.positive(param.batch_size, f"{block}.batch_size")
        self.positive(param.crop_size, f"{block}.crop_size")
        least, most = param.mn_bxsz_by_imsz, param.mx_bxsz_by_imsz
        if not 0 <= least <= most:
            raise self.error(f"mn_bxsz_by_imsz must be in [0, {most:g}], got {least:g}", f"{block}.mn_bxsz_by_imsz")
        if param.mx_dist < 0:
            raise self.error(f"mx_dist must be >= 0, got {param.mx_dist:g}", f"{block}.mx_dist")
        boxes = read_square_boxes(granted(param.source))
        return SquareBoxSource(boxes, param, self.param.transform_param, generator, self.dtype, current_shard(self.phase))


class SquareBoxSource:
    """Batches of squares."""

    def __init__(
        self,
        boxes: SquareBoxes,
        param: caffe_pb2.SquareBoxDataParameter,
        transform: caffe_pb2.TransformationParameter,
        generator: np.random.Generator,
        dtype: DTypeLike,
        shard: Shard = WHOLE,
    ) -> None:
        self.boxes, self.param, self.mirror = boxes, param, transform.mirror
        self.generator, self.shard = generator, shard
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.mean = centred_mean(transform, (boxes.channels, param.crop_size, param.crop_size), self.dtype)
        good = set(readable(range(len(boxes.images)), self._pixels, lambda i: (param.source, i), param.source))
        self.boxes = boxes._replace(objects=[one for one in boxes.objects if one[0] in good])
        shard.rank_stream(generator)

    def shapes(self) -> list[tuple[int, ...]]:
        batch, crop = self.param.batch_size, self.param.crop_size
        return [(batch, self.boxes.channels, crop, crop), (batch, 1, 1, 1)]

    def next_batch(self) -> Batch:
        data, labels = (np.zeros(shape, self.dtype) for shape in self.shapes())
        for out in data:
            image, x, y = self.boxes.objects[int(self.generator.integers(len(self.boxes.objects)))]
            self._put(image, (x, y), self.mirror and bool(self.generator.integers(2)), out)
        return data, labels

    def state(self) -> dict[str, Any]:
        return self.shard.state(self.generator)

    def restore(self, state: dict[str, Any]) -> None:
        self.shard.restore(self.generator, state)

    def fingerprint(self) -> dict[str, Any]:
        return {"objects": len(self.boxes.objects), "checksum": zlib.crc32(repr(self.boxes).encode())}

    def _put(self, image: int, place: tuple[int, int], mirrored: bool, out: Array) -> None:
        """Cut out a square around an object at (x, y), warp it, and write it to out (C, crop, crop)."""
        pixels = self._pixels(image)
        name, height, width = self.boxes.images[image]
        square = self._square((height, width), place, f"{self.param.root_folder}{name}")
        warp_into(out, pixels, padded(square, (height, width), self.param.crop_size, mirrored), mirrored, self.mean)

    def _pixels(self, image: int) -> Pixels:
        """Return an image. Raises DataError if it has not the listed size."""
        name, height, width = self.boxes.images[image]
        path, channels = granted(f"{self.param.root_folder}{name}"), self.boxes.channels
        pixels = read_image(path)
        if pixels.shape != (height, width, channels):
            listed = f"{self.param.source} says {width} x {height} with {channels} channels"
            raise DataError(f"{path}: is {pixels.shape[1]} x {pixels.shape[0]} with {pixels.shape[2]} channels, {listed}")
        return pixels

    def _square(self, size: tuple[int, int], place: tuple[int, int], path: str) -> Box:
        """Return a random square around (x, y) in an image (height, width). Raises DataError if none is found."""
        param, random = self.param, self.generator
        number = self.dtype.type  # the original computes in the net's type
        for _ in range(MOST_DRAWS):
            side = number(max(size)) * number(random.uniform(param.mn_bxsz_by_imsz, param.mx_bxsz_by_imsz))
            right, down = (number(distance) for distance in random.uniform(-param.mx_dist, param.mx_dist, 2))
            x, y = number(place[0]) + right, number(place[1]) + down
            if 0 < x < size[1] and 0 < y < size[0] and abs(right) < side and abs(down) < side:
                x, y, half = float(x), float(y), float(side) / 2
                return rounded(x - half), rounded(y - half), rounded(x + half), rounded(y + half)
        wanted = f"its centre in the image, and less than its side from the object at {place[0]}, {place[1]}"
        raise DataError(f"{path}: none of {MOST_DRAWS:,} squares had {wanted}; mx_dist is {param.mx_dist:g}")
