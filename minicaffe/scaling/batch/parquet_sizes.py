"""The sizes that a Parquet file declares in its footer and page headers, read before pyarrow allocates memory for them.

    file:                               row groups ... footer, 4 bytes of its length, "PAR1"
    chunk (a column of a row group):    [dictionary page] page page ...
    page:                               header, then `packed` bytes that unpack to `unpacked`

The footer has a chunk's total but not its pages. pyarrow's metadata of a chunk are not used: reading them aborts the process if
the chunk's statistics contradict the schema. The footer and the headers are in Thrift's compact protocol. A repeated field
counts as damage, because readers differ on it.
Source: apache/parquet-format, parquet.thrift; apache/thrift, thrift-compact-protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from minicaffe import limits
from minicaffe.errors import DataError
from minicaffe.formats.wire import WireError, varint

DEEPEST = 16
"""The deepest nesting of structs and lists; Parquet's have seven levels."""

_TRUE, _FALSE, _BYTE, I16, I32, I64, _DOUBLE, BINARY, LIST, _SET, _MAP, STRUCT = range(1, 13)

Fields = dict[int, tuple[int, Any]]
"""The fields of a struct: kind and value by number."""


def read_struct(content: bytes) -> tuple[Fields, int]:
    """Return the struct at the beginning of content, and its length. Raises DataError if it is damaged or truncated."""
    reader = _Reader(content)
    try:
        return reader.struct(DEEPEST), reader.at
    except (IndexError, WireError):
        raise DataError("its metadata are damaged") from None


def field(fields: Fields, number: int, kind: int) -> Any:
    """Return a field's value; None if it is missing or of another kind, which Thrift ignores."""
    found, value = fields.get(number, (kind, None))
    return value if found == kind else None


class _Reader:
    """A reader of Thrift's compact protocol. Raises IndexError or WireError for truncated or damaged content."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def struct(self, depth: int) -> Fields:
        fields: Fields = {}
        number = 0
        while head := self._byte():
            # The high bits are the step from the previous field's number. 0: the number follows.
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            kind = head & 15  # a boolean's kind is its value
            if number in fields:
                raise IndexError
            fields[number] = kind, None if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (I16, I32, I64):
            return self._zigzag()
        if kind == BINARY:
            return self._skip(self._varint())
        if not depth:
            raise IndexError
        if kind == STRUCT:
            return self.struct(depth - 1)
        if kind in (LIST, _SET):
            return self._list(depth - 1)
        if kind in (_TRUE, _FALSE, _BYTE, _DOUBLE):  # booleans in a list are bytes
            return self._skip(8 if kind == _DOUBLE else 1)
        raise IndexError  # Parquet has no maps

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        size = head >> 4 if head >> 4 < 15 else self._varint()  # 15: the size follows
        # every value takes a byte, so a false size ends in IndexError
        return [self._value(head & 15, depth) for _ in range(size)]

    def _skip(self, count: int) -> bytes:
        self.at += count
        if self.at > len(self.content):
            raise IndexError
        return self.content[self.at - count : self.at]

    def _byte(self) -> int:
        self.at += 1
        return self.content[self.at - 1]

    def _varint(self) -> int:
        found, self.at = varint(self.content, self.at, len(self.content))
        return found

    def _zigzag(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)  # 0, -1, 1, -2, ...


A_FOOTER_BYTE = 100
"""Bytes of memory per byte of the footer, at most."""
COPIES = 4
"""Copies of a page that pyarrow makes: the page, the dictionary, the column, Python's bytes."""
A_VALUE = 32
"""Bytes that pyarrow needs per value besides its content: a pointer and a length, an offset, levels."""
HEADER = (1 << 9, 1 << 16)
"""Bytes to read for a page header, and for one that is longer: it may hold the smallest and the largest value."""
DICTIONARY = 2
"""PageType.DICTIONARY_PAGE."""


class Chunk(NamedTuple):
    """A column of a row group: its unpacked bytes, its bytes in the file, the offset of its pages."""

    unpacked: int
    packed: int
    start: int


class RowGroup(NamedTuple):
    """The number of rows, and the chunks in the order of the schema's columns."""

    rows: int
    chunks: tuple[Chunk, ...]


class Page(NamedTuple):
    """The sizes that a page header declares. header: its own length."""

    kind: int
    unpacked: int
    packed: int
    values: int
    header: int


def read_footer(file: Any) -> tuple[RowGroup, ...]:
    """Return the row groups of a pyarrow.NativeFile.

    Raises DataError if it is damaged, LimitError if the footer needs more than limits.bytes of memory.
    """
    size = file.size()
    end = file.read_at(8, size - 8) if size > 12 else b""  # 12: "PAR1" at both ends, and the length
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or length > size - 12:
        raise DataError("it does not end as a Parquet file does")
    limits.check("the memory for its footer", A_FOOTER_BYTE * length, "bytes")
    footer = read_struct(file.read_at(length, size - 8 - length))[0]
    groups = tuple(RowGroup(_natural(item, 3, I64), tuple(map(_chunk, _structs(item, 1)))) for item in _structs(footer, 4))
    rows = sum(group.rows for group in groups)
    if rows != field(footer, 3, I64):
        raise DataError("the numbers of rows in its footer do not agree")
    if rows > size:
        raise DataError(f"{rows:,} rows in {size:,} bytes")  # images take more than a byte each
    if sum(chunk.packed for group in groups for chunk in group.chunks) > size:
        raise DataError("its columns overlap")
    return groups


def check_pages(file: Any, chunk: Chunk, name: str) -> None:
    """Raise LimitError if a page and its dictionary need more than limits.bytes, DataError for damaged headers."""
    dictionary = 0
    for page in pages(file, chunk):
        takes = COPIES * page.unpacked + A_VALUE * page.values
        limits.check(f"the memory for a page of {name}", takes + dictionary, "bytes")
        # The dictionary stays in memory while the chunk's pages are read.
        dictionary += takes if page.kind == DICTIONARY else 0


def pages(file: Any, chunk: Chunk) -> Iterator[Page]:
    """Yield the pages of a chunk. Raises DataError."""
    start, end = chunk.start, chunk.start + chunk.packed
    while start < end:
        try:
            page = _page(file.read_at(min(HEADER[0], end - start), start))
        except DataError:
            page = _page(file.read_at(min(HEADER[1], end - start), start))
        yield page
        start += page.header + page.packed


def _page(content: bytes) -> Page:
    """Return the page whose header is at the beginning of content."""
    fields, length = read_struct(content)
    # 5, 7, 8: data page, dictionary page, data page v2.
    of_kinds = [found for number in (5, 7, 8) if (found := field(fields, number, STRUCT))]
    kind, unpacked, packed = (_natural(fields, number, I32) for number in (1, 2, 3))
    return Page(kind, unpacked, packed, max((_natural(found, 1, I32) for found in of_kinds), default=0), length)


def _chunk(fields: Fields) -> Chunk:
    metadata = field(fields, 3, STRUCT) or {}
    unpacked, packed, start = (_natural(metadata, number, I64) for number in (6, 7, 9))
    dictionary = field(metadata, 11, I64) or 0
    # some writers set 0 where there is none
    return Chunk(unpacked, packed, dictionary if 0 < dictionary < start else start)


def _structs(fields: Fields, number: int) -> list[Fields]:
    """Return the structs in a list. Raises DataError."""
    found = field(fields, number, LIST)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise DataError("its metadata are damaged")
    return found


def _natural(fields: Fields, number: int, kind: int) -> int:
    """Return a non-negative number. Raises DataError."""
    found = field(fields, number, kind)
    if not isinstance(found, int) or found < 0:
        raise DataError("its metadata are damaged")
    return found
