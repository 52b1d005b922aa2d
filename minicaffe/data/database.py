"""Databases of keys and values, ordered by key (LMDB and LevelDB), and the Datum stored as each value.

    with open_database("train_lmdb", "lmdb") as database:   for key, value in database.items(): ...
    with new_database("train_lmdb", "lmdb") as writer:      writer.put(key, value)

A Datum is an image (bytes or floats in the order channel, row, column; or an image file) and a label.
Source: Caffe's util/db.hpp, caffe.proto (Datum) and util/io.cpp.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from minicaffe.data.image_bytes import Pixels, read_image
from minicaffe.errors import DataError, Error, os_errors_as
from minicaffe.proto import caffe_pb2


def parse_datum(value: bytes, name: str) -> caffe_pb2.Datum:
    """Return the Datum in these bytes. name: for errors. Raises DataError."""
    datum = caffe_pb2.Datum()
    try:
        datum.ParseFromString(value)
    except DecodeError as error:
        raise DataError(f"{name}: not a Datum: {error}") from error
    return datum


def datum_array(datum: caffe_pb2.Datum, name: str, color: bool | None = None) -> NDArray[Any]:
    """Return the Datum's values (C, H, W), uint8 or float32. color: how to decode an encoded image (None: as stored).

    Raises DataError for an image that cannot be decoded, and if the number of values does not match the shape.
    """
    if datum.encoded:
        return np.moveaxis(read_image(datum.data, color, name), 2, 0)
    shape = (datum.channels, datum.height, datum.width)
    # As in Caffe, bytes are preferred to floats.
    values: NDArray[Any] = np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data, np.float32)
    if min(shape) < 1 or values.size != np.prod(shape):
        raise DataError(f"{name}: {values.size} values stored for {shape[0]} channels of {shape[1]} x {shape[2]}")
    return values.reshape(shape)


def image_datum(pixels: Pixels, label: int) -> caffe_pb2.Datum:
    """Return an image (H, W, C) as a Datum of bytes."""
    height, width, channels = pixels.shape
    data = np.ascontiguousarray(pixels.transpose(2, 0, 1)).tobytes()
    return caffe_pb2.Datum(channels=channels, height=height, width=width, data=data, label=label, encoded=False)


def encoded_datum(content: bytes, label: int) -> caffe_pb2.Datum:
    """Return the bytes of an image file as a Datum."""
    return caffe_pb2.Datum(data=content, label=label, encoded=True)


def float_datum(values: NDArray[Any]) -> caffe_pb2.Datum:
    """Return an array (C, H, W) as a Datum of floats."""
    channels, height, width = values.shape
    return caffe_pb2.Datum(channels=channels, height=height, width=width, float_data=values.ravel().tolist())


BACKENDS = ("lmdb", "leveldb")


class Database(Protocol):
    """An open database."""

    path: str

    def items(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values, from the first key >= start. Raises DataError."""

    def count(self) -> int | None:
        """Return the number of items; None if that is unknown without reading them."""


class Writer(Protocol):
    """A new database."""

    def put(self, key: bytes, value: bytes) -> None:
        """Store an item."""

    def close(self) -> None:
        """Flush to disk and close."""


def open_database(path: str, backend: str) -> Database:
    """Return the database at path. Raises DataError if it is missing, damaged, or of the other backend."""
    folder = Path(path)
    if not path or not folder.exists():
        raise DataError(f"{path or 'source'}: no such database (in {Path.cwd()})")
    kind = "lmdb" if (folder / "data.mdb").exists() else "leveldb" if (folder / "CURRENT").exists() else backend
    if kind != backend:
        found = kind.upper()
        raise DataError(f"{path}: the database is of backend {found}, not {backend.upper()}: write backend: {found}")
    return _classes(backend)[0](path)


@contextmanager
def new_database(path: str, backend: str) -> Iterator[Writer]:
    """Make a new database, complete or absent: it is written next to path, and renamed at the end of the block.

    Raises Error if path exists or cannot be written.
    """
    target = Path(path)
    if target.exists():
        raise Error(f"{path} exists already: remove it, or write to another name")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with os_errors_as(Error, f"{path}: cannot be written"):
            with closing(_classes(backend)[1](temporary)) as writer:
                yield writer
            temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _classes(backend: str) -> tuple[Callable[[str], Database], Callable[[Path], Writer]]:
    if backend == "lmdb":
        from .database_lmdb import LmdbDatabase, LmdbWriter

        return LmdbDatabase, LmdbWriter
    from .database_leveldb import LevelDatabase, LevelWriter

    return LevelDatabase, LevelWriter
