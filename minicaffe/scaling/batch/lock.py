"""One run at a time writes a folder: two of different settings would mix their rows.

The lock is the operating system's, on a file in the folder (flock, which NFS servers keep too), so that it ends with the
process that holds it, however that ends. The file says who that is. A folder on a file system without locks, or behind a URI,
has none: there the manifest is looked at again at the end of a run (folder.py).
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

from minicaffe.access import is_remote, local_path
from minicaffe.errors import Error

LOCK = "_minicaffe.lock"


@contextmanager
def locked(place: str) -> Iterator[None]:
    """A block in which no other run takes this folder, which is made. Raises Error, which names the process, where one has."""
    if is_remote(place):
        yield
        return
    folder = Path(local_path(place))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = _taken(folder / LOCK, place)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):  # nothing can be written: by no other run either
            yield
            return
        raise Error(f"{place}: cannot be written: {error.strerror or error}") from error
    try:
        yield
    finally:
        with suppress(OSError):
            (folder / LOCK).unlink()
        os.close(handle)


def _taken(path: Path, place: str) -> int:
    """A descriptor of the lock file, which is ours. Whoever held it removes it: what is locked must still be there."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)
        if not _flock(handle):
            said = os.read(handle, 1000)
            os.close(handle)
            raise Error(f"{place}: another run writes there now{_holder(said)}: wait for its end, or give another --out")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.lstat(path)):
                mine = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
                os.ftruncate(handle, 0)
                os.write(handle, json.dumps(mine).encode() + b"\n")
                return handle
        os.close(handle)


def _flock(handle: int) -> bool:
    """Lock a file; False where another process has. True also where there are no locks: Windows, some network drives."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _holder(content: bytes) -> str:
    """(process 123 on host, since 2026-11-22 15:30:01), as far as the lock file says so."""
    try:
        found = json.loads(content)
        return f" (process {int(found['pid'])} on {found['host']}, since {found['since']})"
    except (ValueError, KeyError, TypeError):
        return ""
