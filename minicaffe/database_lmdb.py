"""LMDB through py-lmdb: minicaffe[lmdb]. Source: Caffe's util/db_lmdb.cpp."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from .errors import DataError, Error

META = struct.Struct("<2I2QI92xQQ")
"""LMDB's MDB_meta, after a page's 16 bytes: magic, version, address, map size, page size, ..., last page, transaction."""
MAGIC = 0xBEEFC0DE


def require_lmdb() -> Any:
    """The lmdb module, or an Error that says how to get it."""
    try:
        import lmdb
    except ImportError as error:
        raise Error('LMDB databases need py-lmdb: pip install "minicaffe[lmdb]"') from error
    return lmdb


class LmdbDatabase:
    """An LMDB opened for reading, without locks; a folder that holds data.mdb, or such a file itself."""

    def __init__(self, path: str) -> None:
        self.path = path
        lmdb = require_lmdb()
        folder = Path(path).is_dir()
        if folder and not (Path(path) / "data.mdb").is_file():
            raise DataError(f"{path}: not an LMDB, which is a folder with a file data.mdb in it, or such a file")
        _check_length(Path(path) / "data.mdb" if folder else Path(path), path)
        try:
            self.environment = _opened(lmdb, path, folder)
        except lmdb.Error as error:
            raise DataError(f"{path}: cannot open the LMDB: {error}") from error

    def items(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        lmdb = require_lmdb()
        try:
            with self.environment.begin() as transaction, transaction.cursor() as cursor:
                if cursor.set_range(start) if start else cursor.first():
                    yield from cursor
        except lmdb.Error as error:
            raise DataError(f"{self.path}: damaged LMDB: {error}") from error

    def count(self) -> int | None:
        return int(self.environment.stat()["entries"])


def _opened(lmdb: Any, path: str, folder: bool) -> Any:
    """The environment; where a thread that lost its net is just about to close it, the wait for that is short."""
    for _ in range(200):
        try:
            return lmdb.open(path, readonly=True, lock=False, readahead=False, subdir=folder)
        except lmdb.Error as error:
            if "already open" not in str(error):
                raise
        time.sleep(0.01)
    return lmdb.open(path, readonly=True, lock=False, readahead=False, subdir=folder)


_open: WeakValueDictionary[str, LmdbDatabase] = WeakValueDictionary()


def open_lmdb(path: str) -> LmdbDatabase:
    """The database at path; LMDB lets a process open one once only, so every reader gets the same."""
    real = os.path.realpath(path)
    database = _open.get(real)
    if database is None:
        _open[real] = database = LmdbDatabase(path)
    return database


def _check_length(file: Path, path: str) -> None:
    """A file cut short would end the process when its missing pages are read, so it is refused here."""
    try:
        with open(file, "rb") as opened:
            length, head = os.fstat(opened.fileno()).st_size, opened.read(16 + META.size)
            first = _meta(head, path)
            opened.seek(first[4])
            second = _meta(opened.read(16 + META.size), path)
    except OSError as error:
        raise DataError(f"{path}: cannot open the LMDB: {error.strerror or error}") from error
    pages = max(first, second, key=lambda meta: meta[6])[5] + 1
    if length < pages * first[4]:
        raise DataError(f"{path}: damaged LMDB: {length} bytes of {pages * first[4]} are there; the file was cut short")


def _meta(page: bytes, path: str) -> tuple[int, ...]:
    meta = META.unpack_from(page, 16) if len(page) >= 16 + META.size else (0,)
    if meta[0] != MAGIC:
        raise DataError(f"{path}: damaged LMDB: it does not begin as one")
    return meta


class LmdbWriter:
    """A new LMDB in folder, which grows as it is filled."""

    def __init__(self, folder: Path) -> None:
        self.lmdb = require_lmdb()
        self.environment = self.lmdb.open(str(folder), map_size=1 << 26, sync=False, lock=False)
        self.waiting: list[tuple[bytes, bytes]] = []

    def put(self, key: bytes, value: bytes) -> None:
        self.waiting.append((key, value))
        if len(self.waiting) >= 1000:
            self._commit()

    def close(self) -> None:
        self._commit()
        self.environment.sync(True)
        self.environment.close()

    def _commit(self) -> None:
        while self.waiting:
            try:
                with self.environment.begin(write=True) as transaction:
                    for key, value in self.waiting:
                        transaction.put(key, value)
                self.waiting = []
            except self.lmdb.MapFullError:
                self.environment.set_mapsize(self.environment.info()["map_size"] * 2)
            except self.lmdb.Error as error:
                self.waiting = []
                raise OSError(0, f"{error} (is the disk full?)") from error
