"""The folder that a run writes, a path or a URI: part-00000.parquet and so on, and a manifest that identifies the run.

A part is written whole or not at all, so a stopped run resumes with the missing parts. The folder of another run (with other
images, net, weights, settings or part size) is refused.

One run at a time writes to a folder: two with different settings would mix their rows. The operating system locks a file in the
folder (flock, also on NFS), which names the process that holds it, so the lock always ends with that process. A folder behind a
URI or on a file system without locks has no lock: there the manifest is checked again at the end of a run.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minicaffe.errors import DataError, Error, LimitError
from minicaffe.files import in_place, is_remote, is_uri, local_path, replacing, unlinked

from .places import inside, located, pyarrow_errors, require_pyarrow
from .tables import read_columns

LOCK = "_minicaffe.lock"


@contextmanager
def locked(place: str) -> Iterator[None]:
    """Create and lock a folder for the block. Raises Error, which names the process, if another run has locked it."""
    if is_remote(place):
        yield
        return
    folder = Path(local_path(place))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _taken(folder / LOCK, place)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):  # no other run can write there either
            yield
            return
        raise Error(f"{place}: cannot be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        # Unlinked while locked, so that no other run can lock the old file.
        with suppress(OSError):
            (folder / LOCK).unlink()
        os.close(handle)


def _taken(path: Path, place: str) -> int:
    """Lock the file and return its descriptor. The last holder removes the file, so check that the locked one still exists."""
    while True:
        handle = in_place(path, os.O_RDWR | os.O_CREAT)
        if not _flock(handle):
            content = os.read(handle, 1000)
            os.close(handle)
            raise Error(f"{place}: another run writes there now{_holder(content)}: wait for its end, or give another --out")
        with suppress(FileNotFoundError):
            # The last holder may have unlinked the file between open and flock. A lock on that file would keep out nobody.
            if os.path.samestat(os.fstat(handle), os.lstat(path)):
                mine = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
                os.ftruncate(handle, 0)
                os.write(handle, json.dumps(mine).encode() + b"\n")
                return handle
        os.close(handle)


def _flock(handle: int) -> bool:
    """Lock a file; return False if another process holds the lock, and True where locks are not supported."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass
    return True


def _holder(content: bytes) -> str:
    """Return " (process 123 on host, since 2026-11-22 15:30:01)", or "" if the lock file does not contain it."""
    try:
        found = json.loads(content)
        return f" (process {int(found['pid'])} on {found['host']}, since {found['since']})"
    except (ValueError, KeyError, TypeError):
        return ""


MANIFEST = "_minicaffe.json"
"""Readers of Parquet folders skip names that start with "_" or "."."""
MOST_DIFFERENCES = 3
"""Of another run, in the error."""

_PART = re.compile(r"part-(\d{5,})\.parquet")


@dataclass(frozen=True)
class Folder:
    """An output folder; place is a URI or an absolute path."""

    place: str

    def claim(self, manifest: Mapping[str, Any]) -> set[int]:
        """Claim the folder for this run; return the numbers of the parts done. Raises Error if it belongs to another run."""
        system, path = located(self.place)
        try:
            system.create_dir(path, recursive=True)
            found = self._names()
        except pyarrow_errors() as error:
            raise Error(f"{self.place}: cannot be written: {error}") from error
        if MANIFEST not in found:
            if any(name.endswith(".parquet") for name in found):
                raise Error(
                    f"{self.place}: has Parquet files that neither `minicaffe detect` nor `features` wrote: give another --out"
                )
            self._put(MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")
        # Checked even if just written: without locks another run may claim the folder at the same time.
        self.check(manifest)
        return _parts(found)

    def check(self, manifest: Mapping[str, Any]) -> None:
        """Raise Error if the folder belongs to another run."""
        system, path = located(self.place)
        try:
            with system.open_input_file(f"{path}/{MANIFEST}") as file:
                content = json.loads(file.read())
        except pyarrow_errors() as error:
            raise Error(f"{self.place}: {MANIFEST} cannot be read: {error}") from error
        found = content if isinstance(content, dict) else {}
        apart = [key for key in manifest if manifest[key] != found.get(key)]
        if apart:
            first = apart[:MOST_DIFFERENCES]
            what = "; ".join(f"{key} {_short(found.get(key))}, here {_short(manifest[key])}" for key in first)
            what += f"; and {len(apart) - len(first)} more" * (len(apart) > len(first))
            raise Error(f"{self.place}: belongs to another run: {what}. Give another --out, or remove it")

    def done(self) -> set[int]:
        """Return the numbers of the existing parts."""
        return _parts(self._names())

    def _names(self) -> list[str]:
        system, path = located(self.place)
        fs = require_pyarrow().fs
        return [info.base_name for info in system.get_file_info(fs.FileSelector(path)) if info.type == fs.FileType.File]

    def read(self, number: int, columns: Sequence[str]) -> Any:
        """Return these columns of a part. Raises Error if its file is unreadable, lacks a column or exceeds the limits."""
        system, path = located(self.place)
        name = part_name(number)
        try:
            with system.open_input_file(f"{path}/{name}") as file:
                return read_columns(file, columns)
        except pyarrow_errors(DataError, LimitError) as error:
            problem = f"{inside(self.place, name)}: cannot be read: {error}"
            raise Error(f"{problem}; remove it, and run again to do its images") from error

    def write(self, number: int, table: Any) -> None:
        """Write or replace the file of a part. Raises Error."""
        pa = require_pyarrow()
        content = pa.BufferOutputStream()
        pa.parquet.write_table(table, content)
        self._put(part_name(number), content.getvalue())

    def _put(self, name: str, content: Any) -> None:
        if not is_uri(self.place):
            with replacing(unlinked(Path(self.place) / name)) as temporary:
                temporary.write_bytes(content)
            return
        system, path = located(self.place)
        temporary_name = f"{path}/.{name}.{secrets.token_hex(4)}"  # ".": readers of Parquet folders skip it
        try:
            with system.open_output_stream(temporary_name) as stream:
                stream.write(content)
            system.move(temporary_name, f"{path}/{name}")
        except pyarrow_errors() as error:
            with suppress(*pyarrow_errors()):
                system.delete_file(temporary_name)
            raise Error(f"{inside(self.place, name)}: cannot be written: {error}") from error


def part_name(number: int) -> str:
    """Return the name of a part's file."""
    return f"part-{number:05d}.parquet"


def _parts(names: Iterable[str]) -> set[int]:
    return {int(match[1]) for name in names if (match := _PART.fullmatch(name))}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:12] if re.fullmatch("[0-9a-f]{64}", text) else text
