"""Batches of the images that a list names, for ImageData, ImageSegData and DenseImageData, or of clips, for VideoData.

The next line of the list, in order or shuffled  ->  its image, resized  ->  what a layer makes of it
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from minicaffe.data.clips import Clip
from minicaffe.data.image_bytes import Pixels, read_image, resized
from minicaffe.data.image_check import readable
from minicaffe.data.image_list import Listed, Paired
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import Shard, current_shard
from minicaffe.data.state_fields import Fields
from minicaffe.data.window_file import LabelledImage
from minicaffe.errors import DataError
from minicaffe.files import granted
from minicaffe.formats.arrays import checksum
from minicaffe.layer import Layer

from .prefetching import Order

CLIPS = ("new_length", "use_image", "sampling_rate", "use_temporal_jitter", "mean_value")
"""Fields of image_data_param that only C3D's VIDEO_DATA reads."""

Y = TypeVar("Y")
L = TypeVar("L", bound=Listed | Paired | Clip | LabelledImage)


class ListParam(Protocol):
    """Fields of image_data_param and dense_image_data_param."""

    source: str
    batch_size: int
    rand_skip: int
    shuffle: bool
    new_height: int
    new_width: int
    is_color: bool
    root_folder: str


class ListSource(Generic[L]):
    """An endless source of batches; a layer's own writes shapes and next_batch. generator: of all random numbers."""

    def __init__(self, images: list[L], param: ListParam, generator: np.random.Generator, shard: Shard) -> None:
        self.param, self.generator, self.shard = param, generator, shard
        kind = type(self)  # of a list's line, one layer reads the image, and another its labels too
        self.images = readable(images, self.check, lambda listed: (kind, param.source, listed.line), param.source)
        skip = int(generator.integers(param.rand_skip)) if param.rand_skip else 0
        skip = min(skip, len(self.images))  # unreadable ones are left out
        # skip and order are drawn alike in all ranks; only then each goes its way
        self.order = self.make_order(skip)
        shard.rank_stream(generator)

    def make_order(self, skip: int) -> Order:
        """In which order the lines of the list come."""
        return Order(len(self.images), self.param.shuffle, self.generator, skip)

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the first batch's arrays."""
        raise NotImplementedError

    def next_batch(self) -> Batch:
        """Return the next batch."""
        raise NotImplementedError

    def check(self, listed: L) -> None:
        """Read a line's image, and its labels if they are an image. Raises DataError."""
        self.pixels(listed)

    def next_listed(self) -> L:
        """Return the next line of the list."""
        # every rank draws for all: their orders stay alike
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
        """Return an image as the layer reads it (H, W, C)."""
        param = self.param
        pixels = self.named(listed, self._read, param.root_folder + listed.name)
        return self.named(listed, resized, pixels, param.new_height, param.new_width) if param.new_height else pixels

    def named(self, listed: L, step: Callable[..., Y], *arguments: object) -> Y:
        """step(*arguments), its error with the image's line in the list."""
        try:
            return step(*arguments)
        except DataError as error:
            place = f"{self.param.source}:{listed.line}"
            name = "" if listed.name in str(error) else f"{listed.name}: "
            raise DataError(f"{place}: {name}{error}") from error

    def _read(self, name: str) -> Pixels:
        return read_image(granted(name), self.param.is_color)


def check_list_fields(layer: Layer, block: str) -> None:
    """Raise LayerError for a batch_size of 0, and for one of new_height and new_width without the other."""
    param: ListParam = getattr(layer.param, block)
    for name in CLIPS if block == "image_data_param" and "video_data_param" not in layer.param_block else ():
        if param.HasField(name):  # type: ignore[attr-defined]
            raise layer.error(f"{name} is C3D's, for VIDEO_DATA layers", f"{block}.{name}")
    if param.batch_size < 1:
        raise layer.error(f"batch_size must be > 0, got {param.batch_size}", f"{block}.batch_size")
    if bool(param.new_height) != bool(param.new_width):
        raise layer.error(f"give both new_height and new_width, got {param.new_height} and {param.new_width}", block)


def check_skip(layer: Layer, block: str, images: Sequence[object]) -> Shard:
    """Return the shard that the layer reads. Raises LayerError if rand_skip goes beyond the list."""
    skip = getattr(layer.param, block).rand_skip
    if skip > len(images):
        raise layer.error(f"rand_skip {skip} is more than the {len(images)} images listed", f"{block}.rand_skip")
    return current_shard(layer.phase)
