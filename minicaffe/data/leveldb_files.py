"""The files of a LevelDB: checksums, logs, and the manifest that lists its tables.

    CURRENT -> MANIFEST-000004 -> 000005.ldb, 000007.ldb, ... (tables) and 000006.log (later writes)
    a log: blocks of 32 KiB: (checksum, length, kind, part of a record)*, then zeros if no header fits
    a record: one or more parts    in a log file: sequence number, count, (kind, key, value)*

The manifest is a log of edits that add up to the list of tables; the log files contain the writes that no table holds yet. The
folder is untrusted: links in it are not followed, and only regular files (no pipes, no devices) are opened.
Source: LevelDB's doc/impl.md, doc/log_format.md, db/dbformat.h, db/version_edit.cc, db/version_set.cc, db/write_batch.cc and
util/crc32c.h; RFC 3720, appendix B.4, for CRC-32C.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe import limits
from minicaffe.errors import DataError, NotAFileError, read_errors_as
from minicaffe.files import opened
from minicaffe.formats.wire import WireError, varint

POLYNOMIAL = 0x82F63B78
"""0x1EDC6F41 with its bits reversed."""
ROW, PIECE = 512, 1 << 14
"""Bytes of a row, and of the rows looked up at once."""
SHORT = 64
"""Shorter data is processed byte by byte."""


def crc32c(data: bytes | memoryview) -> int:
    """Return the CRC-32C of data."""
    effects, places, first_four, last = _tables()
    checksum = 0xFFFFFFFF
    if len(data) < SHORT:
        for byte in data:
            checksum = last[checksum & 255 ^ byte] ^ checksum >> 8
        return checksum ^ 0xFFFFFFFF
    a, b, c, d = first_four
    padded = np.zeros(-(-len(data) // ROW) * ROW, np.uint8)  # leading zeros do not change the CRC
    begin = len(padded) - len(data)
    padded[begin:] = np.frombuffer(data, np.uint8)
    padded[begin : begin + 4] ^= 255  # equivalent to an initial checksum of ones
    checksum = 0
    for i in range(0, len(padded), PIECE):
        rows = padded[i : i + PIECE].reshape(-1, ROW)
        for row in np.bitwise_xor.reduce(effects.take(rows + places, mode="wrap"), axis=1).tolist():  # "wrap" checks no index
            # Continuing from a CRC equals XORing it into the next four bytes and starting from 0.
            checksum = a[checksum & 255] ^ b[checksum >> 8 & 255] ^ c[checksum >> 16 & 255] ^ d[checksum >> 24] ^ row
    return checksum ^ 0xFFFFFFFF


@cache
def _tables() -> tuple[NDArray[np.uint32], NDArray[Any], list[list[int]], list[int]]:
    """Return tables for the CRC of a row.

    They are each byte's contribution at each position of a row (ROW * 256,), each position's index in it (ROW,), and the first
    four positions and the last one as lists.
    """
    effects = np.empty((ROW, 256), np.uint32)
    last = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        last = np.where(last & 1, last >> 1 ^ np.uint32(POLYNOMIAL), last >> 1)
    effects[-1] = last
    for place in range(ROW - 2, -1, -1):
        effects[place] = effects[place + 1] >> 8 ^ last[effects[place + 1] & 255]
    return effects.reshape(-1), np.arange(0, ROW * 256, 256), effects[:4].tolist(), last.tolist()


DELETION, VALUE = 0, 1
"""The kinds of entries: the key is deleted, or has the value that follows."""


class Key(NamedTuple):
    """A key in the order of tables. Of two keys with the same name the later comes first and hides the other."""

    name: bytes
    age: int
    """-(sequence number * 256 + DELETION or VALUE)."""

    @classmethod
    def of(cls, data: bytes) -> Key | None:
        """Return the key stored as these bytes, or None if they are invalid."""
        return cls(data[:-8], -int.from_bytes(data[-8:], "little")) if len(data) >= 8 and data[-8] <= VALUE else None


class LevelFile:
    """An open file of a LevelDB: with LevelFile(path) as file: file.read(0, file.length). Raises DataError."""

    def __init__(self, path: str) -> None:
        self.path = path
        if os.path.islink(path):  # for a clear message; follow=False also refuses a link created after this check
            raise DataError(f"{path}: links in a LevelDB are not followed: replace the link by the file")
        try:
            self.file = opened(path, follow=False)
        except (NotAFileError, IsADirectoryError) as error:
            raise DataError(f"{path}: is not a regular file") from error
        except OSError as error:
            raise DataError(f"{path}: cannot be opened: {error.strerror or error}") from error
        self.length = os.fstat(self.file.fileno()).st_size

    def __enter__(self) -> LevelFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.file.close()

    def read(self, at: int, size: int) -> bytes:
        """Return size bytes at the offset `at`. Raises DataError if the file has become shorter than when it was opened."""
        with read_errors_as(DataError, f"{self.path}: cannot be read"):
            self.file.seek(at)
            data = self.file.read(size)
        if len(data) < size:
            raise self.damaged("it became shorter while it was read")
        return data

    def damaged(self, what: str) -> DataError:
        return DataError(f"{self.path}: damaged LevelDB: {what}")


def matches(masked: int, data: bytes | memoryview) -> bool:
    """Return whether data has this checksum. LevelDB stores it rotated by 15 bits and with a constant added."""
    checksum = crc32c(data)
    return masked == ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


BLOCK = 1 << 15
PART = struct.Struct("<IHB")
"""The header of a part: the checksum of kind and content, the length of the content, the kind."""
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
BATCH = struct.Struct("<QI")
"""The header of a record of writes: the sequence number of the first, and their number."""
ENTRY_BYTES = 512
"""The memory of an entry in Python, besides its record."""

TORN = "it ends in the middle of a record, as when its writer was killed"

Recent = dict[bytes, tuple[int, memoryview]]
"""The latest age and value of each key in the logs."""


class LogError(Exception):
    """A record that cannot be read: its offset, and what is wrong."""

    def __init__(self, place: int, what: str) -> None:
        self.place, self.what = place, what
        super().__init__(place, what)

    def lost(self, file: LevelFile) -> str:
        """Return a message on the fault, its place, and how much of the file is lost."""
        return f"{self.what} (at byte {self.place:,}): its last {file.length - self.place:,} bytes are lost"


def records(file: LevelFile) -> Iterator[tuple[int, memoryview]]:
    """Yield the records with their offsets. Raises LogError."""
    record: bytearray | None = None
    begin = 0
    for start in range(0, file.length, BLOCK):
        block = memoryview(file.read(start, min(BLOCK, file.length - start)))
        at = 0
        while at < len(block) and at + PART.size <= BLOCK:  # a header never spans two blocks
            if record is None:  # errors give the offset of the whole record
                begin = start + at
            kind, part, at = _part(block, at, begin)
            if (kind in (FULL, FIRST)) != (record is None):
                raise LogError(begin, "a record of several parts is incomplete")
            if kind == FULL:
                yield begin, part
                continue
            record = bytearray() if record is None else record
            record += part
            if kind == LAST:
                yield begin, memoryview(record)
                record = None
    if record is not None:
        raise LogError(begin, TORN)


def _part(block: memoryview, at: int, begin: int) -> tuple[int, memoryview, int]:
    """Return the part at `at`: its kind, content and end."""
    if at + PART.size > len(block):
        raise LogError(begin, TORN)
    checksum, length, kind = PART.unpack_from(block, at)
    end = at + PART.size + length
    if end > len(block):
        cut = len(block) < BLOCK and at + PART.size + length <= BLOCK  # only the file's last block is short
        raise LogError(begin, TORN if cut else "a record is longer than its block")
    if not matches(checksum, block[at + PART.size - 1 : end]):  # the checksum covers the kind too, the header's last byte
        raise LogError(begin, "a record does not match its checksum")
    if kind not in (FULL, FIRST, MIDDLE, LAST):
        raise LogError(begin, f"a record has the unknown kind {kind}")
    return kind, block[at + PART.size : end], end


def read_logs(paths: Sequence[str], sequence: int) -> Recent:
    """Return the latest entry of each key in these logs, given the oldest first.

    The tables hold all entries up to this sequence number, perhaps more.

    Raises DataError for damage and for a log that ends in the middle of a write, LimitError for more than limits.bytes.
    """
    recent: Recent = {}
    taken, expected, exactly = 0, sequence + 1, False
    for path in paths:
        with LevelFile(path) as file:
            taken += file.length
            limits.check(f"{path}: together with the earlier logs, it", taken, "bytes")
            entries = 0
            try:
                for place, record in records(file):
                    first, count = _head(place, record)
                    if first > expected:
                        raise LogError(place, f"entries {expected:,} to {first - 1:,} are missing")
                    if first < expected and exactly:  # tables may hold the first log's beginning, but logs do not overlap
                        raise LogError(place, f"entry {first:,} occurs twice")
                    needed = taken + ENTRY_BYTES * (len(recent) + count)
                    limits.check(f"{path}: together with the memory of its entries, it", needed, "bytes")
                    for name, age, value in _entries(place, record, first, count):
                        recent[name] = (age, value)
                    expected, exactly, entries = first + count, True, entries + count
            except LogError as error:
                raise file.damaged(f"{error.lost(file)}; the {entries:,} entries before them can be read") from error
    return recent


def _head(place: int, record: memoryview) -> tuple[int, int]:
    """Return the sequence number of the first entry in a record of writes, and the number of entries."""
    if len(record) < BATCH.size:
        raise LogError(place, "a write is too short")
    first, count = BATCH.unpack_from(record)
    if count > (len(record) - BATCH.size) // 2:  # an entry has at least its kind and a length
        raise LogError(place, f"a write of {len(record):,} bytes declares {count:,} entries")
    return first, count


def _entries(place: int, record: memoryview, first: int, count: int) -> Iterator[tuple[bytes, int, memoryview]]:
    """Yield the name, age and value of each entry of a record. The value of a deletion is empty."""
    at = BATCH.size
    try:
        for i in range(count):
            if at == len(record):
                raise LogError(place, f"a write has {i:,} entries, but declares {count:,}")
            kind = record[at]
            if kind not in (DELETION, VALUE):
                raise LogError(place, f"a write has an entry of the unknown kind {kind}")
            name, at = sized(record, at + 1)
            value, at = sized(record, at) if kind == VALUE else (record[:0], at)
            yield bytes(name), -((first + i) << 8 | kind), value
    except WireError as error:
        raise LogError(place, f"a write has an incomplete entry ({error.message})") from error
    if at != len(record):
        raise LogError(place, f"a write has more than its {count:,} entries")


def sized(data: memoryview, at: int) -> tuple[memoryview, int]:
    """Return the length-prefixed bytes at `at`, and the offset after them. Raises WireError."""
    length, at = varint(data, at, len(data))
    if at + length > len(data):
        raise WireError(at, f"{length:,} bytes are declared, but only {len(data) - at:,} follow")
    return data[at : at + length], at + length


COMPARATOR = b"leveldb.BytewiseComparator"
MOST_CURRENT = 64
"""Most bytes of CURRENT, which holds MANIFEST-, a number and a newline."""
TABLE_BYTES = 1024
"""The memory of a Table in Python."""


class Table(NamedTuple):
    """A table: the length of its file, and its first and last keys."""

    number: int
    length: int
    first: Key
    last: Key


class Manifest(NamedTuple):
    """The tables of a database. The logs from number `log` on hold later writes."""

    path: str
    log: int
    previous_log: int
    sequence: int
    tables: tuple[Table, ...]


def read_manifest(folder: str) -> Manifest:
    """Return the manifest of the database in folder. Raises DataError."""
    path = os.path.join(folder, _current(os.path.join(folder, "CURRENT")))
    with LevelFile(path) as file:
        limits.check(path, file.length, "bytes")
        edits = _Edits(path)
        count = 0
        try:
            for place, record in records(file):
                edits.add(place, record)
                count += 1
        except LogError as error:
            raise file.damaged(f"{error.lost(file)}; the {count:,} edits before them can be read") from error
        log, sequence = edits.log, edits.sequence
        if log is None or sequence is None:
            raise file.damaged(
                f"it ends before the last sequence number and the log's, after {count:,} edits; the rest is lost"
            )
        return Manifest(path, log, edits.previous_log, sequence, tuple(edits.tables.values()))


def _current(path: str) -> str:
    """Return the manifest's name, read from CURRENT."""
    with LevelFile(path) as file:
        text = file.read(0, min(file.length, MOST_CURRENT + 1))
        if not re.fullmatch(rb"MANIFEST-[0-9]{1,20}\n", text):
            raise file.damaged("it does not contain the name of a manifest, MANIFEST- and a number")
    return text[:-1].decode()


class _Edits:
    """The sum of the edits so far."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.log: int | None = None
        self.sequence: int | None = None
        self.previous_log = 0
        self.tables: dict[int, Table] = {}

    def add(self, place: int, record: memoryview) -> None:
        """Apply an edit. Raises LogError."""
        at, end = 0, len(record)

        def number() -> int:
            nonlocal at
            value, at = varint(record, at, end)
            return value

        def text() -> bytes:
            nonlocal at
            value, at = sized(record, at)
            return bytes(value)

        def key() -> Key:
            found = Key.of(text())
            if found is None:
                raise LogError(place, "an edit has an invalid key")
            return found

        try:
            while at < end:
                tag = number()
                if tag == 1:
                    comparator = text()
                    if comparator != COMPARATOR:
                        found = comparator.decode(errors="replace")
                        raise DataError(f"{self.path}: the keys are ordered by {found!r}, Caffe's by {COMPARATOR.decode()!r}")
                elif tag == 2:
                    self.log = number()
                elif tag == 3:
                    number()  # the next file's number, not needed
                elif tag == 4:
                    self.sequence = number()
                elif tag == 9:
                    self.previous_log = number()
                elif tag == 5:
                    number(), key()  # the start of a level's next compaction, not needed
                elif tag == 6:
                    number()  # the level
                    self.tables.pop(number(), None)  # merged, or moved to another level, which adds it again
                elif tag == 7:
                    number()  # the level, which is not needed: sequence numbers order the entries
                    table = Table(number(), number(), key(), key())
                    if self.tables.setdefault(table.number, table) != table:
                        raise LogError(place, f"table {table.number} occurs twice")
                    limits.check(f"{self.path}: its list of tables", TABLE_BYTES * len(self.tables), "bytes")
                else:
                    raise LogError(place, f"an edit has the unknown field {tag}")
        except WireError as error:
            raise LogError(place, f"an edit is incomplete ({error.message})") from error
