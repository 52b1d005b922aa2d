"""Protobuf's wire format, walked in place, without copies or a size limit.

    message = (tag, value)*    tag = number << 3 | kind    kind: 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes

Source: protobuf's encoding document. Groups (kinds 3 and 4), which no Caffe file uses, are refused.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Buffer = bytes | mmap.mmap

VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5
MESSAGE_BYTES = 2**31 - 1
"""Most bytes of a message that protobuf reads or writes."""
WIDTHS = {EIGHT_BYTES: 8, FOUR_BYTES: 4}


class WireError(Exception):
    """Bytes that are not a valid message: the offset, and what is wrong. within() adds the enclosing places."""

    def __init__(self, offset: int, message: str) -> None:
        self.offset, self.message = offset, message
        super().__init__(offset, message)

    def within(self, place: str) -> WireError:
        return WireError(self.offset, f"{place}: {self.message}")


class Field(NamedTuple):
    """One field. value: the varint, or for fixed widths the number of consecutive fields with this tag, stride bytes apart.

    whole: False for a length-delimited field that is cut off; [start, end) is the part that is present.
    """

    number: int
    kind: int
    offset: int
    start: int
    end: int
    value: int = 0
    stride: int = 0
    whole: bool = True


def varint(buffer: Buffer | memoryview, at: int, end: int) -> tuple[int, int]:
    """Return the unsigned integer at `at`, and the offset after it."""
    value = 0
    for i in range(10):
        if at + i >= end:
            raise WireError(at, "a number is cut off")
        byte = buffer[at + i]
        value |= (byte & 127) << 7 * i
        if byte < 128:
            return value & (2**64 - 1), at + i + 1  # like protobuf, drops the tenth byte's surplus bits
    raise WireError(at, "a number of more than 10 bytes")


def signed(value: int) -> int:
    """Return a varint read as an int64."""
    return value - 2**64 if value >= 2**63 else value


def fields(buffer: Buffer, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of the message at [start, end).

    A field that declares more bytes than are left is yielded cut off, so that an error inside it can name the place; the
    WireError is raised when the caller asks for the next field.
    """
    at = start
    while at < end:
        offset = at
        tag, at = varint(buffer, at, end)
        number, kind = tag >> 3, tag & 7
        if number == 0 or number >= 2**29:
            raise WireError(offset, f"a field cannot have the number {number}")
        if kind == VARINT:
            value, after = varint(buffer, at, end)
            yield Field(number, kind, offset, at, after, value)
            at = after
        elif kind == BYTES:
            length, at = varint(buffer, at, end)
            whole = length <= end - at
            yield Field(number, kind, offset, at, min(at + length, end), whole=whole)
            if not whole:
                raise WireError(offset, f"field {number} declares {length} bytes, but {end - at} are left")
            at += length
        elif kind in WIDTHS:
            if WIDTHS[kind] > end - at:
                raise WireError(offset, f"field {number} needs {WIDTHS[kind]} bytes, but {end - at} are left")
            stride = at - offset + WIDTHS[kind]
            count = _run(buffer, offset, end, stride) if tag < 128 else 1  # unpacked floats are read as one strided array
            yield Field(number, kind, offset, at, at + (count - 1) * stride + WIDTHS[kind], count, stride)
            at = offset + count * stride
        else:
            raise WireError(offset, f"field {number} has wire type {kind}, which no Caffe file uses")


def _run(buffer: Buffer, offset: int, end: int, stride: int) -> int:
    """Return the number of consecutive fields with the one-byte tag at offset."""
    most, count, window = (end - offset) // stride, 1, 16
    tag = buffer[offset]
    while count < most:
        width = min(window, most - count)
        tags = np.frombuffer(buffer, np.uint8, width * stride, offset + count * stride)[::stride]
        same = tags == tag
        if not same.all():
            return count + int(same.argmin())
        count, window = count + width, window * 2  # short runs cost little, long ones few steps
    return count


def numbers(buffer: Buffer, field: Field, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the values of a repeated fixed-width field, packed or not, as a view of the buffer. Raises WireError."""
    if field.kind == BYTES:
        count, rest = divmod(field.end - field.start, dtype.itemsize)
        if rest and field.whole:  # fields() reports a truncated field better
            raise WireError(field.offset, f"{field.end - field.start} bytes are not a whole number of {dtype.name} values")
        return np.frombuffer(buffer, dtype, count, field.start) if count else np.zeros(0, dtype)
    if WIDTHS.get(field.kind) != dtype.itemsize:
        raise WireError(field.offset, f"field {field.number} has wire type {field.kind}, which cannot hold {dtype.name}")
    values: NDArray[Any] = np.ndarray((field.value,), dtype, buffer, field.start, (field.stride,))
    return values


def encoded(value: int) -> bytes:
    """Return a non-negative integer as a varint."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def header(number: int, length: int) -> bytes:
    """Return the bytes before the content of a length-delimited field."""
    return encoded(number << 3 | BYTES) + encoded(length)


def delimited(number: int, content: bytes) -> bytes:
    """Return a length-delimited field."""
    return header(number, len(content)) + content
