"""Which files a prototxt, a list or a table may name: these are data, and may come from anyone.

    under the working directory              always
    what the command line names              always (a folder: everything in it)
    anything else                            after allow_path("/data"), or with --allow /data

A link counts as its target. A URI is allowed if its scheme, host (or bucket) and options are those of a URI that is allowed
or named on the command line. Paths that a caller passes to a function are not checked.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote, unquote_to_bytes

from .errors import DataError, pasted

LISTED = ("file", "s3", "gs", "gcs", "hdfs")
"""The schemes of URIs that lists and tables may name. Opening Azure's (abfs) runs the command az, or ends the process."""

_allowed: set[str] = set()


def allow_path(path: str | os.PathLike[str]) -> None:
    """Let prototxts, lists and tables name this file, or anything in this folder, for layers to read or write. A URI such as
    s3://bucket lets lists and tables name every URI with its scheme, host and options.

    The path need not exist, so a misspelt one is no error (for `--allow` it is).
    """
    name = os.fspath(path)
    _allowed.add(_host(name) if is_remote(name) else os.path.realpath(local_path(name)))


def is_uri(name: str) -> bool:
    """s3://bucket/photos, file:///data: a name with a scheme."""
    return "://" in name


def is_remote(name: str) -> bool:
    """Whether a name is a URI of another machine."""
    return is_uri(name) and not name.startswith("file:///")


def local_path(name: str) -> str:
    """The path of file:///my%20data; other names unchanged."""
    return unquote(name.removeprefix("file://")) if name.startswith("file:///") else name


def allowed() -> tuple[str, ...]:
    """Everything allowed, with the working directory: for another process to allow."""
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


def pattern_folder(name: str) -> str | None:
    """The folder that a pattern (photos/**/*.jpg) looks in, before its first wildcard; None for a name that is no pattern."""
    if is_uri(name) or not any(letter in name for letter in "*?[") or os.path.lexists(name):
        return None
    fixed = []
    for part in Path(name).parts:
        if any(letter in part for letter in "*?["):
            break
        fixed.append(part)
    return os.path.join(*fixed) if fixed else os.curdir


def granted(path: str | os.PathLike[str], *beside: str | os.PathLike[str], namer: str = "a prototxt") -> str:
    """path, as named by a prototxt (or another namer), if it is allowed or in a folder of beside. Raises DataError."""
    name = os.fspath(path)
    try:
        os.stat(name)  # realpath reports neither a loop of links nor a name that is too long
    except FileNotFoundError:
        pass
    except ValueError:
        raise DataError(f"{name!r} is not a file's name") from None
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise DataError(f"{name[:200]}: {error.strerror}") from error
    real = os.path.realpath(path)
    folders = [os.path.realpath(os.getcwd()), *_allowed, *map(os.path.realpath, beside)]
    if any(Path(real).is_relative_to(folder) for folder in folders):  # by parts: /database is not in /data
        return name
    folder = real if os.path.isdir(real) else os.path.dirname(real)
    leads = f" (which is {real})" if real != os.path.abspath(name) else ""
    raise DataError(
        f"{name}{leads} is not in the working directory {os.getcwd()}, and {namer} may name files elsewhere only where that"
        f" is allowed: --allow {pasted(folder, path=True)}, or minicaffe.allow_path({folder!r})"
    )


def granted_folder(path: str | os.PathLike[str], *beside: str | os.PathLike[str]) -> str:
    """granted for a folder whose files are read, and for each of its entries, which may be links. Raises DataError."""
    name = granted(path, *beside)
    if os.path.isdir(name):
        with os.scandir(name) as entries:
            for entry in entries:
                granted(entry.path, *beside)
    return name


def granted_uri(uri: str) -> str:
    """uri of another machine, as named by a list or a table, if it is allowed; its path is quoted, so that other parsers see
    the same host and options. Raises DataError."""
    scheme = uri.partition("://")[0]
    if scheme not in LISTED:
        raise DataError(f"{uri}: a list or a table may name URIs of {', '.join(LISTED)}, not of {scheme}")
    host = _host(uri)
    if host not in _allowed:
        place = host.rstrip("?")
        raise DataError(
            f"{uri}: a list or a table may name URIs only where the command line names one of the same host and options, or"
            f' where that is allowed: --allow "{place}", or minicaffe.allow_path("{place}")'
        )
    start, _, options = host.partition("?")
    # Unquoted first, so that a quoted path is not quoted twice.
    path = quote(unquote_to_bytes(uri.partition("?")[0][len(start) :].encode("utf-8", "surrogateescape")))
    return f"{start}{path}{'?' * bool(options)}{options}"


def _host(uri: str) -> str:
    """s3://bucket?region=x for s3://bucket/photos/a.jpg?region=x."""
    place, _, options = uri.partition("?")
    scheme, _, rest = place.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}?{options}"
