"""Writing a file whole or not at all: everything minicaffe writes goes through replacing()."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import Error


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path beside path (same suffix) to write to; renamed to path at the end, removed when the block fails.

    A reader of path sees the old file or the whole new one, never a part. A link stays, and what it leads to is replaced; a
    device (/dev/stdout) or a pipe is written to. Raises Error, naming path, for what the operating system refuses
    (no such folder, no permission, disk full).
    """
    target = Path(path)
    if not target.name:
        raise Error(f'"{os.fspath(path)}" is not the name of a file to write')
    if _is_device(target):
        with _copied_to(target) as copy:
            yield copy
        return
    target = Path(os.path.realpath(target)) if target.is_symlink() else target
    temporary = target.with_name(f".{target.stem}.{secrets.token_hex(4)}{target.suffix}")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        raise Error(f"{target}: cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def replacing_together(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path in a new folder beside path (same name) to write to, and files that belong to it beside it; at the end all of them
    are moved to where path is, path last. Where the block fails all are removed, and what was there before stays. Errors as
    replacing's."""
    target = Path(os.path.realpath(path) if os.path.islink(path) else path)
    beside = None if _is_device(target) else target.absolute().parent
    try:
        folder = tempfile.TemporaryDirectory(dir=beside, prefix=f".{target.stem}.")
    except OSError as error:
        raise Error(f"{target}: cannot be written: {error.strerror or error}") from error
    with folder:
        draft = Path(folder.name) / target.name
        yield draft
        for file in sorted(draft.parent.iterdir(), key=lambda file: file == draft):
            with replacing(target.with_name(file.name)) as temporary:
                shutil.move(file, temporary)


def _is_device(path: Path) -> bool:
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


@contextmanager
def _copied_to(target: Path) -> Iterator[Path]:
    """A path in a folder of its own; what is written there goes to target at the end."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / target.name
        try:
            with open(Path(folder) / target.name, "rb") as source, open(target, "wb", buffering=0) as file:
                shutil.copyfileobj(source, file)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Error(f"{target}: cannot be written: {error.strerror or error}") from error


def plain(error: OSError) -> str:
    """`file: No such file or directory`, without Python's [Errno 2]."""
    name = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    return f"{name}{error.strerror}" if error.strerror else str(error)


def _sync_folder(folder: Path) -> None:
    """Put the new name on the disk too, so that files written one after the other are there in that order after a crash."""
    with suppress(OSError):  # Windows opens no folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
