"""What all files of a LevelDB share: opening, checksums and keys.

    CURRENT -> MANIFEST-000004 -> 000005.ldb, 000007.ldb, ... (tables) and 000006.log (later writes)

The folder is untrusted: links in it are not followed, and only regular files (no pipes, no devices) are opened.
Source: LevelDB's doc/impl.md, db/dbformat.h and util/crc32c.h.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import NamedTuple

from minicaffe.errors import DataError, NotAFileError, os_errors_as
from minicaffe.files import opened

from .crc32c import crc32c

DELETION, VALUE = 0, 1
"""The kinds of entries: the key is deleted, or has the value that follows."""


class Key(NamedTuple):
    """A key in the order of tables: of two with the same name the later comes first and hides the other."""

    name: bytes
    age: int
    """-(sequence number * 256 + DELETION or VALUE)."""

    @classmethod
    def of(cls, data: bytes) -> Key | None:
        """The key stored as these bytes; None if they are invalid."""
        return cls(data[:-8], -int.from_bytes(data[-8:], "little")) if len(data) >= 8 and data[-8] <= VALUE else None


class LevelFile:
    """A file of a LevelDB, open: with LevelFile(path) as file: file.read(0, file.length). Raises DataError."""

    def __init__(self, path: str) -> None:
        self.path = path
        if os.path.islink(path):  # for a clear message; follow=False refuses a link that is put there meanwhile
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
        """size bytes at the offset `at`, which the file had when it was opened. Raises DataError."""
        with os_errors_as(DataError, f"{self.path}: cannot be read"):
            self.file.seek(at)
            data = self.file.read(size)
        if len(data) < size:
            raise self.damaged("it became shorter while it was read")
        return data

    def damaged(self, what: str) -> DataError:
        return DataError(f"{self.path}: damaged LevelDB: {what}")


def matches(masked: int, data: bytes | memoryview) -> bool:
    """Whether data has this checksum, which LevelDB stores rotated by 15 bits and with a constant added."""
    checksum = crc32c(data)
    return masked == ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF
