"""ImageData, and batches of listed images, also for ImageSegData and DenseImageData, and of clips for VideoData.

The next line of the list, in order or shuffled  ->  its image, resized  ->  what a layer makes of it
Source: Caffe's image_data_layer.cpp.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from minicaffe.data.clips import Clip
from minicaffe.data.data_transformer import DataTransformer, warn_of_no_effect
from minicaffe.data.image_bytes import Pixels, read_image, resized
from minicaffe.data.image_check import readable
from minicaffe.data.image_list import Listed, Paired, read_image_list
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import WHOLE, Shard, current_shard
from minicaffe.data.state_fields import Fields
from minicaffe.data.window_file import LabelledImage
from minicaffe.errors import DataError
from minicaffe.files import granted
from minicaffe.formats.arrays import checksum
from minicaffe.layer import Layer
from minicaffe.layers.data.prefetching import Order, PrefetchingLayer
from minicaffe.proto import caffe_pb2

CLIPS = ("new_length", "use_image", "sampling_rate", "use_temporal_jitter", "mean_value")
"""Fields of image_data_param that only C3D's VIDEO_DATA reads."""

Y = TypeVar("Y")
L = TypeVar("L", bound=Listed | Paired | Clip | LabelledImage)


class ListParam(Protocol):
    """The common fields of image_data_param and dense_image_data_param."""

    source: str
    batch_size: int
    rand_skip: int
    shuffle: bool
    new_height: int
    new_width: int
    is_color: bool
    root_folder: str


class ListSource(Generic[L]):
    """An endless source of batches. Subclasses define shapes and next_batch. generator: of all random numbers."""

    def __init__(self, images: list[L], param: ListParam, generator: np.random.Generator, shard: Shard) -> None:
        self.param, self.generator, self.shard = param, generator, shard
        kind = type(self)  # part of the key: of the same line, one layer reads the image and another its labels too
        self.images = readable(images, self.check, lambda listed: (kind, param.source, listed.line), param.source)
        skip = int(generator.integers(param.rand_skip)) if param.rand_skip else 0
        skip = min(skip, len(self.images))  # unreadable images are left out of the count
        # All ranks draw skip and order alike. Only then does each rank use its own generator.
        self.order = self.make_order(skip)
        shard.rank_stream(generator)

    def make_order(self, skip: int) -> Order:
        """Return the order of the list's lines, from line `skip` on."""
        return Order(len(self.images), self.param.shuffle, self.generator, skip)

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the first batch's arrays."""
        raise NotImplementedError

    def next_batch(self) -> Batch:
        """Return the next batch."""
        raise NotImplementedError

    def check(self, listed: L) -> None:
        """Read a line's image, and its labels if they are an image too. Raises DataError."""
        self.pixels(listed)

    def next_listed(self) -> L:
        """Return this rank's next line of the list."""
        # Each rank draws for all ranks, to keep their orders equal.
        return self.images[[self.order.next() for _ in range(self.shard.count)][self.shard.rank]]

    def state(self) -> dict[str, Any]:
        return {"order": self.order.state(), **self.shard.state(self.generator)}

    def restore(self, state: dict[str, Any]) -> None:
        self.order.restore(Fields(state).inner("order"))
        self.shard.restore(self.generator, state)

    def fingerprint(self) -> dict[str, Any]:
        lines = "".join(f"{listed.name} {listed.label}\n" for listed in self.images)
        return {
            "images": len(self.images),
            "list": zlib.crc32(lines.encode()),
            "first image": checksum(self.pixels(self.images[0])),
        }

    def pixels(self, listed: L) -> Pixels:
        """Return an image (H, W, C) as the layer reads it."""
        param = self.param
        pixels = self.named(listed, self._read, param.root_folder + listed.name)
        return self.named(listed, resized, pixels, param.new_height, param.new_width) if param.new_height else pixels

    def named(self, listed: L, step: Callable[..., Y], *arguments: object) -> Y:
        """Return step(*arguments). A DataError names the image's line in the list."""
        try:
            return step(*arguments)
        except DataError as error:
            place = f"{self.param.source}:{listed.line}"
            name = "" if listed.name in str(error) else f"{listed.name}: "
            raise DataError(f"{place}: {name}{error}") from error

    def _read(self, name: str) -> Pixels:
        return read_image(granted(name), self.param.is_color)


def check_list_fields(layer: Layer, block: str) -> None:
    """Raise LayerError for a batch_size of 0, and for new_height or new_width without the other."""
    param: ListParam = getattr(layer.param, block)
    for name in CLIPS if block == "image_data_param" and "video_data_param" not in layer.param_block else ():
        if param.HasField(name):  # type: ignore[attr-defined]
            raise layer.error(f"{name} is C3D's, for VIDEO_DATA layers", f"{block}.{name}")
    if param.batch_size < 1:
        raise layer.error(f"batch_size must be > 0, got {param.batch_size}", f"{block}.batch_size")
    if bool(param.new_height) != bool(param.new_width):
        raise layer.error(f"give both new_height and new_width, got {param.new_height} and {param.new_width}", block)


def check_skip(layer: Layer, block: str, images: Sequence[object]) -> Shard:
    """Return the layer's shard. Raises LayerError if rand_skip goes beyond the list."""
    skip = getattr(layer.param, block).rand_skip
    if skip > len(images):
        raise layer.error(f"rand_skip {skip} is more than the {len(images)} images listed", f"{block}.rand_skip")
    return current_shard(layer.phase)


class ImageData(PrefetchingLayer):
    """The images that image_data_param.source lists, `NAME LABEL` on each line, again and again.

    No bottom. top: data (batch_size, C, H, W), blue, green, red (is_color: false: grey), resized to new_height x new_width
    where these are given, then transformed as transform_param says (of SSD's fields those that Data takes); labels
    (batch_size,). Each batch has its first image's size. A name is root_folder and what the line says. shuffle: another order
    each time around. rand_skip: begin at a random one of the first rand_skip lines.
    Raises LayerError, with the list's line, for a line that is no name and label, an image that cannot be read or is smaller
    than the crop, images of several sizes in one batch, and a mean that does not fit.
    """

    type = "ImageData"
    num_top = 2
    param_block = ("image_data_param", "transform_param")

    def make_source(self, tops: int, generator: np.random.Generator) -> ImageListSource:
        check_list_fields(self, "image_data_param")
        param = self.param.image_data_param
        images = read_image_list(granted(param.source))
        shard = check_skip(self, "image_data_param", images)
        warn_of_no_effect(self, boxes=False)
        transformer = DataTransformer(self.param.transform_param, self.phase, generator, self.dtype)
        return ImageListSource(images, param, transformer, shard)


class ImageListSource(ListSource[Listed]):
    """Batches of the images of a list, transformed."""

    def __init__(
        self, images: list[Listed], param: caffe_pb2.ImageDataParameter, transformer: DataTransformer, shard: Shard = WHOLE
    ) -> None:
        super().__init__(images, param, transformer.generator, shard)
        self.transformer = transformer

    def shapes(self) -> list[tuple[int, ...]]:
        pixels = self.pixels(self.images[0])
        shape = self.named(self.images[0], self.transformer.shape, pixels.shape[2], *pixels.shape[:2])
        return [(self.param.batch_size, *shape), (self.param.batch_size,)]

    def next_batch(self) -> Batch:
        size = self.param.batch_size
        labels = np.empty(size, self.transformer.dtype)
        for i in range(size):
            listed = self.next_listed()
            image = self.pixels(listed).transpose(2, 0, 1)
            if i == 0:
                shape = self.named(listed, self.transformer.shape, *image.shape)
                batch = np.empty((size, *shape), self.transformer.dtype)
            self.named(listed, self.transformer.transform, image, batch[i])
            labels[i] = listed.label
        return batch, labels
