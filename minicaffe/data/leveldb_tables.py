"""A LevelDB's tables, read block by block.

    block*, index block, footer    block: records, offsets of keys that are stored whole; kind of compression, checksum
    record: length of the prefix shared with the previous key, length of the rest, length of the value; rest, value
    index: for each block a key >= its last key -> its place    footer: the index's place

Source: LevelDB's doc/table_format.md, table/format.cc and table/block.cc.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from minicaffe import limits
from minicaffe.errors import DataError, LimitError, install, optional_module
from minicaffe.formats.wire import WireError, varint

from .leveldb_files import Key, LevelFile, matches
from .leveldb_manifest import Table

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
        """Raises LimitError for a block that would exceed the limit."""
        limits.check(f"{path}: a block, together with those in memory,", self.bytes + size, "bytes")
        if size > MOST_BLOCK:
            raise LimitError(f"{path}: a block has {size:,} bytes, and the limit is {MOST_BLOCK:,}")


class TableReader:
    """One pass over a table's records. Its file is open only while a block is read, because a database may have more tables
    than a process may have open files."""

    def __init__(self, path: str, table: Table, held: Held) -> None:
        self.path, self.table, self.held = path, table, held

    def records(self, start: bytes = b"") -> Iterator[tuple[Key, memoryview]]:
        """Keys and values, in the table's order, from the first name >= start. Raises DataError."""
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
        """The blocks in order: offset, size, and a key >= the last key."""
        end = self.table.length - FOOTER.size
        if end < 0:
            raise DataError(f"{self.path}: damaged LevelDB: it is too short for a table")
        with LevelFile(self.path) as file:
            handles, magic = FOOTER.unpack(file.read(end, FOOTER.size))
        if magic != MAGIC:
            raise self._damaged(end, "it does not end like a LevelDB's table")
        try:
            _, _, offset = _handle(handles, 0)  # of the metaindex block, which is not needed
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
        """The block at `at`, decompressed. what: its content, for errors."""
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
        """The data that Snappy compressed."""
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
        """The keys and values in a block."""
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
    """The place of a block: its offset and size; and the offset after these two numbers. Raises WireError."""
    at, offset = varint(data, offset, len(data))
    size, offset = varint(data, offset, len(data))
    return at, size, offset
