"""Which files a prototxt may name: a prototxt is data, and may come from anyone.

    under the working directory              always
    what the command line names              always (a folder: everything in it)
    anything else                            after allow_path("/data"), or with --allow /data

A link counts as what it leads to. What a caller passes to a function is the caller's own choice, and is not checked.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import DataError

_allowed: set[str] = set()


def allow_path(path: str | os.PathLike[str]) -> None:
    """Let prototxts name this file, or what lies in this folder: to read it, or to write there where a layer writes.

    It need not be there yet, and a misspelt path is no error: a folder may be made later (`--allow` wants one that is).
    """
    _allowed.add(os.path.realpath(path))


def allowed() -> tuple[str, ...]:
    """All that prototxts may name files in, the working directory too: for another process to allow."""
    return (os.path.realpath(os.getcwd()), *sorted(_allowed))


@contextmanager
def allowing(paths: Iterable[str | os.PathLike[str]]) -> Iterator[None]:
    """allow_path for each, until the end of the block."""
    before = set(_allowed)
    for path in paths:
        allow_path(path)
    try:
        yield
    finally:
        _allowed.intersection_update(before)


def granted(path: str | os.PathLike[str], *beside: str | os.PathLike[str]) -> str:
    """path, which a prototxt names, if it may; beside: folders in which it may too. Raises DataError."""
    name = os.fspath(path)
    try:
        os.stat(name)
    except FileNotFoundError:
        pass
    except ValueError:
        raise DataError(f"{name!r} is no file's name") from None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise DataError(f"{name[:200]}: {error.strerror}") from error
    real = os.path.realpath(path)
    folders = [os.path.realpath(os.getcwd()), *_allowed, *map(os.path.realpath, beside)]
    if any(Path(real).is_relative_to(folder) for folder in folders):
        return name
    folder = real if os.path.isdir(real) else os.path.dirname(real)
    leads = f" (which is {real})" if real != os.path.abspath(name) else ""
    raise DataError(
        f"{name}{leads} is not in the working directory {os.getcwd()}, and a prototxt may name files elsewhere only where that"
        f' is allowed: --allow {folder}, or minicaffe.allow_path("{folder}")'
    )


def granted_folder(path: str | os.PathLike[str], *beside: str | os.PathLike[str]) -> str:
    """granted, for a folder whose files are read: links in it are looked at too. Raises DataError."""
    name = granted(path, *beside)
    if os.path.isdir(name):
        with os.scandir(name) as entries:
            for entry in entries:
                granted(entry.path, *beside)
    return name
