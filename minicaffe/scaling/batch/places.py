"""Files by path or URI (file://, s3://, gs://, ...) on pyarrow's file systems. Only this module imports pyarrow."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from minicaffe.errors import DataError, Error, NotAFileError, install
from minicaffe.files import is_remote, is_uri, opened

PATIENCE = 60.0
"""Seconds to wait for the server of a URI; Google's client would try for a quarter of an hour."""
PROBE = """import sys
uri, sys.path[:] = sys.argv[1], sys.argv[2:]
from pyarrow import fs
try:
    system, path = fs.FileSystem.from_uri(uri)
    if system.get_file_info(path).type == fs.FileType.File:
        system.open_input_file(path).close()
except Exception as error:
    print(error, file=sys.__stdout__)
    sys.exit(3)
"""
"""The program of the process that opens a URI first."""


def require_pyarrow() -> Any:
    """Return the pyarrow module with its file systems and Parquet. Raises Error, which says how to install it."""
    try:
        import pyarrow
        import pyarrow.fs  # noqa: F401
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise Error(f"Parquet and URIs need pyarrow: {install('parquet')}") from error
    return pyarrow


def pyarrow_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the exceptions that pyarrow raises (Arrow's, Python's and Cython's for C++), and more."""
    cpp = (RuntimeError, LookupError, ArithmeticError, MemoryError)
    return (OSError, ValueError, *cpp, require_pyarrow().lib.ArrowException, *more)


def check_opens(uri: str) -> None:
    """Open a URI in a separate process first, because some file systems abort their process. Raises Error."""
    require_pyarrow()
    if not is_remote(uri):
        return
    # -I ignores the environment and the working directory; sys.path is handed over.
    command = [sys.executable, "-I", "-c", PROBE, uri, *sys.path]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        raise Error(f"{uri}: no answer within {PATIENCE:g} s") from None
    if done.returncode == 3:
        raise Error(f"{uri}: {done.stdout.decode('utf-8', 'replace').strip()}")
    if done.returncode:
        why = signal.Signals(-done.returncode).name if done.returncode < 0 else f"status {done.returncode}"
        raise Error(f"{uri}: cannot be opened: pyarrow's file system ended the process ({why})")


def located(name: str, base: str = "") -> tuple[Any, str]:
    """Return the file system of a URI or path, and the path in it. Relative paths are relative to base. Raises Error."""
    fs = require_pyarrow().fs
    if not is_uri(name):
        return fs.LocalFileSystem(), os.path.join(base or os.getcwd(), name)
    try:
        system, path = fs.FileSystem.from_uri(name)
    except pyarrow_errors(ImportError) as error:
        raise Error(f"{name}: {error}") from error
    return system, path


def read_uri(name: str, most: int) -> bytes:
    """Return the content of a URI's file, of at most `most` bytes. Files in one folder share a connection. Raises DataError."""
    uri = urlsplit(name)
    folder, _, last = uri.path.rpartition("/")
    try:
        system, path = _folder(urlunsplit(uri._replace(path=folder + "/")))
        path = f"{path.rstrip('/')}/{unquote(last)}"
        if system.type_name == "local":
            opened(path).close()  # raises for a FIFO or a device, which would block
        with system.open_input_file(path) as file:
            if (size := file.size()) > most:
                raise DataError(f"{name}: it has {size:,} bytes; at most {most:,} are read")
            content: bytes = file.read()
            return content
    except NotAFileError as error:
        raise DataError(f"{name}: cannot be read: {error.strerror}") from error
    except pyarrow_errors() as error:
        raise DataError(f"{name}: cannot be read: {error}") from error


@lru_cache(maxsize=64)
def _folder(uri: str) -> tuple[Any, str]:
    return located(uri)


def listed(uri: str) -> list[str] | None:
    """Return the sorted URIs of the files in a folder; None for a file. Raises Error if neither exists."""
    fs = require_pyarrow().fs
    system, path = located(uri)
    try:
        kind = system.get_file_info(path).type
        if kind == fs.FileType.NotFound:
            raise Error(f"{uri}: no such file or folder")
        if kind == fs.FileType.File:
            return None
        found = system.get_file_info(fs.FileSelector(path))
    except pyarrow_errors() as error:
        raise Error(f"{uri}: cannot be read: {error}") from error
    return [inside(uri, name) for name in sorted(info.base_name for info in found if info.type == fs.FileType.File)]


def inside(folder: str, file: str) -> str:
    """Return the path or URI of a file in a folder."""
    if not is_uri(folder):
        return str(Path(folder) / file)
    uri = urlsplit(folder)
    return urlunsplit(uri._replace(path=f"{uri.path.rstrip('/')}/{quote(file)}"))
