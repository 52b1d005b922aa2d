"""Files by path or by URI (file://, s3://, gs://, ...): pyarrow's file systems, the only place that asks for pyarrow."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from minicaffe.errors import DataError, Error


def require_pyarrow() -> Any:
    """The pyarrow module, with its file systems and Parquet, or an Error that says how to get it."""
    try:
        import pyarrow
        import pyarrow.fs
        import pyarrow.parquet
    except ImportError as error:
        raise Error('Parquet and URIs need pyarrow: pip install "minicaffe[parquet]"') from error
    return pyarrow


def pyarrow_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """What pyarrow raises: Arrow's own errors, Python's, and what Cython makes of C++'s; and more: to be caught."""
    cpp = (RuntimeError, LookupError, ArithmeticError, MemoryError)
    return (OSError, ValueError, *cpp, require_pyarrow().lib.ArrowException, *more)


def is_uri(name: str) -> bool:
    """s3://bucket/photos, file:///data: a name with a scheme."""
    return "://" in name


def located(name: str, base: str = "") -> tuple[Any, str]:
    """The file system and the path in it of a URI, or of a path, which is relative to base. Raises Error."""
    fs = require_pyarrow().fs
    if not is_uri(name):
        return fs.LocalFileSystem(), os.path.join(base or os.getcwd(), name)
    try:
        found, path = fs.FileSystem.from_uri(name)
    except (OSError, ValueError, ImportError) as error:  # pyarrow's errors are these
        raise Error(f"{name}: {error}") from error
    return found, path


def read_bytes(name: str) -> bytes:
    """What a URI leads to. Raises DataError. One connection serves the files of a folder."""
    uri = urlsplit(name)
    folder, _, last = uri.path.rpartition("/")
    try:
        system, path = _folder(urlunsplit(uri._replace(path=folder + "/")))
        with system.open_input_file(f"{path.rstrip('/')}/{unquote(last)}") as file:
            content: bytes = file.read()
            return content
    except (OSError, ValueError) as error:
        raise DataError(f"{name}: cannot be read: {error}") from error


@lru_cache(maxsize=64)
def _folder(uri: str) -> tuple[Any, str]:
    return located(uri)


def listed(name: str, base: str = "") -> list[str] | None:
    """The names of the files in a folder, by name, each with the folder's before it; None where it is a file.

    Raises Error where there is neither.
    """
    fs = require_pyarrow().fs
    system, path = located(name, base)
    try:
        kind = system.get_file_info(path).type
        if kind == fs.FileType.NotFound:
            raise Error(f"{name}: no such file or folder")
        if kind == fs.FileType.File:
            return None
        found = system.get_file_info(fs.FileSelector(path))
    except OSError as error:
        raise Error(f"{name}: cannot be read: {error}") from error
    files = sorted(info.base_name for info in found if info.type == fs.FileType.File)
    return [inside(name, file) for file in files]


def inside(folder: str, file: str) -> str:
    """The name of a file in a folder, which may be a URI."""
    if not is_uri(folder):
        return str(Path(folder) / file)
    uri = urlsplit(folder)
    return urlunsplit(uri._replace(path=f"{uri.path.rstrip('/')}/{quote(file)}"))
