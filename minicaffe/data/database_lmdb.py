"""LMDB: read page by page by minicaffe, written with py-lmdb (minicaffe[lmdb]).

LMDB's C code trusts a file, and ends the process over a damaged one.

    page 0, 1: two metas; the later transaction is valid
    branch page: key of the lowest item below -> page    leaf page: key -> value, or its overflow pages

Every number is checked before it is used. Nothing is mapped, so that truncating the file meanwhile is an error too. Only the
main database of plain keys is read; Caffe writes no other.
Source: Caffe's util/db_lmdb.cpp; LMDB 0.9's mdb.c (MDB_meta, MDB_db, MDB_page, MDB_node).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from minicaffe import limits
from minicaffe.errors import DataError, in_brackets, install, optional_module, os_errors_as, read_errors_as
from minicaffe.files import KeptOpen, opened

MAGIC, VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, OVERFLOW = 1, 2, 4
KINDS = BRANCH | LEAF | OVERFLOW | 8
"""The bits of a page's flags for its kind."""
BIG = 1
"""Flag of a node: its value is on overflow pages."""
EMPTY = 2**64 - 1
MOST_DEPTH = 32
"""The depth of LMDB's cursors."""

META = struct.Struct("<2I2QI44xI2H5Q2Q")
"""MDB_meta: magic, version, address, map size; of the free pages' database the page size; of the main one pad, flags, depth,
branch, leaf and overflow pages, entries, root; last page, transaction."""
HEADER = struct.Struct("<Q4H")
"""MDB_page: its number, pad, flags, lower and upper end of its free space; for overflow pages these two are their count."""
NODE = struct.Struct("<4H")
"""MDB_node: low and high half of the value's length (of a branch's page), flags (the page's upper bits), length of the key."""


class Meta(NamedTuple):
    """The values of a meta page that minicaffe uses."""

    page_size: int
    flags: int
    entries: int
    root: int
    last_page: int
    transaction: int


class LmdbDatabase:
    """An LMDB opened for reading, without locks: a folder with data.mdb, or that file. Raises DataError."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.file = Path(path) / "data.mdb" if Path(path).is_dir() else Path(path)
        if not self.file.is_file():
            raise DataError(f"{path}: not an LMDB, which is a folder with a file data.mdb, or that file")
        with os_errors_as(DataError, f"{path}: cannot open the LMDB"), opened(self.file) as start:
            self.length = os.fstat(start.fileno()).st_size
            first = self._meta(start.read(HEADER.size + META.size))
            start.seek(first.page_size)
            second = self._meta(start.read(HEADER.size + META.size))  # LMDB writes its two meta pages in turn
        self.meta = max(first, second, key=lambda meta: meta.transaction)
        if self.meta.flags:
            raise DataError(f"{path}: the LMDB has flags {self.meta.flags:#x} (duplicate or reversed keys), unlike Caffe's")
        if self.meta.entries > self.length // NODE.size:
            raise self._damaged(f"it declares {self.meta.entries} items, more than fit into it")

    def items(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values, ordered by key, from the first key >= start. Raises DataError."""
        if self.meta.root == EMPTY:
            return
        with read_errors_as(DataError, f"{self.path}: cannot be read"), KeptOpen(opened(self.file)) as file:
            walk = _Walk(self, file, start)
            yield from walk.below(self.meta.root, 0)
        if not start and walk.count != self.meta.entries:  # a pass from `start` skips pages
            raise self._damaged(f"it declares {self.meta.entries} items, but has {walk.count}")

    def count(self) -> int | None:
        return self.meta.entries

    def _meta(self, page: bytes) -> Meta:
        if len(page) < HEADER.size + META.size:
            raise self._damaged("it does not begin like an LMDB")
        magic, version, _, _, page_size, _, flags, *_, entries, root, last, transaction = META.unpack_from(page, HEADER.size)
        if magic != MAGIC or page_size not in (2**i for i in range(8, 17)):
            raise self._damaged("it does not begin like an LMDB")
        if version != VERSION:
            raise DataError(f"{self.path}: an LMDB of version {version}; only version {VERSION} (LMDB 0.9) is supported")
        return Meta(page_size, flags, entries, root, last, transaction)

    def _damaged(self, what: str) -> DataError:
        return DataError(f"{self.path}: damaged LMDB: {what}")


class _Walk:
    """One pass over the items. No page has two parents, so a pass that reads more pages than exist stops with an error."""

    def __init__(self, database: LmdbDatabase, file: BinaryIO, start: bytes) -> None:
        self.database, self.file, self.start = database, file, start
        self.size, self.left = database.meta.page_size, database.meta.last_page + 1
        self.count = 0
        self.last: bytes | None = None

    def below(self, number: int, depth: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the items below a page."""
        page, kind, nodes = self._nodes(number)
        if kind == LEAF:
            yield from self._leaf(number, page, nodes)
            return
        if depth >= MOST_DEPTH:
            raise self._damaged(number, "the tree is too deep")
        keys = [self._key(number, page, at) for at in nodes]
        for i, at in enumerate(nodes):
            if i + 1 < len(nodes) and keys[i + 1] <= self.start:  # all keys below are less than the next branch key
                continue
            low, high, upper, _ = NODE.unpack_from(page, at)
            yield from self.below(low | high << 16 | upper << 32, depth + 1)

    def _leaf(self, number: int, page: bytes, nodes: tuple[int, ...]) -> Iterator[tuple[bytes, bytes]]:
        for at in nodes:
            key = self._key(number, page, at)
            if self.last is not None and key <= self.last:
                raise self._damaged(number, "its keys are out of order")
            self.last = key
            if key < self.start:
                continue
            low, high, flags, _ = NODE.unpack_from(page, at)
            length, begin = low | high << 16, at + NODE.size + len(key)
            if flags & ~BIG:
                raise self._damaged(number, "it holds another database or several values of one key")
            if flags & BIG:
                value = self._big(number, page[begin : begin + 8], length)
            else:
                value = page[begin : begin + length]
            if len(value) != length:
                raise self._damaged(number, "a value extends beyond it")
            self.count += 1
            yield key, value

    def _key(self, number: int, page: bytes, at: int) -> bytes:
        begin = at + NODE.size
        # A header outside the page is rejected below.
        length = NODE.unpack_from(page, at)[3] if begin <= self.size else self.size
        if begin + length > self.size:
            raise self._damaged(number, "a key extends beyond it")
        return page[begin : begin + length]

    def _big(self, number: int, place: bytes, length: int) -> bytes:
        """Return the value on overflow pages; place: the bytes of the first page's number."""
        if len(place) < 8:
            raise self._damaged(number, "a value extends beyond it")
        limits.check(f"{self.database.path}: a value", length, "bytes")
        first = int.from_bytes(place, "little")
        count = -(-(HEADER.size + length) // self.size)  # only the first overflow page has a header
        content = self._read(first, count)
        (found, _, flags, low, high) = HEADER.unpack_from(content)
        if found != first or flags & KINDS != OVERFLOW or low | high << 16 < count:
            raise self._damaged(first, "it is not a valid overflow page")
        return content[HEADER.size : HEADER.size + length]

    def _nodes(self, number: int) -> tuple[bytes, int, tuple[int, ...]]:
        """Return a branch or leaf page: its bytes, its kind, and the offsets of its nodes."""
        page = self._read(number, 1)
        found, _, flags, lower, upper = HEADER.unpack_from(page)
        kind = flags & KINDS
        if found != number or kind not in (BRANCH, LEAF) or not HEADER.size <= lower <= upper <= self.size or lower % 2:
            raise self._damaged(number, "it is not a valid page of items")
        nodes = struct.unpack_from(f"<{(lower - HEADER.size) // 2}H", page, HEADER.size)  # 16-bit offsets follow the header
        if nodes and not upper <= min(nodes) <= max(nodes):
            raise self._damaged(number, "a node is outside it")
        return page, kind, nodes

    def _read(self, number: int, count: int) -> bytes:
        """Return `count` pages, starting with this one."""
        if not 2 <= number <= self.database.meta.last_page + 1 - count:
            raise self._damaged(number, "there is no such page")
        if (number + count) * self.size > self.database.length:
            raise self._damaged(number, "it is missing: the file was cut short")
        self.left -= count
        if self.left < 0:
            raise self._damaged(number, "it has two parents")
        self.file.seek(number * self.size)
        content = self.file.read(count * self.size)
        if len(content) < count * self.size:
            raise self._damaged(number, "the file became shorter")
        return content

    def _damaged(self, number: int, what: str) -> DataError:
        return DataError(f"{self.database.path}: damaged LMDB: page {number}: {what}")


class LmdbWriter:
    """A new LMDB in folder. Its map grows when it is full."""

    def __init__(self, folder: Path) -> None:
        self.lmdb = optional_module("lmdb", f"Writing an LMDB needs py-lmdb: {install('lmdb')}")
        self.environment = self.lmdb.open(str(folder), map_size=1 << 26, sync=False, lock=False)  # nobody else opens it yet
        self.waiting: list[tuple[bytes, bytes]] = []

    def put(self, key: bytes, value: bytes) -> None:
        most = self.environment.max_key_size()
        if not 0 < len(key) <= most:
            raise DataError(
                f'an LMDB takes keys of 1 to {most} bytes, but "{key[:60].decode("utf-8", "replace")}..." has {len(key):,}: '
                f"shorten the name, or make a LevelDB{in_brackets('--backend leveldb')}"
            )
        self.waiting.append((key, value))  # kept until committed: a full map loses the whole transaction
        if len(self.waiting) >= 1000:  # Caffe's convert_imageset commits as often
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
