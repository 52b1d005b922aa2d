"""One run at a time writes to a folder: two with different settings would mix their rows.

The operating system locks a file in the folder (flock, also on NFS), so the lock always ends with the process that holds it.
The file names that process. A folder behind a URI or on a file system without locks has no lock: there the manifest is checked
again at the end of a run (folder.py).
"""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minicaffe.errors import Error
from minicaffe.files import in_place, is_remote, local_path

LOCK = "_minicaffe.lock"


@contextmanager
def locked(place: str) -> Iterator[None]:
    """Create and lock this folder for a block. Raises Error, which names the process, if another run has locked it."""
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
        # Unlinked before the lock ends, so that no other run can have locked this file meanwhile.
        with suppress(OSError):
            (folder / LOCK).unlink()
        os.close(handle)


def _taken(path: Path, place: str) -> int:
    """The descriptor of the locked file. Its last holder removes it, so the locked file must still exist."""
    while True:
        handle = in_place(path, os.O_RDWR | os.O_CREAT)
        if not _flock(handle):
            content = os.read(handle, 1000)
            os.close(handle)
            raise Error(f"{place}: another run writes there now{_holder(content)}: wait for its end, or give another --out")
        with suppress(FileNotFoundError):
            # Between open and flock the last holder may have unlinked the file: a lock on it would keep out nobody.
            if os.path.samestat(os.fstat(handle), os.lstat(path)):
                mine = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
                os.ftruncate(handle, 0)
                os.write(handle, json.dumps(mine).encode() + b"\n")
                return handle
        os.close(handle)


def _flock(handle: int) -> bool:
    """Lock a file; False if another process has. True also without locks: on Windows and some network drives."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        pass
    return True


def _holder(content: bytes) -> str:
    """ " (process 123 on host, since 2026-11-22 15:30:01)", or "" if the lock file lacks it."""
    try:
        found = json.loads(content)
        return f" (process {int(found['pid'])} on {found['host']}, since {found['since']})"
    except (ValueError, KeyError, TypeError):
        return ""
