"""LevelDB: read by minicaffe itself, written through plyvel (minicaffe[leveldb]). Source: Caffe's util/db_leveldb.cpp."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from pathlib import Path
from typing import Any

from minicaffe.errors import DataError, Error

from .leveldb_files import VALUE, Key, LevelFile
from .leveldb_log import read_logs
from .leveldb_manifest import Manifest, Table, read_manifest
from .leveldb_tables import SUFFIXES, Held, TableReader

NUMBER = re.compile("[0-9]{1,20}", re.ASCII)
"""What stands before the suffix of a table or a log."""


def require_plyvel() -> Any:
    """The plyvel module, or an Error that says how to get it."""
    try:
        import plyvel
    except ImportError as error:
        raise Error(
            'Writing a LevelDB needs plyvel: pip install "minicaffe[leveldb]"'
            " (it has wheels for Linux and macOS up to Python 3.12; elsewhere make the database an LMDB)"
        ) from error
    return plyvel


class LevelDatabase:
    """A LevelDB opened for reading, without locks; nothing is written to it. The logs are read at once, and the tables later.

    Raises DataError where it is damaged, and where any of it is missing."""

    def __init__(self, path: str) -> None:
        self.path = path
        if not os.path.lexists(os.path.join(path, "CURRENT")):
            raise DataError(f"{path}: not a LevelDB, which is a folder with a file CURRENT in it")
        manifest = read_manifest(path)
        self.tables = self._tables(manifest)
        self.recent = read_logs(self._logs(manifest), manifest.sequence)

    def items(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys with their values, in the order of the keys, from the first that is not below start."""
        count, last = 0, None
        try:
            for key, value in self._entries(start):
                if key.name == last:
                    continue
                last = key.name
                if -key.age & 255 == VALUE:
                    count += 1
                    yield key.name, bytes(value)
        except DataError as error:
            raise DataError(f"{error}; {count:,} items were read before") from error

    def count(self) -> int | None:
        return None

    def _entries(self, start: bytes) -> Iterator[tuple[Key, memoryview]]:
        """What the tables and the logs hold, of each name the latest first.

        A table is opened where its first key's turn comes: of tables that lie one after the other, one is open at a time."""
        held = Held()
        tables = sorted(((table.first, path, table) for path, table in self.tables if table.last.name >= start), reverse=True)
        heap: list[tuple[Key, int, memoryview, Iterator[tuple[Key, memoryview]]]] = []

        def add(records: Iterator[tuple[Key, memoryview]]) -> None:
            first = next(records, None)
            if first is not None:
                heappush(heap, (first[0], len(tables), first[1], records))

        add(self._recent_from(start))
        while heap or tables:
            while tables and (not heap or tables[-1][0] <= heap[0][0]):
                _, path, table = tables.pop()
                add(TableReader(path, table, held).records(start))
            if not heap:
                return
            key, number, value, records = heap[0]
            yield key, value
            following = next(records, None)
            if following is None:
                heappop(heap)
            else:
                heapreplace(heap, (following[0], number, following[1], records))

    def _recent_from(self, start: bytes) -> Iterator[tuple[Key, memoryview]]:
        """What the logs hold."""
        for name in sorted(name for name in self.recent if name >= start):
            age, value = self.recent[name]
            yield Key(name, age), value

    def _tables(self, manifest: Manifest) -> list[tuple[str, Table]]:
        """The files of the tables, which all must be there."""
        found, missing = [], []
        for table in manifest.tables:
            paths = [os.path.join(self.path, f"{table.number:06d}{suffix}") for suffix in SUFFIXES]
            path = next(filter(os.path.lexists, paths), None)
            if path is None:
                missing.append(table)
                continue
            with LevelFile(path) as file:
                if file.length != table.length:
                    raise file.damaged(f"it has {file.length:,} bytes, and {manifest.path} says {table.length:,}")
            found.append((path, table))
        if missing:
            raise DataError(
                f"{self.path}: damaged LevelDB: {len(missing):,} of its {len(manifest.tables):,} tables are missing, of"
                f" {sum(table.length for table in missing):,} bytes together, the first of them"
                f" {missing[0].number:06d}{SUFFIXES[0]} with the keys {missing[0].first.name!r} to {missing[0].last.name!r}"
            )
        return found

    def _logs(self, manifest: Manifest) -> list[str]:
        """The logs of what no table holds, the oldest first."""
        numbers, tables = set(), False
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    name, suffix = os.path.splitext(entry.name)
                    tables = tables or suffix in SUFFIXES
                    if suffix == ".log" and NUMBER.fullmatch(name) and name == f"{int(name):06d}":
                        numbers.add(int(name))
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        if manifest.log and manifest.log not in numbers:
            raise DataError(
                f"{self.path}: damaged LevelDB: {manifest.log:06d}.log is missing, and with it what was written last"
                " (if it was left out because it was empty, make an empty file of that name)"
            )
        if tables and not manifest.log and not manifest.tables:
            raise DataError(f"{manifest.path}: damaged LevelDB: it names none of the tables beside it: its end is missing")
        used = sorted(number for number in numbers if number >= manifest.log or number == manifest.previous_log)
        return [os.path.join(self.path, f"{number:06d}.log") for number in used]


class LevelWriter:
    """A new LevelDB in folder."""

    def __init__(self, folder: Path) -> None:
        self.database = require_plyvel().DB(str(folder), create_if_missing=True, error_if_exists=True)

    def put(self, key: bytes, value: bytes) -> None:
        self.database.put(key, value)

    def close(self) -> None:
        self.database.close()
