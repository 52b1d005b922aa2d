"""Databases of keys and values, ordered by key: LMDB and LevelDB. Source: Caffe's util/db.hpp.

with open_database("train_lmdb", "lmdb") as database:   for key, value in database.items(): ...
with new_database("train_lmdb", "lmdb") as writer:      writer.put(key, value)
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from minicaffe.errors import DataError, Error, os_errors_as

BACKENDS = ("lmdb", "leveldb")


class Database(Protocol):
    """An open database."""

    path: str

    def items(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and values, from the first key >= start. Raises DataError."""

    def count(self) -> int | None:
        """The number of items; None if that is unknown without reading them."""


class Writer(Protocol):
    """A new database."""

    def put(self, key: bytes, value: bytes) -> None:
        """Store an item."""

    def close(self) -> None:
        """Flush to disk and close."""


def open_database(path: str, backend: str) -> Database:
    """The database at path. Raises DataError if it is missing, damaged, or of the other backend."""
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
    """A new database, complete or absent: it is written beside path and renamed at the end of the block.

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
