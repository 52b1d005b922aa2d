"""LevelDB through plyvel: minicaffe[leveldb]. Source: Caffe's util/db_leveldb.cpp."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from .errors import DataError, Error

TABLES = (".ldb", ".sst")


def require_plyvel() -> Any:
    """The plyvel module, or an Error that says how to get it."""
    try:
        import plyvel
    except ImportError as error:
        raise Error(
            'LevelDB databases need plyvel: pip install "minicaffe[leveldb]"'
            " (it has wheels for Linux and macOS up to Python 3.12; elsewhere make the database an LMDB)"
        ) from error
    return plyvel


class LevelDatabase:
    """A LevelDB opened for reading. LevelDB writes to a database that it opens and lets one process in; so the tables are
    linked to, and the small rest copied, into a temporary folder, and the database itself stays as it is."""

    def __init__(self, path: str) -> None:
        plyvel = require_plyvel()
        self.path = path
        if not (Path(path) / "CURRENT").is_file():
            raise DataError(f"{path}: not a LevelDB, which is a folder with a file CURRENT in it")
        folder = Path(mkdtemp(prefix="minicaffe-leveldb-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        try:
            for file in Path(path).iterdir():
                if file.suffix in TABLES:
                    (folder / file.name).symlink_to(file.resolve())
                elif file.is_file() and file.name != "LOCK":
                    shutil.copyfile(file, folder / file.name)
            self.database = plyvel.DB(str(folder), create_if_missing=False)
        except (plyvel.Error, OSError) as error:
            raise DataError(f"{path}: cannot open the LevelDB: {_text(error)}") from error

    def items(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        plyvel = require_plyvel()
        try:
            yield from self.database.iterator(start=start or None, verify_checksums=True)
        except plyvel.Error as error:
            raise DataError(f"{self.path}: damaged LevelDB: {_text(error)}") from error

    def count(self) -> int | None:
        return None


class LevelWriter:
    """A new LevelDB in folder."""

    def __init__(self, folder: Path) -> None:
        self.database = require_plyvel().DB(str(folder), create_if_missing=True, error_if_exists=True)

    def put(self, key: bytes, value: bytes) -> None:
        self.database.put(key, value)

    def close(self) -> None:
        self.database.close()


def _text(error: Exception) -> str:
    message = error.args[0] if error.args else str(error)
    return message.decode(errors="replace") if isinstance(message, bytes) else str(error)
