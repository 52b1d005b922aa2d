"""LevelDB: read by minicaffe, written with plyvel (minicaffe[leveldb]). Source: Caffe's util/db_leveldb.cpp."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from pathlib import Path

from minicaffe.errors import DataError, install, optional_module, os_errors_as

from .leveldb_files import VALUE, Key, LevelFile
from .leveldb_log import read_logs
from .leveldb_manifest import Manifest, Table, read_manifest
from .leveldb_tables import SUFFIXES, Held, TableReader

NUMBER = re.compile("[0-9]{1,20}", re.ASCII)
"""The name of a table or a log, without its suffix."""


class LevelDatabase:
    """A LevelDB opened for reading, without locks. Opening it reads the logs; the tables are read later.

    Raises DataError if any of it is damaged or missing."""

    def __init__(self, path: str) -> None:
        self.path = path
        if not os.path.lexists(os.path.join(path, "CURRENT")):
            raise DataError(f"{path}: not a LevelDB, which is a folder with a file CURRENT")
        manifest = read_manifest(path)
        self.tables = self._tables(manifest)
        self.recent = read_logs(self._logs(manifest), manifest.sequence)

    def items(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and values, ordered by key, from the first key >= start. Raises DataError."""
        count, last = 0, None
        try:
            for key, value in self._entries(start):
                if key.name == last:  # an older entry of the same key
                    continue
                last = key.name
                if -key.age & 255 == VALUE:  # not a deletion
                    count += 1
                    yield key.name, bytes(value)
        except DataError as error:
            raise DataError(f"{error}; {count:,} items before it were read") from error

    def count(self) -> int | None:
        return None

    def _entries(self, start: bytes) -> Iterator[tuple[Key, memoryview]]:
        """The merged entries of tables and logs, the latest of each name first.

        A table is opened when its first key is reached, so of consecutive tables only one is open at a time."""
        held = Held()
        # Popped from the end.
        tables = sorted(((table.first, path, table) for path, table in self.tables if table.last.name >= start), reverse=True)
        heap: list[tuple[Key, int, memoryview, Iterator[tuple[Key, memoryview]]]] = []

        def add(records: Iterator[tuple[Key, memoryview]]) -> None:
            first = next(records, None)
            if first is not None:
                # The number of tables left differs in each item, so a tie of keys never compares values.
                heappush(heap, (first[0], len(tables), first[1], records))

        recent = sorted(name for name in self.recent if name >= start)
        add((Key(name, self.recent[name][0]), self.recent[name][1]) for name in recent)
        while heap or tables:
            while tables and (not heap or tables[-1][0] <= heap[0][0]):  # a table's first key is known without opening it
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

    def _tables(self, manifest: Manifest) -> list[tuple[str, Table]]:
        """The files of the tables. Raises DataError if any is missing or has another length than the manifest says."""
        found, missing = [], []
        for table in manifest.tables:
            paths = [os.path.join(self.path, f"{table.number:06d}{suffix}") for suffix in SUFFIXES]
            path = next(filter(os.path.lexists, paths), None)
            if path is None:
                missing.append(table)
                continue
            with LevelFile(path) as file:
                if file.length != table.length:
                    raise file.damaged(f"it has {file.length:,} bytes, but {manifest.path} says {table.length:,}")
            found.append((path, table))
        if missing:
            raise DataError(
                f"{self.path}: damaged LevelDB: {len(missing):,} of its {len(manifest.tables):,} tables are missing"
                f" ({sum(table.length for table in missing):,} bytes), starting with {missing[0].number:06d}{SUFFIXES[0]},"
                f" which has the keys {missing[0].first.name!r} to {missing[0].last.name!r}"
            )
        return found

    def _logs(self, manifest: Manifest) -> list[str]:
        """The logs of entries that no table holds, the oldest first."""
        numbers, tables = set(), False
        with os_errors_as(DataError, f"{self.path}: cannot be read"), os.scandir(self.path) as entries:
            for entry in entries:
                name, suffix = os.path.splitext(entry.name)
                tables = tables or suffix in SUFFIXES
                if suffix == ".log" and NUMBER.fullmatch(name) and name == f"{int(name):06d}":
                    numbers.add(int(name))
        if manifest.log and manifest.log not in numbers:
            raise DataError(
                f"{self.path}: damaged LevelDB: {manifest.log:06d}.log is missing, with the latest writes"
                " (if it was left out because it was empty, make an empty file of that name)"
            )
        if tables and not manifest.log and not manifest.tables:
            raise DataError(f"{manifest.path}: damaged LevelDB: its end is missing: it names none of the tables beside it")
        # As LevelDB recovers.
        used = sorted(number for number in numbers if number >= manifest.log or number == manifest.previous_log)
        return [os.path.join(self.path, f"{number:06d}.log") for number in used]


class LevelWriter:
    """A new LevelDB in folder."""

    def __init__(self, folder: Path) -> None:
        advice = (
            f"Writing a LevelDB needs plyvel: {install('leveldb')}"
            " (it has wheels for Linux and macOS up to Python 3.12; elsewhere make the database an LMDB)"
        )
        self.database = optional_module("plyvel", advice).DB(str(folder), create_if_missing=True, error_if_exists=True)

    def put(self, key: bytes, value: bytes) -> None:
        self.database.put(key, value)

    def close(self) -> None:
        self.database.close()
