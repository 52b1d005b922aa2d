"""ImageData: images and labels from a text file of names. Source: Caffe's image_data_layer.cpp."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from minicaffe.access import granted
from minicaffe.data.data_transformer import DataTransformer, warn_of_no_effect
from minicaffe.data.image_bytes import Pixels, read_image, resized
from minicaffe.data.image_list import Listed, read_image_list
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import WHOLE, Shard, current_shard
from minicaffe.data.state_fields import Fields
from minicaffe.errors import DataError
from minicaffe.formats.checksum import checksum
from minicaffe.proto import caffe_pb2

from .reading.prefetching import Order, PrefetchingLayer

Y = TypeVar("Y")


class ImageData(PrefetchingLayer):
    """The images that image_data_param.source lists, `NAME LABEL` on each line, from the first again after the last.

    No bottom. top: data (batch_size, C, H, W), blue, green, red (is_color: false: grey), resized to new_height x new_width
    where these are given, then transformed as transform_param says (of SSD's fields those that Data takes); labels
    (batch_size,). Each batch has its first image's size. A name is root_folder and what the line says. shuffle: another order
    each time around. rand_skip: begin at a random one of the first so many.
    Raises LayerError, with the list's line, for a line that is no name and label, an image that cannot be read or is smaller
    than the crop, images of several sizes in one batch, and a mean that does not fit.
    """

    type = "ImageData"
    num_top = 2
    param_block = ("image_data_param", "transform_param")

    def make_source(self, tops: int, generator: np.random.Generator) -> ImageListSource:
        param = self.param.image_data_param
        self.positive(param.batch_size, "image_data_param.batch_size")
        if bool(param.new_height) != bool(param.new_width):
            message = f"give both new_height and new_width, got {param.new_height} and {param.new_width}"
            raise self.error(message, "image_data_param")
        images = read_image_list(granted(param.source))
        if param.rand_skip > len(images):
            raise self.error(
                f"rand_skip {param.rand_skip} is more than the {len(images)} images listed", "image_data_param.rand_skip"
            )
        warn_of_no_effect(self, boxes=False)
        transformer = DataTransformer(self.param.transform_param, self.phase, generator, self.dtype)
        return ImageListSource(images, param, transformer, current_shard(self.phase))


class ImageListSource:
    """Batches of the images of a list, transformed."""

    def __init__(
        self, images: list[Listed], param: caffe_pb2.ImageDataParameter, transformer: DataTransformer, shard: Shard = WHOLE
    ) -> None:
        self.images, self.param, self.transformer, self.shard = images, param, transformer, shard
        generator = transformer.generator
        skip = int(generator.integers(param.rand_skip)) if param.rand_skip else 0
        # skip and order are drawn alike in all ranks; only then each goes its way
        self.order = Order(len(images), param.shuffle, generator, skip)
        shard.rank_stream(generator)

    def shapes(self) -> list[tuple[int, ...]]:
        pixels = self._pixels(self.images[0])
        shape = self._named(self.images[0], self.transformer.shape, pixels.shape[2], *pixels.shape[:2])
        return [(self.param.batch_size, *shape), (self.param.batch_size,)]

    def next_batch(self) -> Batch:
        size = self.param.batch_size
        labels = np.empty(size, self.transformer.dtype)
        for i in range(size):
            # every rank draws for all: their orders stay alike
            listed = self.images[[self.order.next() for _ in range(self.shard.count)][self.shard.rank]]
            image = self._pixels(listed).transpose(2, 0, 1)
            if i == 0:
                shape = self._named(listed, self.transformer.shape, *image.shape)
                batch = np.empty((size, *shape), self.transformer.dtype)
            self._named(listed, self.transformer.transform, image, batch[i])
            labels[i] = listed.label
        return batch, labels

    def state(self) -> dict[str, Any]:
        return {"order": self.order.state(), **self.shard.state(self.transformer.generator)}

    def restore(self, state: dict[str, Any]) -> None:
        self.order.restore(Fields(state).inner("order"))
        self.shard.restore(self.transformer.generator, state)

    def fingerprint(self) -> dict[str, Any]:
        lines = "".join(f"{listed.name} {listed.label}\n" for listed in self.images)
        return {
            "images": len(self.images),
            "list": zlib.crc32(lines.encode()),
            "first image": checksum(self._pixels(self.images[0])),
        }

    def _pixels(self, listed: Listed) -> Pixels:
        """An image as the layer reads it (H, W, C)."""
        param = self.param
        pixels = self._named(listed, self._read, param.root_folder + listed.name)
        return self._named(listed, resized, pixels, param.new_height, param.new_width) if param.new_height else pixels

    def _read(self, name: str) -> Pixels:
        return read_image(granted(name), self.param.is_color)

    def _named(self, listed: Listed, step: Callable[..., Y], *arguments: object) -> Y:
        """step(*arguments), its error with the image's line in the list."""
        try:
            return step(*arguments)
        except DataError as error:
            place = f"{self.param.source}:{listed.line}"
            name = "" if listed.name in str(error) else f"{listed.name}: "
            raise DataError(f"{place}: {name}{error}") from error
