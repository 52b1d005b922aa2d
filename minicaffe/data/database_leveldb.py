"""LevelDB: read block by block by minicaffe, written with plyvel (minicaffe[leveldb]).

    a table: block*, index block, footer    block: records, offsets of keys that are stored whole; compression, checksum
    record: length of the prefix shared with the previous key, length of the rest, length of the value; rest, value
    index: for each block a key >= its last key -> its place    footer: the index's place

Source: Caffe's util/db_leveldb.cpp; LevelDB's doc/table_format.md, table/format.cc and table/block.cc.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from heapq import heappop, heappush, heapreplace
from pathlib import Path

from minicaffe import limits
from minicaffe.data.leveldb_files import VALUE, Key, LevelFile, Manifest, Table, matches, read_logs, read_manifest
from minicaffe.errors import DataError, LimitError, install, optional_module, read_errors_as
from minicaffe.formats.wire import WireError, varint

SUFFIXES = (".ldb", ".sst")
"""The suffixes of tables; LevelDB up to 1.14 wrote the second."""
FOOTER = struct.Struct("<40sQ")
MAGIC = 0xDB4775248B80FB57
TRAILER = struct.Struct("<BI")
"""After each block: NONE or SNAPPY, and the checksum of the block and this byte."""
NONE, SNAPPY = 0, 1
MOST_KEY = 1 << 14
"""Most bytes of a key: keys with shared prefixes could unpack to the square of the block's length."""
MOST_BLOCK = 2**31
"""Most bytes of a block. A large value has a block of its own, and no Datum can be larger."""
MOST_RATIO = 22
"""Snappy's longest copy has 64 bytes and takes 3."""


class Held:
    """The bytes of the blocks that one pass over a database keeps in memory: at most limits.bytes."""

    def __init__(self) -> None:
        self.bytes = 0

    def check(self, path: str, size: int) -> None:
        """Raise LimitError for a block that would exceed the limit."""
        limits.check(f"{path}: a block, together with those in memory,", self.bytes + size, "bytes")
        if size > MOST_BLOCK:
            raise LimitError(f"{path}: a block has {size:,} bytes, and the limit is {MOST_BLOCK:,}")


class TableReader:
    """One pass over a table's records.

    Its file is open only while a block is read, because a database may have more tables than a process may have open files.
    """

    def __init__(self, path: str, table: Table, held: Held) -> None:
        self.path, self.table, self.held = path, table, held

    def records(self, start: bytes = b"") -> Iterator[tuple[Key, memoryview]]:
        """Yield keys and values, in the table's order, from the first name >= start. Raises DataError."""
        last: Key | None = None
        for at, size, until in self._places():
            if until.name < start:  # until is at least the block's last key
                continue
            block = self._block(at, size, f" of records (keys up to {until.name[:100]!r})")
            for stored, value in self._entries(at, block):
                key = self._key(at, stored)
                if last is None and start <= self.table.first.name and key != self.table.first:
                    raise self._damaged(at, "its first key differs from the manifest")
                if (last is not None and key <= last) or key > until:  # the merge relies on the order
                    raise self._damaged(at, "its keys are out of order")
                last = key
                if key.name >= start:
                    yield key, value
            self.held.bytes -= len(block)
        if last != self.table.last:
            raise DataError(f"{self.path}: damaged LevelDB: its last key differs from the manifest")

    def _places(self) -> Iterator[tuple[int, int, Key]]:
        """Yield the blocks in order: offset, size, and a key >= the block's last key."""
        end = self.table.length - FOOTER.size
        if end < 0:
            raise DataError(f"{self.path}: damaged LevelDB: it is too short for a table")
        with LevelFile(self.path) as file:
            handles, magic = FOOTER.unpack(file.read(end, FOOTER.size))
        if magic != MAGIC:
            raise self._damaged(end, "it does not end like a LevelDB's table")
        try:
            _, _, offset = _handle(handles, 0)  # skips the handle of the metaindex block
            index, size, _ = _handle(handles, offset)
        except WireError as error:
            raise self._damaged(end, f"the place of the index is damaged ({error.message})") from error
        if index + size + TRAILER.size > end:
            raise self._damaged(index, "its declared place is outside the file")
        block, last = self._block(index, size, " of the index"), 0
        for stored, value in self._entries(index, block):
            try:
                at, size, _ = _handle(value, 0)
            except WireError as error:
                raise self._damaged(index, f"the place of a block is damaged ({error.message})") from error
            if not last <= at <= index - size - TRAILER.size:
                raise self._damaged(at, "its declared place is in another block or outside the file")
            last = at + size + TRAILER.size
            yield at, size, self._key(index, stored)
        self.held.bytes -= len(block)

    def _block(self, at: int, size: int, what: str) -> memoryview:
        """Return the block at `at`, decompressed. what: its content, for errors."""
        self.held.check(self.path, size)
        with LevelFile(self.path) as file:
            data = memoryview(file.read(at, size + TRAILER.size))
        kind, checksum = TRAILER.unpack_from(data, size)
        if not matches(checksum, data[: size + 1]):
            raise self._damaged(at, f"its {size:,} bytes{what} do not match their checksum and are lost")
        block = data[:size]
        if kind == SNAPPY:
            block = self._unpacked(at, block)
        elif kind != NONE:
            raise self._damaged(at, f"it has the unsupported compression {kind}; only Snappy ({SNAPPY}) is supported")
        self.held.bytes += len(block)
        return block

    def _unpacked(self, at: int, data: memoryview) -> memoryview:
        """Return the data as Snappy unpacks it."""
        advice = f"{self.path}: it is packed with Snappy, which needs cramjam: {install('leveldb')}"
        cramjam = optional_module("cramjam", advice)
        try:
            size, _ = varint(data, 0, len(data))
        except WireError as error:
            raise self._damaged(at, f"its length for Snappy is damaged ({error.message})") from error
        if size > MOST_RATIO * len(data):  # before memory is taken for it
            raise self._damaged(at, f"its {len(data):,} bytes declare {size:,} unpacked bytes, more than Snappy can pack")
        self.held.check(self.path, size)
        unpacked = bytearray(size)
        try:
            found = cramjam.snappy.decompress_raw_into(data, unpacked)
        except cramjam.DecompressionError as error:
            raise self._damaged(at, f"it cannot be unpacked ({error})") from error
        if found != size:
            raise self._damaged(at, f"it unpacks to {found:,} bytes, but declares {size:,}")
        return memoryview(unpacked)

    def _entries(self, at: int, block: memoryview) -> Iterator[tuple[bytes, memoryview]]:
        """Yield the keys and values in a block."""
        restarts = int.from_bytes(block[-4:], "little")
        end = len(block) - 4 * (restarts + 1)  # the restarts' offsets and their number end the block
        if end <= 0:
            raise self._damaged(at, "it has no records")
        key, i = b"", 0
        while i < end:
            try:
                common, i = varint(block, i, end)
                rest, i = varint(block, i, end)
                length, i = varint(block, i, end)
            except WireError as error:
                raise self._damaged(at, f"a record is incomplete ({error.message})") from error
            value = i + rest
            if common > len(key) or value + length > end:
                raise self._damaged(at, "a record extends beyond it")
            if common + rest > MOST_KEY:
                raise self._damaged(at, f"a key has {common + rest:,} bytes, and the limit is {MOST_KEY:,}")
            key, i = key[:common] + block[i:value], value + length
            yield key, block[value:i]

    def _key(self, at: int, stored: bytes) -> Key:
        key = Key.of(stored)
        if key is None:
            raise self._damaged(at, "a key is invalid")
        return key

    def _damaged(self, at: int, what: str) -> DataError:
        return DataError(f"{self.path}: damaged LevelDB: the block at byte {at:,}: {what}")


def _handle(data: bytes | memoryview, offset: int) -> tuple[int, int, int]:
    """Return the offset and size of a block, and the offset after these two numbers. Raises WireError."""
    at, offset = varint(data, offset, len(data))
    size, offset = varint(data, offset, len(data))
    return at, size, offset


NUMBER = re.compile("[0-9]{1,20}", re.ASCII)
"""The name of a table or a log, without its suffix."""


class LevelDatabase:
    """A LevelDB opened for reading, without locks. Opening it reads the logs; the tables are read later.

    Raises DataError if any of it is damaged or missing.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        if not os.path.lexists(os.path.join(path, "CURRENT")):
            raise DataError(f"{path}: not a LevelDB, which is a folder with a file CURRENT")
        manifest = read_manifest(path)
        self.tables = self._tables(manifest)
        self.recent = read_logs(self._logs(manifest), manifest.sequence)

    def items(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values, ordered by key, from the first key >= start. Raises DataError."""
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
        """Yield the merged entries of tables and logs, the latest of each name first.

        A table is opened when its first key is reached, so of consecutive tables only one is open at a time.
        """
        held = Held()
        # In reverse, since tables are popped from the end.
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
        """Return each table with its file's path.

        Raises DataError if one is missing or has another length than in the manifest.
        """
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
        """Return the paths of the logs of entries that no table holds, the oldest first."""
        numbers, tables = set(), False
        with read_errors_as(DataError, f"{self.path}: cannot be read"), os.scandir(self.path) as entries:
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
        # LevelDB's recovery reads the same logs.
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
