"""LMDB: read by minicaffe, written with py-lmdb (minicaffe[lmdb]). Source: Caffe's util/db_lmdb.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from minicaffe.errors import DataError, optional_module

from .lmdb_pages import LmdbPages


class LmdbDatabase:
    """An LMDB opened for reading, without locks: a folder with data.mdb, or that file."""

    def __init__(self, path: str) -> None:
        self.path = path
        file = Path(path) / "data.mdb" if Path(path).is_dir() else Path(path)
        if not file.is_file():
            raise DataError(f"{path}: not an LMDB, which is a folder with a file data.mdb, or that file")
        self.pages = LmdbPages(file, path)

    def items(self, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return self.pages.items(start)

    def count(self) -> int | None:
        return self.pages.meta.entries


class LmdbWriter:
    """A new LMDB in folder. Its map grows when it is full."""

    def __init__(self, folder: Path) -> None:
        self.lmdb = optional_module("lmdb", 'Writing an LMDB needs py-lmdb: pip install "minicaffe[lmdb]"')
        self.environment = self.lmdb.open(str(folder), map_size=1 << 26, sync=False, lock=False)
        self.waiting: list[tuple[bytes, bytes]] = []

    def put(self, key: bytes, value: bytes) -> None:
        most = self.environment.max_key_size()
        if not 0 < len(key) <= most:
            raise DataError(
                f'an LMDB takes keys of 1 to {most} bytes, but "{key[:60].decode("utf-8", "replace")}..." has {len(key):,}: '
                "shorten the name, or make a LevelDB (--backend leveldb)"
            )
        self.waiting.append((key, value))
        if len(self.waiting) >= 1000:
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
