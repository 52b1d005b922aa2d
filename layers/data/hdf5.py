"""HDF5Data and HDF5Output: batches from and to HDF5 files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.data.image_list import read_names
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import WHOLE, Shard, current_shard
from minicaffe.data.state_fields import Fields
from minicaffe.errors import DataError, Error, LayerError, WeightsError
from minicaffe.files import granted, plain, unlinked
from minicaffe.formats.arrays import checksum
from minicaffe.formats.hdf5 import adding, has, read_number_dataset, reading, require_h5py, writing
from minicaffe.layer import Layer
from minicaffe.layers.data.prefetching import Order, PrefetchingLayer


class HDF5Data(PrefetchingLayer):
    """Rows of the datasets of HDF5 files, one dataset for each top.

    The files that hdf5_data_param.source lists are read one after the other, again and again. Source: Caffe's
    hdf5_data_layer.cpp.

    No bottom. top[i]: (batch_size, ...), rows of the dataset that is named as the top; numbers of any type, plain or packed
    with gzip, shuffle and fletcher32. A file is held in memory while it is read from. shuffle: the files in another order each
    time around, and the rows within each.
    Raises LayerError for a transform_param (this layer transforms nothing), a list without files, a file without the
    dataset, datasets of unequal length, and rows whose shape differs from the first file's.
    """

    type = "HDF5Data"
    num_top = (1, None)
    param_block = ("hdf5_data_param",)

    def make_source(self, tops: int, generator: np.random.Generator) -> RowSource:
        param = self.param.hdf5_data_param
        if self.param.HasField("transform_param"):
            raise self.error("transforms nothing: leave transform_param out", "transform_param")
        self.positive(param.batch_size, "hdf5_data_param.batch_size")
        files, names, shard = read_names(granted(param.source)), list(self.param.top), current_shard(self.phase)
        return RowSource(files, names, param.batch_size, param.shuffle, generator, self.dtype, shard=shard)


class RowSource:
    """Batches of the rows of HDF5 files."""

    def __init__(
        self,
        files: list[str],
        names: list[str],
        batch_size: int,
        shuffle: bool,
        generator: np.random.Generator,
        dtype: Any,
        *,
        shard: Shard = WHOLE,
    ) -> None:
        self.files, self.names, self.batch_size, self.dtype = files, names, batch_size, dtype
        self.shuffle, self.generator, self.shard = shuffle, generator, shard
        self.order = Order(len(files), shuffle, generator)
        self._load(self.order.next())
        self.row_shapes = [array.shape[1:] for array in self.arrays]  # from the first file; the others must agree

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.batch_size, *shape) for shape in self.row_shapes]

    def next_batch(self) -> Batch:
        batch = tuple(np.empty(shape, self.dtype) for shape in self.shapes())
        at, filled, count = 0, 0, self.batch_size * self.shard.count
        while at < count:
            # A single file stays loaded; its Order starts again.
            if self.rows.position == self.rows.count and len(self.files) > 1:
                self._load(self.order.next())
            rows = self.rows.take(count - at)
            # Record p of all ranks' batch belongs to this rank if p % count == rank. rows[0] is record `at`.
            mine = rows[(self.shard.rank - at) % self.shard.count :: self.shard.count]
            for array, stored in zip(batch, self.arrays, strict=True):
                array[filled : filled + len(mine)] = stored[mine]
            at, filled = at + len(rows), filled + len(mine)
        return batch

    def state(self) -> dict[str, Any]:
        orders = {"files": self.order.state(), "rows": self.rows.state()}
        return {**orders, "file": self.file, "generator": self.generator.bit_generator.state}

    def restore(self, state: dict[str, Any]) -> None:
        fields = Fields(state)
        file, generator = fields.whole("file", 0, len(self.files) - 1), fields.generator("generator")
        self.order.restore(fields.inner("files"))
        self._load(file)
        self.rows.restore(fields.inner("rows"))
        self.generator.bit_generator.state = generator

    def fingerprint(self) -> dict[str, Any]:
        # These rows are enough to distinguish data sets.
        first, last = ([_some_rows(name, top) for top in self.names] for name in (self.files[0], self.files[-1]))
        return {"files": len(self.files), "rows": len(first[0]), "checksum": checksum(*first, *last)}

    def _load(self, file: int) -> None:
        """Read a file's datasets, and start with its rows."""
        self.file, name = file, self.files[file]
        with _opened(name) as opened:
            self.arrays = [_dataset(opened, top, name).astype(self.dtype, copy=False) for top in self.names]
        if len({len(array) for array in self.arrays}) > 1:
            lengths = ", ".join(f'"{top}" {len(array)}' for top, array in zip(self.names, self.arrays, strict=True))
            raise DataError(f"{name}: its datasets differ in length: {lengths}")
        for top, array, shape in zip(self.names, self.arrays, getattr(self, "row_shapes", []), strict=False):
            if array.shape[1:] != shape:
                raise DataError(f'{name}: the rows of "{top}" have shape {array.shape[1:]}, those of {self.files[0]} {shape}')
        self.rows = Order(len(self.arrays[0]), self.shuffle, self.generator)


@contextmanager
def _opened(name: str) -> Iterator[Any]:
    """Open a file as a context manager. Raises DataError."""
    try:
        with reading(granted(name)) as file:
            yield file
    except WeightsError as error:
        raise DataError(str(error)) from error


def _some_rows(name: str, top: str) -> Array:
    """Return the first rows of a dataset, at most 1000."""
    with _opened(name) as file:
        return _dataset(file, top, name, 1000)


def _dataset(file: Any, name: str, path: str, rows: int | None = None) -> Array:
    """Return a dataset with at least one row, or its first rows."""
    if not has(file, name.partition("/")[0]):
        raise DataError(f'{path}: has no dataset "{name}"; it has {", ".join(sorted(file)) or "none"}')
    values = read_number_dataset(file, name, f'{path}: dataset "{name}"', rows)
    if not values.ndim or not len(values):
        raise DataError(f'{path}: dataset "{name}" has shape {values.shape}: it has no rows')
    return values


class HDF5Output(Layer):
    """Two bottoms written to a file as the datasets data and label.

    Each forward appends its rows to the datasets (N, C, H, W). The first forward starts a new file; an older file stays until
    these rows are written. Source: Caffe's hdf5_output_layer.cpp.

    bottom: data (N, ...) and label (N, ...), at most 4 axes; absent ones count as 1. No top, no gradient. (Caffe fails at the
    second forward, as the datasets are there already.)
    Raises LayerError when the bottoms differ in N or in their rows from those before, and for a file that cannot be written.
    """

    type = "HDF5Output"
    num_bottom, num_top = 2, 0
    param_block = ("hdf5_output_param",)
    weight_names = ()
    has_gradient = False
    stateful = True
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        require_h5py()
        self.file_name = self.param.hdf5_output_param.file_name
        if not self.file_name:
            raise self.error("needs hdf5_output_param.file_name", "hdf5_output_param")
        try:
            unlinked(granted(self.file_name), DataError)
        except DataError as error:
            raise self.error(str(error), "hdf5_output_param.file_name") from error
        if os.path.exists(self.file_name) and not require_h5py().is_hdf5(self.file_name):
            raise self.error(f"{self.file_name} is there and no HDF5 file: not overwritten", "hdf5_output_param.file_name")
        self.begun = False

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if bottom[0].num != bottom[1].num:
            raise self.error(f"data has {bottom[0].num} rows, label has {bottom[1].num}")

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        rows = {
            name: blob.data.reshape(blob.num, blob.channels, blob.height, blob.width)
            for name, blob in zip(("data", "label"), bottom, strict=True)
        }
        try:
            if self.begun:  # add rows only to a file that this layer began
                self._add(rows)
            else:
                self._begin(rows)
        except LayerError:
            raise
        except Error as error:
            raise self.error(str(error), "hdf5_output_param.file_name") from error
        except (OSError, KeyError) as error:
            raise self.error(
                f"cannot write {self.file_name}: {plain(error) if isinstance(error, OSError) else error}",
                "hdf5_output_param.file_name",
            ) from error
        self.begun = True

    def _begin(self, rows: dict[str, Array]) -> None:
        """Write a new file in place of an older one."""
        with writing(unlinked(self.file_name)) as file:
            for name, values in rows.items():
                # The first axis can grow, because later forwards add rows.
                file.create_dataset(name, data=values, maxshape=(None, *values.shape[1:]), chunks=True)

    def _add(self, rows: dict[str, Array]) -> None:
        with adding(self.file_name) as file:
            for name, values in rows.items():
                stored = file[name]
                if stored.shape[1:] != values.shape[1:]:
                    raise self.error(f"{self.file_name} holds {name} of shape {stored.shape}, got {values.shape}")
                stored.resize(len(stored) + len(values), axis=0)
                stored[len(stored) - len(values) :] = values
