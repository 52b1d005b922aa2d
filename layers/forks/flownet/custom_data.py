"""CustomData: batches of images, flow and masks for FlowNet, from an LMDB of Datums cut into slices of channels.

A slice is stored in one of several ways:

    UINT8       a byte each
    UINT16FLOW  16 bits with a sign, low byte first, in 1/32; 32767 is NaN
    BOOL1       a channel of bits, 0 or 1, lowest bit first

Source: FlowNet 2's custom_data_layer.cpp.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.data.database import Database, open_database, parse_datum
from minicaffe.data.image_list import label_number, text_lines
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import Shard, current_shard
from minicaffe.data.state_fields import MOST, Fields
from minicaffe.errors import DataError, WeightsError
from minicaffe.files import granted, granted_folder
from minicaffe.formats.weights import read_binaryproto
from minicaffe.layer import check_finite_fields
from minicaffe.layers.data.prefetching import PrefetchingLayer
from minicaffe.proto import caffe_pb2

Param = caffe_pb2.DataParameter
UNKNOWN = 32767
STEPS = 32
"""Steps of a pixel in UINT16FLOW."""


def slices_of(points: Sequence[int], channels: int) -> list[slice]:
    """Return the slices of the channels, cut at points. Raises DataError."""
    edges = [0, *points, channels]
    if any(low >= high for low, high in pairwise(edges)):
        raise DataError(f"slice_point {', '.join(map(str, points))} do not cut {channels} channels into slices")
    return [slice(low, high) for low, high in pairwise(edges)]


def decoded(datum: caffe_pb2.Datum, slices: Sequence[slice], encoding: Sequence[int]) -> Array:
    """Return a Datum's values (C, H, W), float32. encoding: of each slice, else UINT8. Raises DataError."""
    shape, pixels = (datum.channels, datum.height, datum.width), datum.height * datum.width
    if datum.encoded:
        raise DataError("the record is an image file, not bytes of channels")
    if datum.float_data:
        if encoding:
            raise DataError("the record has floats, which have no encoding")
        return reshaped(np.array(datum.float_data, np.float32), shape)
    parts, at = [], 0
    for i, part in enumerate(slices):
        count, kind = part.stop - part.start, encoding[i] if i < len(encoding) else Param.UINT8
        if kind == Param.BOOL1 and count != 1:
            raise DataError(f"a slice of BOOL1 has one channel, got {count}")
        length = (pixels + 7) // 8 if kind == Param.BOOL1 else count * pixels * (2 if kind == Param.UINT16FLOW else 1)
        content = datum.data[at : at + length]
        if len(content) < length:
            break
        parts.append(values_of(content, kind)[: count * pixels])
        at += length
    if len(parts) < len(slices) or at != len(datum.data):
        wanted = f"{len(slices)} slices of {datum.channels} channels of {datum.height} x {datum.width}"
        raise DataError(f"{len(datum.data)} bytes are stored, not those of {wanted}")
    return reshaped(np.concatenate(parts), shape)


def values_of(content: bytes, kind: int) -> Array:
    """Return the values stored in bytes, float32."""
    if kind == Param.BOOL1:
        return np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little").astype(np.float32)
    if kind == Param.UINT16FLOW:
        steps = np.frombuffer(content, "<i2")
        flow: Array = np.where(steps == UNKNOWN, np.float32(np.nan), steps.astype(np.float32) / np.float32(STEPS))
        return flow
    return np.frombuffer(content, np.uint8).astype(np.float32)


def reshaped(values: Array, shape: tuple[int, int, int]) -> Array:
    """Return values as (C, H, W). Raises DataError if their number does not match."""
    if min(shape) < 1 or values.size != np.prod(shape):
        raise DataError(f"{values.size} values stored for {shape[0]} channels of {shape[1]} x {shape[2]}")
    return values.reshape(shape)


class Setting(NamedTuple):
    """data_param, the batch size, the seed of the order, the blobs' type and the number of tops."""

    param: caffe_pb2.DataParameter
    batch_size: int
    seed: int
    dtype: np.dtype[Any]
    tops: int


class RecordSource:
    """Batches of a database's records, cut into slices of channels."""

    def __init__(self, database: Database, setting: Setting, shard: Shard) -> None:
        self.database, self.shard, self.batches = database, shard, 0
        self.param, self.batch_size, self.seed, self.dtype, self.tops = setting
        param = self.param
        self.chosen = self._chosen()
        self.order = self._order()
        datum = self._datum(0)
        self.shape = datum.channels, datum.height, datum.width
        self.slices = slices_of(param.slice_point, datum.channels)
        self.mean = self._mean()

    def shapes(self) -> list[tuple[int, ...]]:
        parts: list[tuple[int, ...]] = [(self.batch_size, part.stop - part.start, *self.shape[1:]) for part in self.slices]
        return [*parts, (self.batch_size, 1, 1, 1)][: self.tops]

    def next_batch(self) -> Batch:
        tops = [np.empty(shape, self.dtype) for shape in [*self.shapes(), (self.batch_size, 1, 1, 1)]]
        every = self.param.permute_every_iter
        if every and self.batches and self.batches % every == 0:
            self.order = self._order()
        first = self.batches * self.batch_size * self.shard.count
        for i in range(self.batch_size):
            record = int(self.order[(first + i * self.shard.count + self.shard.rank) % len(self.order)])
            values, label = self._values(record)
            for top, part in zip(tops, self.slices):
                top[i] = values[part]
            tops[len(self.slices)][i] = label
        self.batches += 1
        return tuple(tops[: self.tops])

    def state(self) -> dict[str, Any]:
        return {"batches": self.batches, "seed": self.seed}

    def restore(self, state: dict[str, Any]) -> None:
        fields = Fields(state)
        batches, seed = fields.whole("batches", 0, MOST), fields.whole("seed", 0, MOST)
        self.batches, self.seed = batches, seed
        self.order = self._order()

    def fingerprint(self) -> dict[str, Any]:
        chosen = zlib.crc32(self.chosen.astype("<i8").tobytes())
        return {"records": self.database.count(), "chosen": chosen, "checksum": zlib.crc32(self._item(0)[1])}

    def _chosen(self) -> NDArray[np.int64]:
        """Return the numbers of the records to read, before the range is cut. Raises DataError."""
        count, file = self.database.count() or 0, self.param.preselection_file
        if not count:
            raise DataError(f"{self.database.path}: the database is empty")
        if not file:
            return np.arange(count)
        if not self.param.HasField("preselection_label"):
            raise DataError("preselection_file needs a preselection_label")
        words = [(word, n) for n, line in enumerate(text_lines(granted(file)), 1) for word in line.split()]
        labels = np.array([label_number(word, f"{file}:{n}") for word, n in words], np.int64)
        if len(labels) != count:
            raise DataError(f"{file}: {len(labels)} labels for the {count} records of {self.database.path}")
        chosen = np.flatnonzero(labels == self.param.preselection_label)
        if not len(chosen):
            raise DataError(f"{file}: no record has the label {self.param.preselection_label}")
        return chosen

    def _order(self) -> NDArray[np.int64]:
        """Return the records in the order of the next batches."""
        param, last = self.param, len(self.chosen) - 1
        start = min(max(param.range_start, 0), last)
        end = last if param.range_end < 0 else min(param.range_end, last)
        if end < start:
            raise DataError(f"range_end {param.range_end} is before range_start {param.range_start}")
        part = slice(start, end + 1)
        if not param.rand_permute:
            return self.chosen[part]
        again = self.batches // param.permute_every_iter if param.permute_every_iter else 0
        random = np.random.default_rng([self.seed, again])
        if again and param.rand_permute_order == Param.FIRST_PERMUTE_THEN_RANGE:
            # The first draw fixed the items in the range. Later epochs only change their order.
            chosen = permuted(self.chosen, param.block_size, np.random.default_rng([self.seed, 0]))[part]
            return permuted(chosen, param.block_size, random)
        if param.rand_permute_order == Param.FIRST_PERMUTE_THEN_RANGE:
            return permuted(self.chosen, param.block_size, random)[part]
        return permuted(self.chosen[part], param.block_size, random)

    def _item(self, record: int) -> tuple[bytes, bytes]:
        item = next(self.database.items(b"%08d" % record), None)
        if item is None:
            raise DataError(
                f"{self.database.path}: no key is {record:08d} or later, as those of {len(self.chosen)} records are"
            )
        return item

    def _datum(self, record: int) -> caffe_pb2.Datum:
        key, value = self._item(record)
        return parse_datum(value, f'{self.database.path}, key "{key.decode(errors="replace")}"')

    def _values(self, record: int) -> tuple[Array, int]:
        """Return a record's values (C, H, W), transformed, and its label."""
        datum, name = self._datum(record), f"{self.database.path}, record {record}"
        shape = datum.channels, datum.height, datum.width
        if shape != self.shape:
            raise DataError(f"{name}: it has shape {shape}, and the first has {self.shape}")
        try:
            values = decoded(datum, self.slices, self.param.encoding)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
        if self.mean is not None:
            values = values - self.mean
        return values * np.float32(self.param.scale), datum.label

    def _mean(self) -> Array | None:
        """Return the mean to subtract, of shape (C, H, W) or (C, 1, 1). Raises DataError."""
        param = self.param
        if param.mean_file:
            try:
                mean = read_binaryproto(granted(param.mean_file))
            except (WeightsError, OSError) as error:
                raise DataError(f"mean_file: {error}") from error
            if mean.size != np.prod(self.shape) or mean.shape[-3:] != self.shape:
                raise DataError(f"mean_file {param.mean_file} has shape {mean.shape}, the records have {self.shape}")
            return mean.reshape(self.shape).astype(np.float32)
        if not param.subtract:
            return None
        if len(param.subtract) > self.shape[0]:
            raise DataError(f"{len(param.subtract)} numbers to subtract from {self.shape[0]} channels")
        given = np.zeros(self.shape[0], np.float32)
        given[: len(param.subtract)] = param.subtract
        return given[:, None, None]


def permuted(records: NDArray[np.int64], block: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Return the records in random order, or with a block size shuffled within blocks.

    A block's last record stays, as in the original.
    """
    shuffled: NDArray[np.int64] = records.copy()
    if not block:
        random.shuffle(shuffled)
    for start in range(0, len(records), block) if block else ():
        random.shuffle(shuffled[start : min(start + block, len(records)) - 1])
    return shuffled


REFUSED = ("rand_skip", "crop_size", "mirror")


class CustomData(PrefetchingLayer):
    """The records of an LMDB, cut into slices of channels at data_param.slice_point and decoded by each slice's encoding.

    No bottom. top: for each slice (batch_size, C, H, W): (value - mean) * scale; optionally the labels (batch_size, 1, 1, 1).
    mean: data_param.mean_file, of all channels, or subtract, of the first ones. preselection_file: a number for each record, of
    which those count that have preselection_label. range_start, range_end: the first and last of them, in their order or, with
    rand_permute_order: FIRST_PERMUTE_THEN_RANGE, of the permuted ones. rand_permute: in random order, the same each time
    around, from rand_permute_seed if that is above 0; drawn anew every permute_every_iter batches; block_size: within blocks,
    the last record of which stays.
    Raises LayerError for another backend than LMDB, a record that is not of the first one's size or whose bytes are not those
    of its slices, a mean that does not fit, another number of tops than slices, an empty choice of records, and for rand_skip,
    crop_size and mirror, which the original refuses too.
    """

    type = "CustomData"
    num_top = (1, None)
    param_block = ("data_param",)

    def make_source(self, tops: int, generator: np.random.Generator) -> RecordSource:
        param = self.param.data_param
        batch = param.batch_size if param.HasField("batch_size") else 1
        self.positive(batch, "data_param.batch_size")
        if wrong := [name for name in REFUSED if getattr(param, name)]:
            raise self.error(f"{wrong[0]} is not supported, in the original neither", f"data_param.{wrong[0]}")
        if param.backend != Param.LMDB:
            raise self.error("reads LMDBs alone: write backend: LMDB", "data_param.backend")
        slices = len(param.slice_point) + 1
        if tops not in (slices, slices + 1):
            raise self.error(
                f"{slices} slices give {slices} tops, or one more for labels, got {tops}", "data_param.slice_point"
            )
        if len(param.encoding) > slices:
            raise self.error(f"{len(param.encoding)} encodings given for {slices} slices", "data_param.encoding")
        check_finite_fields(self, "data_param")
        seed = param.rand_permute_seed or int(generator.integers(2**63))
        database = open_database(granted_folder(param.source), "lmdb")
        return RecordSource(database, Setting(param, batch, seed, self.dtype, tops), current_shard(self.phase))
