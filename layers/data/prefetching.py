"""Base classes of data layers: batches prefetched in a thread, random generators and a state to resume from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from minicaffe import rng
from minicaffe.blob import Blob
from minicaffe.data.clips import OWN as SEGMENT_FIELDS
from minicaffe.data.prefetch import Prefetcher, Source
from minicaffe.data.state_fields import MISFITS, MOST, Fields, State, misfit
from minicaffe.errors import Error, LayerError
from minicaffe.files import is_uri
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2


class ShapedSource(Source, Protocol):
    """A source that knows its batches' shapes before it makes them."""

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the first batch's arrays."""

    def fingerprint(self) -> dict[str, Any]:
        """Return the number of records and a checksum of some. Ranks that train together must agree on them."""


class DataLayer(Layer):
    """A layer whose tops come from files, or batch by batch from the caller."""

    num_bottom = 0
    weight_names = ()
    has_gradient = False
    stateful = True


class PrefetchingLayer(DataLayer):
    """A data layer whose tops are batches of make_source(). The source's errors become LayerErrors."""

    prefetched = 1
    """The number of prefetched batches, unless the prototxt gives it."""
    takes_segments = False
    """True if the layer reads the fields of transform_param of temporal segment networks' VideoData."""

    def make_source(self, tops: int, generator: np.random.Generator) -> ShapedSource:
        """Return the source of batches for that number of tops. It draws all random numbers from generator."""
        raise NotImplementedError

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        # The thread needs its own generator: the order of draws from the net's would depend on timing.
        generator = np.random.default_rng(int(rng.generator().integers(2**63)))
        if not self.takes_segments:
            check_segment_fields(self)
        try:
            source = self.make_source(len(top), generator)
            shapes = source.shapes()
        except LayerError:
            raise
        except Error as error:
            raise self.error(f"{error}{self._without_data()}") from error
        for blob, shape in zip(top, shapes, strict=True):
            blob.reshape(shape)
        self.source_of_batches = source  # for its fingerprint; batches come through the thread
        self.prefetcher = Prefetcher(source, self.prefetched)

    def _without_data(self) -> str:
        """Return how to use the net without its database or list, or "" if it exists."""
        if not absent_source(self.param):
            return ""
        file = self.source.place.file if self.source else "train_val.prototxt"
        return f" (without the data: `minicaffe deploy {file} -o deploy.prototxt` writes a net with an input in its place)"

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        try:
            batch = self.prefetcher.take()
        except Error as error:
            raise self.error(str(error)) from error
        for blob, array in zip(top, batch, strict=True):
            blob.reshape(array.shape)  # the sizes of ImageData's batches may differ
            blob.data[...] = array

    def training_state(self) -> dict[str, Any]:
        return self.prefetcher.state()

    def restore_training_state(self, state: dict[str, Any]) -> None:
        try:
            self.prefetcher.restore(state)
        except Error as error:
            raise self.error(str(error)) from error
        except MISFITS as error:
            raise self.error(misfit(error)) from error

    def data_fingerprint(self) -> dict[str, Any]:
        return self.source_of_batches.fingerprint()

    def positive(self, value: int, field: str) -> int:
        """Return a size, checked to be > 0. Raises LayerError."""
        if value < 1:
            raise self.error(f"{field.rpartition('.')[2]} must be > 0, got {value}", field)
        return value


def absent_source(param: caffe_pb2.LayerParameter) -> str:
    """Return a data layer's missing database or list, or "" if none is missing."""
    sources = [str(getattr(block, "source", "")) for _, block in param.ListFields() if isinstance(block, Message)]
    return next((source for source in sources if source and not is_uri(source) and not os.path.exists(source)), "")


def check_segment_fields(layer: Layer) -> None:
    """Raise LayerError for transform_param fields that only temporal segment networks' VideoData supports here."""
    param = layer.param.transform_param
    for name in SEGMENT_FIELDS:
        if name in {field.name for field, _ in param.ListFields()}:
            raise layer.error(f"{name} is built in for VideoData of temporal segment networks alone", f"transform_param.{name}")


class Order:
    """An order of count items: 0, 1, 2, ..., repeated; with shuffle, a new random order each epoch."""

    def __init__(self, count: int, shuffle: bool, generator: np.random.Generator, position: int = 0) -> None:
        self.count, self.shuffle = count, shuffle
        self.seed, self.epoch, self.position = int(generator.integers(2**63)), 0, position
        self._order = self._shuffled()

    def next(self) -> int:
        """Return the next item."""
        return int(self.take(1)[0])

    def take(self, most: int) -> NDArray[np.int64]:
        """Return the next items: at most `most`, and none past the end of this epoch."""
        if self.position == self.count:
            self.epoch, self.position = self.epoch + 1, 0
            self._order = self._shuffled()
        taken = self._order[self.position : self.position + most]
        self.position += len(taken)
        return taken

    def state(self) -> dict[str, Any]:
        return {"count": self.count, "seed": self.seed, "epoch": self.epoch, "position": self.position}

    def restore(self, state: State | Fields) -> None:
        fields = Fields(state)
        count = fields.whole("count", 0, MOST)
        if count != self.count:
            raise ValueError(f'"{fields.path("count")}": it was of {count} items, there are {self.count}')
        seed, epoch = (fields.whole(name, 0, MOST) for name in ("seed", "epoch"))
        self.position = fields.whole("position", 0, count)
        self.seed, self.epoch = seed, epoch
        self._order = self._shuffled()

    def _shuffled(self) -> NDArray[np.int64]:
        # From seed and epoch alone, so that a snapshot stores four numbers and not the order.
        generator = np.random.default_rng([self.seed, self.epoch])
        return generator.permutation(self.count) if self.shuffle else np.arange(self.count)
