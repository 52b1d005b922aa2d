"""Arrays of numbers in .npy and .npz files. Pickles are refused, and so are sizes that exceed the file's bytes.

The name of an .npz entry is the array's name, with some bytes as %XX: `../conv%.0` is `%2E%2E/conv%25.0`. These are

    bytes that lead out of the folder on unpacking: `..` and `.` as whole parts, empty parts, a backslash, `:` of `C:`
    bytes that a zip cannot keep: control characters, bytes that are not UTF-8
    the dot of a final .npy, and % itself
"""

from __future__ import annotations

import io
import math
import os
import re
import zipfile
import zlib
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
"""Most bytes of an .npz besides its arrays: zipfile reads the whole directory."""
LONGEST_HEADER = 10_000
"""Most bytes of an array's header. NumPy has the same limit but reads the header first."""
_QUOTED = re.compile(
    r"[%\\\x00-\x1f\x7f\udc80-\udcff]"
    r"|(?<![^/])/|(?<![^/])\.\.?(?![^/])"  # an empty path component, . or ..
    r"|(?<=\A[A-Za-z]):|\.(?=npy\Z)"
)
_LONGEST_NAME = 0xFFFF
"""Most bytes of an entry's name in a zip."""


def read_npy(path: str | os.PathLike[str]) -> Array:
    """Return the numbers of a .npy file. Raises Error, and OSError if the file is missing."""
    with opened(path) as file:
        if file.read(2) == b"PK":
            raise Error(f"{os.fspath(path)}: an .npz of several arrays; give a .npy of one array")
        file.seek(0)
        with _damaged(f"{os.fspath(path)}: not a readable .npy file of numbers"):
            return _read(file, os.fstat(file.fileno()).st_size, os.fspath(path))


def read_npz(path: str | os.PathLike[str], only: str | None = None) -> dict[str, Array]:
    """Return the arrays of numbers in an .npz file by name. Its other entries are ignored.

    Raises Error and OSError. only: one name.

    Together the arrays may unpack to limits.bytes.
    """
    arrays = {}
    with opened(path) as file, _damaged(f"{os.fspath(path)}: not a readable .npz of numbers"):
        if file.read(6) == npy.MAGIC_PREFIX:
            raise Error(f"{os.fspath(path)}: a .npy of one array; give an .npz of named arrays")
        if (size := os.fstat(file.fileno()).st_size) > limits.bytes + DIRECTORY:
            limits.check(f"{os.fspath(path)}: the file", size, "bytes")
        archive = zipfile.ZipFile(file)
        entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
        if only:
            entries = [entry for entry in entries if _array_name(entry.filename.removesuffix(".npy")) == only]
        limits.check(f"{os.fspath(path)}: the sum of its arrays", sum(entry.file_size for entry in entries), "bytes")
        for entry in entries:
            name = _array_name(entry.filename.removesuffix(".npy"))
            if name in arrays:
                raise Error(shortened(f"{os.fspath(path)}: two arrays have the name {name!r}"))
            with archive.open(entry) as packed:
                arrays[name] = _read(packed, entry.file_size, os.fspath(path))
    return {name: array for name, array in arrays.items() if array.dtype.kind in "fiub"}


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write an .npz whose arrays may have any names (numpy.savez refuses `file`). Raises Error."""
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for name, array in arrays.items():
            entry_name = f"{_entry_name(name)}.npy"
            if (length := len(entry_name.encode())) > _LONGEST_NAME:
                raise Error(f"{os.fspath(path)}: an array's name has {length} bytes; an .npz allows {_LONGEST_NAME}")
            with archive.open(entry_name, "w", force_zip64=True) as entry:  # the size is not known yet and may exceed 2 GB
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


def distinct(names: Iterable[str]) -> list[str]:
    """Return the names, with a number added to repeated ones: a, b, a#2."""
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
    """Return the array's name of an entry, the inverse of _entry_name.

    A name that _entry_name would not have written (%41, from other programs) is unchanged.
    """
    name = unquote(entry_name, errors="surrogateescape")  # bytes that are not UTF-8 become surrogates, as in file names
    return name if _entry_name(name) == entry_name else entry_name


@contextmanager
def _damaged(message: str) -> Iterator[None]:
    """Turn any exception of NumPy and zipfile for damaged files (tokenize.TokenError, zlib.error, ...) into an Error."""
    try:
        yield
    except (Error, MemoryError):
        raise
    except Exception as error:
        raise Error(f"{message}: {error}") from error


def _read(file: IO[bytes], size: int, path: str) -> Array:
    """Return the array in a .npy of size bytes. Python objects are refused; text is read. path: for errors."""
    read_header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    version = npy.read_magic(file)
    if version not in read_header and version != (3, 0):
        raise ValueError(f"the format has the unknown version {version}")
    length = file.read(2 if version == (1, 0) else 4)
    if int.from_bytes(length, "little") > LONGEST_HEADER:
        raise ValueError(f"the header has {int.from_bytes(length, 'little')} bytes, more than {LONGEST_HEADER}")
    header = io.BytesIO(length + file.read(int.from_bytes(length, "little")))
    shape, fortran, dtype = read_header.get(version, npy.read_array_header_2_0)(header)  # 3.0: as 2.0, but UTF-8
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    count = math.prod(shape)
    if any(n < 0 for n in shape) or count * dtype.itemsize > size:
        raise ValueError(f"shape {shape} needs {count * dtype.itemsize} bytes, but only {size} are stored")
    limits.check(f"{path}: an array of shape {shape}", count * dtype.itemsize, "bytes")
    values: Array = np.ndarray(count, dtype, _bytes(file, count * dtype.itemsize))  # frombuffer refuses items of 0 bytes
    # Column-major values are the row-major ones of the transpose.
    return values.reshape(shape[::-1]).T if fortran else values.reshape(shape)


def _bytes(file: IO[bytes], count: int) -> bytearray:
    """Return the next count bytes. Raises EOFError if there are fewer."""
    data, filled = bytearray(count), 0
    while filled < count:
        part = file.read(min(count - filled, 1 << 20))  # in pieces, since a zip stream returns copies
        if not part:
            raise EOFError(f"{count} bytes of values are needed, but only {filled} are stored")
        data[filled : filled + len(part)] = part
        filled += len(part)
    return data


def checksum(*arrays: NDArray[Any]) -> int:
    """Return the CRC-32 of the arrays' concatenated bytes, regardless of their shapes and types."""
    value = 0
    for array in arrays:
        value = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, value)
    return value
