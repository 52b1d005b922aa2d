"""Data: images and labels from an LMDB or LevelDB of Datums. Source: Caffe's data_layer.cpp and base_data_layer.cpp."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.data_transformer import DataTransformer, warn_of_no_effect
from minicaffe.data.database import Database, datum_array, open_database, parse_datum
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import WHOLE, Shard, current_shard
from minicaffe.data.state_fields import Fields
from minicaffe.errors import DataError
from minicaffe.files import granted_folder
from minicaffe.proto import caffe_pb2

from .prefetching import PrefetchingLayer


class Data(PrefetchingLayer):
    """The items of a database in the order of their keys, again and again.

    No bottom. top: data (batch_size, C, H, W), transformed as transform_param says; optionally labels (batch_size,).
    data_param.rand_skip: begin at a random one of the first rand_skip items. Of SSD's transform_param resize_param,
    noise_param, crop_h and crop_w count; distort_param, expand_param and emit_constraint change nothing, with a warning.
    Raises LayerError for a database that is missing or damaged, items that are no images or not of one size, a crop that
    is larger than they are, and a mean that does not fit.
    """

    type = "Data"
    num_top = (1, 2)
    param_block = ("data_param", "transform_param")

    def make_source(self, tops: int, generator: np.random.Generator) -> DatumSource:
        param = self.param.data_param
        self.positive(param.batch_size, "data_param.batch_size")
        self.prefetched = self.positive(param.prefetch, "data_param.prefetch")
        warn_of_no_effect(self, boxes=False)
        transformer = DataTransformer(self.param.transform_param, self.phase, generator, self.dtype)
        shard = current_shard(self.phase)
        return DatumSource(open_source(param), param, transformer, tops > 1, shard)


def open_source(param: caffe_pb2.DataParameter) -> Database:
    """Return the database that param names. Raises DataError."""
    backend = "lmdb" if param.backend == caffe_pb2.DataParameter.LMDB else "leveldb"
    return open_database(granted_folder(param.source), backend)


class DatumSource:
    """Batches of a database's items, transformed."""

    def __init__(
        self,
        database: Database,
        param: caffe_pb2.DataParameter,
        transformer: DataTransformer,
        labelled: bool,
        shard: Shard = WHOLE,
    ) -> None:
        self.database, self.batch_size, self.shard = database, param.batch_size, shard
        self.transformer, self.labelled = transformer, labelled
        self.last: bytes | None = None
        self._items = database.items()
        # All ranks draw the skip alike. Only then does each rank use its own generator.
        self._skip(int(transformer.generator.integers(param.rand_skip)) if param.rand_skip else 0)
        shard.rank_stream(transformer.generator)

    def shapes(self) -> list[tuple[int, ...]]:
        image = self._image(*self._item_of(self.database.items()))[0]
        return [(self.batch_size, *self.transformer.shape(*image.shape)), (self.batch_size,)][: 1 + self.labelled]

    def next_batch(self) -> Batch:
        labels = np.empty(self.batch_size, self.transformer.dtype)
        for i in range(self.batch_size):
            key, value = self._next_of_shard()
            image, labels[i] = self._image(key, value)
            try:
                if i == 0:
                    # The batch takes the size of the first image.
                    batch = np.empty((self.batch_size, *self.transformer.shape(*image.shape)), self.transformer.dtype)
                # An image of another size raises DataError.
                self.transformer.transform(image, batch[i])
            except DataError as error:
                raise DataError(f"{self._name(key)}: {error}") from error
        return (batch, labels) if self.labelled else (batch,)

    def state(self) -> dict[str, Any]:
        key = None if self.last is None else self.last.decode("latin-1")  # latin-1 maps each byte to one character
        return {"key": key, **self.shard.state(self.transformer.generator)}

    def restore(self, state: dict[str, Any]) -> None:
        fields = Fields(state)
        last = None if fields.get("key") is None else fields.text("key").encode("latin-1")
        items = self.database.items(last or b"")
        if last is not None and next(items, (None,))[0] != last:  # items(last) begins with the last item taken: skip it
            raise ValueError(f'"key": {self._name(last)} is not in the database')
        self.shard.restore(self.transformer.generator, state)
        self.last, self._items = last, items

    def fingerprint(self) -> dict[str, Any]:
        key, value = next(self.database.items(), (b"", b""))
        return {"items": self.database.count(), "checksum": zlib.crc32(value, zlib.crc32(key))}

    def _next_of_shard(self) -> tuple[bytes, bytes]:
        """Return this rank's item of the next N items, N being the number of ranks."""
        for i in range(self.shard.count):  # all ranks read all items, to stay at the same place
            item = self._next()
            if self.shard.takes(i):
                mine = item
        return mine

    def _next(self) -> tuple[bytes, bytes]:
        item = next(self._items, None)
        if item is None:
            self._items = self.database.items()
            item = self._item_of(self._items)
        self.last = item[0]
        return item

    def _item_of(self, items: Iterator[tuple[bytes, bytes]]) -> tuple[bytes, bytes]:
        """Return the first item. Raises DataError if there is none."""
        item = next(items, None)
        if item is None:
            raise DataError(f"{self.database.path}: the database is empty")
        return item

    def _skip(self, count: int) -> None:
        """Skip count items. Whole rounds are not read."""
        passed, first = 0, None
        while count:
            self._next()
            count -= 1
            if self.last == first:  # a full round: `passed` is the number of items
                count %= passed
            first = first if passed else self.last
            passed += 1

    def _image(self, key: bytes, value: bytes) -> tuple[Array, int]:
        """Return an item's image (C, H, W) and label."""
        datum = parse_datum(value, self._name(key))
        return datum_array(datum, self._name(key), self.transformer.color), datum.label

    def _name(self, key: bytes) -> str:
        return f'{self.database.path}, key "{key.decode(errors="replace")}"'
