"""A LevelDB's logs: the manifest is a log of edits, and the log files contain the writes that no table holds yet.

    block of 32 KiB: (checksum, length, kind, part of a record)*, then zeros if no header fits
    record: one or more parts    in a log file: sequence number, count, (kind, key, value)*

Source: LevelDB's doc/log_format.md and db/write_batch.cc.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from minicaffe import limits
from minicaffe.formats.wire import WireError, varint

from .leveldb_files import DELETION, VALUE, LevelFile, matches

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
        """What is wrong, where, and how much of the file is lost."""
        return f"{self.what} (at byte {self.place:,}): its last {file.length - self.place:,} bytes are lost"


def records(file: LevelFile) -> Iterator[tuple[int, memoryview]]:
    """The records with their offsets. Raises LogError."""
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
    """The part at `at`: its kind, content and end."""
    if at + PART.size > len(block):
        raise LogError(begin, TORN)
    checksum, length, kind = PART.unpack_from(block, at)
    end = at + PART.size + length
    if end > len(block):
        cut = len(block) < BLOCK and at + PART.size + length <= BLOCK  # only in the file's last block
        raise LogError(begin, TORN if cut else "a record is longer than its block")
    if not matches(checksum, block[at + PART.size - 1 : end]):  # from the kind, the header's last byte
        raise LogError(begin, "a record does not match its checksum")
    if kind not in (FULL, FIRST, MIDDLE, LAST):
        raise LogError(begin, f"a record has the unknown kind {kind}")
    return kind, block[at + PART.size : end], end


def read_logs(paths: Sequence[str], sequence: int) -> Recent:
    """The entries of these logs, the oldest first. The tables hold all entries up to this sequence number, perhaps more.

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
    """The sequence number of the first entry in a record of writes, and the number of entries."""
    if len(record) < BATCH.size:
        raise LogError(place, "a write is too short")
    first, count = BATCH.unpack_from(record)
    if count > (len(record) - BATCH.size) // 2:  # an entry has at least its kind and a length
        raise LogError(place, f"a write of {len(record):,} bytes declares {count:,} entries")
    return first, count


def _entries(place: int, record: memoryview, first: int, count: int) -> Iterator[tuple[bytes, int, memoryview]]:
    """The name, age and value of each entry of a record; the value of a deletion is empty."""
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
    """The length-prefixed bytes at `at`, and the offset after them. Raises WireError."""
    length, at = varint(data, at, len(data))
    if at + length > len(data):
        raise WireError(at, f"{length:,} bytes are declared, but only {len(data) - at:,} follow")
    return data[at : at + length], at + length
