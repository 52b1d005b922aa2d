"""Thrift's compact protocol, the format of a Parquet file's footer and page headers.

Source: apache/thrift, thrift-compact-protocol.md. A repeated field counts as damage, because readers differ on it.
"""

from __future__ import annotations

from typing import Any

from minicaffe.errors import DataError
from minicaffe.formats.wire import WireError, varint

DEEPEST = 16
"""The deepest nesting of structs and lists; Parquet's have seven levels."""

_TRUE, _FALSE, _BYTE, I16, I32, I64, _DOUBLE, BINARY, LIST, _SET, _MAP, STRUCT = range(1, 13)

Fields = dict[int, tuple[int, Any]]
"""The fields of a struct: kind and value by number."""


def read_struct(content: bytes) -> tuple[Fields, int]:
    """The struct at the beginning of content, and its length. Raises DataError if it is damaged or truncated."""
    reader = _Reader(content)
    try:
        return reader.struct(DEEPEST), reader.at
    except (IndexError, WireError):
        raise DataError("its metadata are damaged") from None


def field(fields: Fields, number: int, kind: int) -> Any:
    """A field's value; None if it is missing or of another kind, which Thrift ignores."""
    found, value = fields.get(number, (kind, None))
    return value if found == kind else None


class _Reader:
    """Raises IndexError or WireError for truncated or damaged content."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0

    def struct(self, depth: int) -> Fields:
        fields: Fields = {}
        number = 0
        while head := self._byte():
            # the high bits are the step from the field before; 0: written out
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            kind = head & 15  # of booleans the kind is the value
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
        if kind in (_TRUE, _FALSE, _BYTE, _DOUBLE):  # a list's true and false are bytes
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
