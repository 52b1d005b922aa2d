"""A LevelDB's manifest, which CURRENT names: a log of edits that add up to the list of tables.

Source: LevelDB's db/version_edit.cc and db/version_set.cc.
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from minicaffe import limits
from minicaffe.errors import DataError
from minicaffe.formats.wire import WireError, varint

from .leveldb_files import Key, LevelFile
from .leveldb_log import LogError, records, sized

COMPARATOR = b"leveldb.BytewiseComparator"
MOST_CURRENT = 64
"""Most bytes of CURRENT, which holds MANIFEST-, a number and a newline."""
TABLE_BYTES = 1024
"""The memory of a Table in Python."""


class Table(NamedTuple):
    """A table: the length of its file, its first and last keys."""

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
    """The manifest of the database in folder. Raises DataError."""
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
    """The manifest's name, from CURRENT."""
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
                    number()  # of the next file
                elif tag == 4:
                    self.sequence = number()
                elif tag == 9:
                    self.previous_log = number()
                elif tag == 5:
                    number(), key()  # the start of the next compaction of a level
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
