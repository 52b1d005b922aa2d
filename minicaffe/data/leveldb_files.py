"""What a LevelDB's files have in common: how they are opened and checked, and the keys in them.

    CURRENT -> MANIFEST-000004 -> 000005.ldb, 000007.ldb, ... (tables) and 000006.log (what came after them)

A folder may come from anyone: links in it are not followed, and what is no regular file (a pipe, a device) is not opened.
Source: LevelDB's doc/impl.md, db/dbformat.h and util/crc32c.h.
"""

from __future__ import annotations

import os
import stat
from types import TracebackType
from typing import NamedTuple

from minicaffe.errors import DataError

from .crc32c import crc32c

FLAGS = os.O_RDONLY
for flag in ("O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"):
    FLAGS |= getattr(os, flag, 0)

DELETION, VALUE = 0, 1
"""What a key's last byte of eight says: that the key is gone from here on, or that it has the value which follows."""


class Key(NamedTuple):
    """A key as tables sort it: of two that have the same name, the later comes first, and hides the other."""

    name: bytes
    age: int
    """Minus (its sequence number * 256 + DELETION or VALUE)."""

    @classmethod
    def of(cls, data: bytes) -> Key | None:
        """The key that is stored as these bytes; None where they are none."""
        return cls(data[:-8], -int.from_bytes(data[-8:], "little")) if len(data) >= 8 and data[-8] <= VALUE else None


class LevelFile:
    """A file of a LevelDB, open: with LevelFile(path) as file: file.read(0, file.length). Raises DataError."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._check(os.lstat(path))
            self.file = os.fdopen(os.open(path, FLAGS), "rb")
        except OSError as error:
            raise DataError(f"{path}: cannot be opened: {error.strerror or error}") from error
        found = os.fstat(self.file.fileno())
        self.length = found.st_size
        try:
            self._check(found)  # which may be another one by now
        except DataError:
            self.file.close()
            raise

    def __enter__(self) -> LevelFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.file.close()

    def read(self, at: int, size: int) -> bytes:
        """size bytes from the byte `at` on; both lie in the file."""
        try:
            self.file.seek(at)
            data = self.file.read(size)
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        if len(data) < size:
            raise self.damaged("it became shorter while it was read")
        return data

    def damaged(self, what: str) -> DataError:
        return DataError(f"{self.path}: damaged LevelDB: {what}")

    def _check(self, found: os.stat_result) -> None:
        if stat.S_ISLNK(found.st_mode):
            raise DataError(f"{self.path}: is a link, and a LevelDB's links are not followed: put the file itself there")
        if not stat.S_ISREG(found.st_mode):
            raise DataError(f"{self.path}: is no regular file")


def matches(masked: int, data: bytes | memoryview) -> bool:
    """Whether data has this checksum, stored as LevelDB does: turned by 15 bits, with a constant added."""
    checksum = crc32c(data)
    return masked == ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
