"""Arrays of numbers from .npy and .npz files: no pickles, and no size that the file's bytes do not hold.

An array's name is that of its entry in the .npz, with %XX for the bytes of what would lead out of the folder that it is
unpacked in (`..` and `.` as a whole part, a / that begins the name or follows another, a backslash, the colon of `C:`), of what
a zip cannot keep (control characters, bytes that are no UTF-8), of the dot of a last .npy, and of % itself: `../conv%.0` is
`%2E%2E/conv%25.0`.
"""

from __future__ import annotations

import io
import math
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import IO, Any
from urllib.parse import unquote

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from minicaffe import limits
from minicaffe.errors import Error, shortened
from minicaffe.files import opened, replacing

Array = NDArray[Any]

DIRECTORY = 1 << 24
"""Bytes that an .npz may have beside its arrays: zipfile reads its directory whole."""
LONGEST_HEADER = 10_000
"""Bytes of an array's header: NumPy takes no more either, but reads them first."""
_QUOTED = re.compile(
    r"[%\\\x00-\x1f\x7f\udc80-\udcff]"
    r"|(?<![^/])/|(?<![^/])\.\.?(?![^/])"  # where a part of a path begins
    r"|(?<=\A[A-Za-z]):|\.(?=npy\Z)"
)
_LONGEST_NAME = 0xFFFF
"""Bytes of an entry's name that a zip has room for."""


def read_npy(path: str | os.PathLike[str]) -> Array:
    """The numbers of a .npy file. Raises Error, and OSError where there is no such file."""
    with opened(path) as file:
        if file.read(2) == b"PK":
            raise Error(f"{os.fspath(path)}: several arrays (.npz), where one (.npy) is wanted")
        file.seek(0)
        with _damaged(f"{os.fspath(path)}: not a readable .npy file of numbers"):
            return _read(file, os.fstat(file.fileno()).st_size, os.fspath(path))


def read_npz(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of numbers of an .npz file by name; what is in it beside them is left out. Raises Error and OSError.

    Together they may unpack to limits.bytes, whatever the file's own size.
    """
    arrays = {}
    with opened(path) as file, _damaged(f"{os.fspath(path)}: not a readable .npz of numbers"):
        if file.read(6) == npy.MAGIC_PREFIX:
            raise Error(f"{os.fspath(path)}: one array (.npy), where an .npz of named arrays is wanted")
        if (size := os.fstat(file.fileno()).st_size) > limits.bytes + DIRECTORY:
            limits.check(f"{os.fspath(path)}: the file", size, "bytes")
        archive = zipfile.ZipFile(file)
        entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
        limits.check(f"{os.fspath(path)}: the whole of its arrays", sum(entry.file_size for entry in entries), "bytes")
        for entry in entries:
            name = _array_name(entry.filename.removesuffix(".npy"))
            if name in arrays:
                raise Error(shortened(f"{os.fspath(path)}: two arrays of the name {name!r}"))
            with archive.open(entry) as packed:
                arrays[name] = _read(packed, entry.file_size, os.fspath(path))
    return {name: array for name, array in arrays.items() if array.dtype.kind in "fiub"}


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an .npz whose arrays may have any names (numpy.savez takes no `file`). Raises Error."""
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in arrays.items():
            entry_name = f"{_entry_name(name)}.npy"
            if (length := len(entry_name.encode())) > _LONGEST_NAME:
                raise Error(f"{os.fspath(path)}: an array has a name of {length} bytes; an .npz has room for {_LONGEST_NAME}")
            with archive.open(entry_name, "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


def distinct(names: Iterable[str]) -> list[str]:
    """The names; one that came before gets a number that makes it a new one: a, b, a#2."""
    given = list(names)
    taken, result = set(given), []
    tries: dict[str, Iterator[str]] = {}
    for name in given:
        if name in tries:
            result.append(next(other for other in tries[name] if other not in taken))
            taken.add(result[-1])
        else:
            tries[name] = (f"{name}#{n}" for n in count(2))
            result.append(name)
    return result


def _entry_name(name: str) -> str:
    return _QUOTED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogateescape")), name)


def _array_name(entry_name: str) -> str:
    """The name that _entry_name was given; one that it does not make (%41, of other programs) stays."""
    name = unquote(entry_name, errors="surrogateescape")
    return name if _entry_name(name) == entry_name else entry_name


@contextmanager
def _damaged(message: str) -> Iterator[None]:
    """Whatever NumPy and zipfile raise for damaged files (tokenize.TokenError and zlib.error among them) as an Error."""
    try:
        yield
    except (Error, MemoryError):
        raise
    except Exception as error:
        raise Error(f"{message}: {error}") from error


def _read(file: IO[bytes], size: int, path: str) -> Array:
    """The array in a .npy of size bytes; an object's pickle is refused, and text is read. path: for errors."""
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    version = npy.read_magic(file)
    if version not in read_header and version != (3, 0):
        raise ValueError(f"version {version} of the format is not known")
    length = file.read(2 if version == (1, 0) else 4)
    if int.from_bytes(length, "little") > LONGEST_HEADER:
        raise ValueError(f"a header of {int.from_bytes(length, 'little')} bytes")
    header = io.BytesIO(length + file.read(int.from_bytes(length, "little")))
    shape, fortran, dtype = read_header.get(version, npy.read_array_header_2_0)(header)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    count = math.prod(shape)
    if any(n < 0 for n in shape) or count * dtype.itemsize > size:
        raise ValueError(f"shape {shape} needs {count * dtype.itemsize} bytes, but there are {size}")
    limits.check(f"{path}: an array of shape {shape}", count * dtype.itemsize, "bytes")
    values: Array = np.ndarray(count, dtype, _bytes(file, count * dtype.itemsize))  # frombuffer takes no items of 0 bytes
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)


def _bytes(file: IO[bytes], count: int) -> bytearray:
    """The next count bytes. Raises EOFError where there are fewer."""
    data, filled = bytearray(count), 0
    while filled < count:
        part = file.read(min(count - filled, 1 << 20))
        if not part:
            raise EOFError(f"{count} bytes of values are wanted, {filled} are there")
        data[filled : filled + len(part)] = part
        filled += len(part)
    return data
