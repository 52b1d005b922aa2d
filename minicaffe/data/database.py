"""Databases of keys and values, in the order of their keys: LMDB and LevelDB. Source: Caffe's util/db.hpp.

with open_database("train_lmdb", "lmdb") as database:   for key, value in database.items(): ...
with new_database("train_lmdb", "lmdb") as writer:      writer.put(key, value)
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from minicaffe.errors import DataError, Error

BACKENDS = ("lmdb", "leveldb")


class Database(Protocol):
    """An open database."""

    path: str

    def items(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys with their values, from the first key that is not below start. Raises DataError."""

    def count(self) -> int | None:
        """How many items it has, where that is known without reading them."""


class Writer(Protocol):
    """A new database."""

    def put(self, key: bytes, value: bytes) -> None:
        """Store an item."""

    def close(self) -> None:
        """Bring everything to the disk."""


def open_database(path: str, backend: str) -> Database:
    """The database at path. Raises DataError where there is none, it is damaged, or it is of the other kind."""
    folder = Path(path)
    if not path or not folder.exists():
        raise DataError(f"{path or 'source'}: no such database (looked for from {Path.cwd()})")
    kind = "lmdb" if (folder / "data.mdb").exists() else "leveldb" if (folder / "CURRENT").exists() else backend
    if kind != backend:
        raise DataError(
            f"{path}: the database is of backend {_title(kind)}, not {_title(backend)}: write backend: {_title(kind)}"
        )
    if backend == "lmdb":
        from .database_lmdb import LmdbDatabase

        return LmdbDatabase(path)
    from .database_leveldb import LevelDatabase

    return LevelDatabase(path)


@contextmanager
def new_database(path: str, backend: str) -> Iterator[Writer]:
    """A database that is written whole or not at all: it is made beside path and renamed at the end of the block.

    Raises Error where path exists or cannot be written.
    """
    target = Path(path)
    if target.exists():
        raise Error(f"{path} exists already: remove it, or write to another name")
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        writer = _writer(temporary, backend)
        try:
            yield writer
        finally:
            writer.close()
        temporary.rename(target)
    except OSError as error:
        raise Error(f"{path}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _writer(folder: Path, backend: str) -> Writer:
    if backend == "lmdb":
        from .database_lmdb import LmdbWriter

        return LmdbWriter(folder)
    from .database_leveldb import LevelWriter

    return LevelWriter(folder)


def _title(backend: str) -> str:
    return {"lmdb": "LMDB", "leveldb": "LEVELDB"}[backend]
