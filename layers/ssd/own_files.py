"""Files that a layer writes into a folder: an existing one is replaced only if such a layer wrote it.

The folder's .minicaffe_wrote gets a line for each file before the file is written: ["found.json", SHA-256 of what is written].
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from minicaffe import limits
from minicaffe.access import granted
from minicaffe.errors import DataError
from minicaffe.files import in_place, opened, read_bytes, replacing, unlinked

RECORD = ".minicaffe_wrote"


class OwnFiles:
    """The files of a folder, which is created with the first. Raises DataError where no folder can be."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: set[tuple[str, str]] | None = None
        granted(folder / RECORD)
        nearest = next(place for place in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(place))
        if not nearest.is_dir():
            raise DataError(f"{folder}: {nearest} is no folder, and nothing can be written into it")

    def check(self, name: str) -> None:
        """Raises DataError for a file that may not be named here, or for an existing one that no run wrote."""
        path = unlinked(granted(self.folder / name), DataError)
        if Path(name).name != name or "\\" in name:
            raise DataError(f'"{name}" leads out of the folder {self.folder}')
        if not os.path.lexists(path):
            return
        if not path.is_file() or (name, _digest(read_bytes(path, "lists"))) not in self._record():
            raise DataError(f"{path} is there, and no run wrote it: not overwritten; remove it, or give another name")

    def write(self, name: str, content: bytes) -> None:
        """Write a file, or replace one of ours. Raises Error."""
        self.check(name)
        entry = (name, _digest(content))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # before the file: a run killed in between must not leave one that no later run may replace
            if entry not in self._record():
                self._append(entry)
        except OSError as error:
            raise DataError(f"{self.folder / name}: cannot be written: {error.strerror or error}") from error
        with replacing(self.folder / name) as temporary:
            temporary.write_bytes(content)

    def _record(self) -> set[tuple[str, str]]:
        """What runs wrote, read once; incomplete lines are ignored."""
        if self._written is None:
            self._written = set()
            with suppress(OSError), opened(self.folder / RECORD, follow=False) as lines:
                for line in lines if os.fstat(lines.fileno()).st_size <= limits.lists else ():  # one of holes has no end
                    with suppress(ValueError, TypeError):
                        name, digest = json.loads(line)
                        self._written.add((name, digest))
        return self._written

    def _append(self, entry: tuple[str, str]) -> None:
        handle = in_place(self.folder / RECORD, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(handle, json.dumps(entry).encode() + b"\n")  # one write: lines of other processes stay whole
        finally:
            os.close(handle)
        self._record().add(entry)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
