"""Single values of protobuf's text format: strings, enums, booleans and numbers."""

from __future__ import annotations

import re
from collections.abc import Callable

from google.protobuf.descriptor import FieldDescriptor

from minicaffe.errors import PrototxtError

from . import hints
from .tokens import AHEAD, END, NAME, NUMBER, PUNCTUATION, STRING, Text, Tokens, unquote

_LARGEST_FLOAT = 3.4028234663852886e38
_ROUNDS_TO_INFINITY = 3.4028235677973366e38  # half a step above the largest float32
_INTEGER = re.compile(r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*")
_FLOAT = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?")
_BOOLS = {"true": True, "True": True, "t": True, "1": True, "false": False, "False": False, "f": False, "0": False}
_INTEGER_RANGE = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


ONE_FOR_EACH_AXIS = {"kernel_size": "kernel_sizes", "stride": "strides", "pad": "pads"}
"""Fields of PoolingParameter with one value, and the repeated fields that hold several values, as in naibaf7's Caffe.

A prototxt has the first name for both."""


class Field:
    """The facts of a field that the parser needs, looked up once."""

    __slots__ = ("bytes", "cpp_type", "enum", "message", "name", "owner", "range", "repeated", "single")

    def __init__(self, descriptor: FieldDescriptor, owner: str, repeated: bool) -> None:
        self.name, self.owner = descriptor.name, owner
        self.repeated = repeated
        self.cpp_type = descriptor.cpp_type
        self.single = descriptor.cpp_type == FieldDescriptor.CPPTYPE_FLOAT
        self.bytes = descriptor.type == FieldDescriptor.TYPE_BYTES
        self.range = _INTEGER_RANGE.get(descriptor.cpp_type, (0, 0))
        self.message = descriptor.message_type
        self.enum = {v.name: v.number for v in descriptor.enum_type.values} if descriptor.enum_type else {}


def is_repeated(descriptor: FieldDescriptor) -> bool:
    """Return whether the field is repeated. Before version 6, protobuf has only its label."""
    return descriptor.is_repeated if hasattr(descriptor, "is_repeated") else descriptor.label == 3  # type: ignore[attr-defined]


def is_required(descriptor: FieldDescriptor) -> bool:
    return descriptor.is_required if hasattr(descriptor, "is_required") else descriptor.label == 2  # type: ignore[attr-defined]


class ValueReader:
    """A reader of fields' values at a cursor over a text's tokens. words[at] is the current token."""

    def __init__(self, text: Text) -> None:
        self.text = text
        tokens = Tokens(text)
        self.kinds, self.words, self.starts, self._read_on = tokens.kinds, tokens.words, tokens.starts, tokens.read_on
        self.at = 0
        self._readers: dict[int, Callable[[Field], str | bytes | float]] = {
            FieldDescriptor.CPPTYPE_STRING: self._string,
            FieldDescriptor.CPPTYPE_ENUM: self._enum,
            FieldDescriptor.CPPTYPE_BOOL: self._bool,
            FieldDescriptor.CPPTYPE_FLOAT: self._float,
            FieldDescriptor.CPPTYPE_DOUBLE: self._float,
        }

    def look_ahead(self) -> None:
        """Read the tokens that the parser needs until the next call. Raises PrototxtError and LimitError."""
        if self.at + AHEAD > len(self.words):
            self._read_on()

    def value(self, known: Field) -> str | bytes | float:
        """Return the value of a field that is not a block. Raises PrototxtError."""
        return self._readers.get(known.cpp_type, self._integer)(known)

    def error(self, message: str, token: int | None = None, hint: str = "") -> PrototxtError:
        """Return an error at a token (default: the current one)."""
        return self.text.error(message, self.starts[self.at if token is None else token], hint)

    def shown(self) -> str:
        """Return the current token for a message."""
        kind, word = self.kinds[self.at], self.words[self.at]
        if kind == END:
            return "the end of the file"
        word = word if len(word) <= 40 else word[:40] + "..."
        return f'"{word}"' if kind == PUNCTUATION else word

    def _string(self, known: Field) -> str | bytes:
        first = self.at
        if self.kinds[first] != STRING:
            hint = hints.string_expected(known.owner, known.name, self.words[first])
            raise self.error(f"{known.name} takes a quoted string, got {self.shown()}", hint=hint)
        parts: list[bytes] = []
        while self.kinds[self.at] == STRING:
            try:
                parts.append(unquote(self.words[self.at], known.name))
            except ValueError as error:
                raise self.error(str(error)) from None
            self.at += 1
            self.look_ahead()
        value = b"".join(parts)
        if known.bytes:
            return value
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise self.error(f"{known.name} is not UTF-8 text", first) from None

    def _enum(self, known: Field) -> int:
        word = self.words[self.at]
        if known.name == "engine":
            return self._engine(known)
        if self.kinds[self.at] == NAME and word in known.enum:
            self.at += 1
            return known.enum[word]
        if self.kinds[self.at] == NUMBER or word == "-":
            first = self.at
            number = self._whole(known, -(2**31), 2**31 - 1)
            if number in known.enum.values():
                return number
            raise self.error(f"{known.name} has no value {number}", first, hints.enum_values(known.enum))
        if self.kinds[self.at] == STRING:
            hint = hints.quoted_enum(known.owner, known.name, word[1:-1], known.enum)
            raise self.error(f"{known.name} takes a bare word, got the quoted {word}", hint=hint)
        if self.kinds[self.at] != NAME:
            raise self.error(f"{known.name} takes one of its names, got {self.shown()}", hint=hints.enum_values(known.enum))
        hint = hints.enum_nearest(known.owner, known.name, word, known.enum)
        raise self.error(f"{known.name} has no value {word}", hint=hint)

    def _engine(self, known: Field) -> int:
        """Return the number of any fork's engine (CAFFE, MKL2017, "MKLDNN", 3). It selects code and changes no number."""
        if self.kinds[self.at] not in (NAME, NUMBER, STRING):
            raise self.error(f"{known.name} takes one of its names, got {self.shown()}", hint=hints.enum_values(known.enum))
        if self.kinds[self.at] == STRING:
            word = str(self._string(known))
        else:
            word = self.words[self.at]
            self.at += 1
        return known.enum.get(word, 0)

    def _bool(self, known: Field) -> bool:
        value = _BOOLS.get(self.words[self.at])
        if value is None:
            raise self.error(f"{known.name} takes true or false, got {self.shown()}")
        self.at += 1
        return value

    def _integer(self, known: Field) -> int:
        return self._whole(known, *known.range)

    def _whole(self, known: Field, least: int, most: int) -> int:
        first = self.at
        negative = self.words[first] == "-"
        self.at += negative
        word = self.words[self.at]
        if self.kinds[self.at] != NUMBER or not _INTEGER.fullmatch(word):
            hint = hints.number_expected(word) if self.kinds[self.at] == NAME else ""
            raise self.error(f"{known.name} takes a whole number, got {self.shown()}", hint=hint)
        if len(word) > 64:  # int() of many digits takes quadratic time
            raise self.error(f"{known.name}: a number of {len(word)} digits is out of range", first)
        octal = len(word) > 1 and word[0] == "0" and word[1] not in "xX"
        number = int(word, 8) if octal else int(word, 0)  # C's 017, which int(word, 0) refuses
        number = -number if negative else number
        if not least <= number <= most:
            raise self.error(f"{known.name}: {number} is out of range ({least} to {most})", first)
        self.at += 1
        return number

    def _float(self, known: Field) -> float:
        negative = self.words[self.at] == "-"
        self.at += negative
        word = self.words[self.at]
        if self.kinds[self.at] == NUMBER and _FLOAT.fullmatch(word):
            number = float(word.rstrip("fF"))
        elif self.kinds[self.at] == NUMBER and _INTEGER.fullmatch(word) and len(word) <= 64:
            number = float(int(word, 16))  # only 0x... comes here: _FLOAT takes 017, as 17
        elif self.kinds[self.at] == NAME and word.lower() in ("inf", "infinity", "inff", "nan", "nanf"):
            number = float(word.lower().rstrip("f") if word.lower() in ("inff", "nanf") else word)
        else:
            hint = hints.number_expected(word) if self.kinds[self.at] == NAME else ""
            raise self.error(f"{known.name} takes a number, got {self.shown()}", hint=hint)
        if known.single and abs(number) > _LARGEST_FLOAT:
            number = float("inf") if number >= _ROUNDS_TO_INFINITY else _LARGEST_FLOAT  # as C rounds a double to float
        self.at += 1
        return -number if negative else number
