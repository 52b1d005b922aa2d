"""What a LevelDB's files have in common: how they are opened and checked, and the keys in them.

    CURRENT -> MANIFEST-000004 -> 000005.ldb, 000007.ldb, ... (tables) and 000006.log (what came after them)

A folder may come from anyone: links in it are not followed, and what is no regular file (a pipe, a device) is not opened.
Source: LevelDB's doc/impl.md, db/dbformat.h and util/crc32c.h.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import NamedTuple

from minicaffe.errors import DataError, NotAFileError
from minicaffe.files import opened

from .crc32c import crc32c

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
        if os.path.islink(path):
            raise DataError(f"{path}: is a link, and a LevelDB's links are not followed: put the file itself there")
        try:
            self.file = opened(path, follow=False)
        except (NotAFileError, IsADirectoryError) as error:
            raise DataError(f"{path}: is no regular file") from error
        except OSError as error:
            raise DataError(f"{path}: cannot be opened: {error.strerror or error}") from error
        self.length = os.fstat(self.file.fileno()).st_size

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


def matches(masked: int, data: bytes | memoryview) -> bool:
    """Whether data has this checksum, stored as LevelDB does: turned by 15 bits, with a constant added."""
    checksum = crc32c(data)
    return masked == ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
