"""Protobuf text format into messages, through their descriptors, keeping the place of every field.

A recursive descent over tokens.Tokens. Unknown fields are skipped whole and remembered (`unknown`); what to say of
them, and the hints that know Caffe, come from hints.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from . import hints
from .errors import PrototxtError
from .tokens import END, NAME, NUMBER, PUNCTUATION, STRING, Text, Tokens, unquote

MAX_DEPTH = 100
_LARGEST_FLOAT = 3.4028234663852886e38
_INTEGER = re.compile(r"0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*")
_FLOAT = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?")
_BOOLS = {"true": True, "True": True, "t": True, "1": True, "false": False, "False": False, "f": False, "0": False}
_CLOSER = {"{": "}", "<": ">", "[": "]"}
_INTEGER_RANGE = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


class _Field:
    """What the parser needs of one field, looked up once."""

    __slots__ = ("bytes", "cpp_type", "enum", "message", "name", "owner", "range", "repeated", "single")

    def __init__(self, descriptor: FieldDescriptor, repeated: bool) -> None:
        self.name, self.owner = descriptor.name, descriptor.containing_type.name
        self.repeated = repeated
        self.cpp_type = descriptor.cpp_type
        self.single = descriptor.cpp_type == FieldDescriptor.CPPTYPE_FLOAT
        self.bytes = descriptor.type == FieldDescriptor.TYPE_BYTES
        self.range = _INTEGER_RANGE.get(descriptor.cpp_type, (0, 0))
        self.message = descriptor.message_type
        self.enum = {v.name: v.number for v in descriptor.enum_type.values} if descriptor.enum_type else {}


class _Schema:
    """The fields of one message type, by name, and the names of the required ones."""

    def __init__(self, descriptor: Descriptor) -> None:
        proto = descriptor_pb2.DescriptorProto()
        descriptor.CopyToProto(proto)
        label = descriptor_pb2.FieldDescriptorProto
        repeated = {f.name for f in proto.field if f.label == label.LABEL_REPEATED}
        self.name = descriptor.name
        self.fields = {f.name: _Field(f, f.name in repeated) for f in descriptor.fields}
        self.required = [f.name for f in proto.field if f.label == label.LABEL_REQUIRED]


@lru_cache(maxsize=None)
def _schema(descriptor: Descriptor) -> _Schema:
    return _Schema(descriptor)


@dataclass
class Block:
    """One `name { ... }` (or the whole text): where it was opened, and the offsets of the fields in it by dotted path."""

    name: str
    start: int
    closer: str = ""
    prefix: str = ""
    offsets: dict[str, int] = field(default_factory=dict)
    depth: int = 0


class Parser:
    """Reads one text into one message. After parse: `root` (the text's Block), `layers` (one Block for each top-level
    layer or layers, in order), `unknown` ((message type, field) -> offsets of the skipped ones)."""

    def __init__(self, text: Text, *, strict: bool = False) -> None:
        self.text, self.strict = text, strict
        tokens = Tokens(text)
        self.kinds, self.words, self.starts = tokens.kinds, tokens.words, tokens.starts
        self.at = 0
        self.root = Block("", 0)
        self.layers: list[Block] = []
        self.unknown: dict[tuple[str, str], list[int]] = {}
        self._readers: dict[int, Callable[[_Field], Any]] = {
            FieldDescriptor.CPPTYPE_STRING: self._string,
            FieldDescriptor.CPPTYPE_ENUM: self._enum,
            FieldDescriptor.CPPTYPE_BOOL: self._bool,
            FieldDescriptor.CPPTYPE_FLOAT: self._float,
            FieldDescriptor.CPPTYPE_DOUBLE: self._float,
        }

    def parse(self, message: Message) -> None:
        """Fill message. Raises PrototxtError."""
        self._fields(message, self.root)

    def error(self, message: str, token: int | None = None, hint: str = "") -> PrototxtError:
        """An error at a token (the present one by default)."""
        return self.text.error(message, self.starts[self.at if token is None else token], hint)

    def _fields(self, message: Message, block: Block) -> None:
        """Read fields up to the block's end, that included."""
        schema = _schema(message.DESCRIPTOR)
        kinds, words = self.kinds, self.words
        seen: dict[str, int] = {}
        while True:
            word = words[self.at]
            if kinds[self.at] != NAME:
                if word == block.closer:
                    break
                self._no_name(schema, block)
                continue
            known = schema.fields.get(word)
            if known is None:
                self._unknown(schema, block)
                continue
            if not known.repeated:
                if word in seen:
                    raise self._twice(word, seen[word])
                seen[word] = self.at
            self._field(message, known, block)
            if words[self.at] in (",", ";"):
                self.at += 1
        for name in schema.required:
            if name not in seen:
                raise self.text.error(f"{block.name or schema.name} has no {name}, which is required", block.start)
        self.at += kinds[self.at] != END

    def _field(self, message: Message, known: _Field, block: Block) -> None:
        """Read one field of a known name: its value, or its list of values."""
        start = self.starts[self.at]
        self.at += 1
        colon = self.words[self.at] == ":"
        self.at += colon
        if not colon and known.message is None:
            raise self._no_colon(known)
        if self.words[self.at] != "[":
            self._value(message, known, block, start)
            return
        if not known.repeated:
            raise self.error(f"{known.name} takes one value, not a list")
        opened = self.at
        self.at += 1
        while self.words[self.at] != "]":
            self._value(message, known, block, self.starts[self.at])
            if self.words[self.at] == "," and self.words[self.at + 1] != "]":
                self.at += 1
            elif self.words[self.at] != "]":
                raise self.error(f'"," or "]" expected in the list of {known.name}', hint=self._opened(opened))
        self.at += 1

    def _value(self, message: Message, known: _Field, block: Block, start: int) -> None:
        """Read one value into the message, and remember its place."""
        path = block.prefix + known.name
        if known.repeated:
            values = getattr(message, known.name)
            path = f"{path}[{len(values)}]"
        if known.message is not None:
            block.offsets[path] = start
            inner = self._open(known, block, start, path)
            if known.repeated:
                child = values.add()
            else:
                child = getattr(message, known.name)
                child.SetInParent()
            self._fields(child, inner)
            return
        value = self._readers.get(known.cpp_type, self._integer)(known)
        block.offsets[path] = start
        if known.repeated:
            values.append(value)
        else:
            setattr(message, known.name, value)

    def _open(self, known: _Field, block: Block, start: int, path: str) -> Block:
        """Step into the block that stands here."""
        word = self.words[self.at]
        if word not in ("{", "<"):
            raise self.error(
                f"{known.name} takes a block {{ ... }}, got {self._shown()}", hint=hints.block_expected(known.owner, known.name)
            )
        if block.depth >= MAX_DEPTH:
            raise self.error(f"blocks are nested more than {MAX_DEPTH} deep")
        self.at += 1
        if known.owner == "NetParameter" and block is self.root and known.name in ("layer", "layers"):
            layer = Block(known.name, start, _CLOSER[word], depth=block.depth + 1)
            self.layers.append(layer)
            return layer
        return Block(known.name, start, _CLOSER[word], path + ".", block.offsets, block.depth + 1)

    # Values.

    def _string(self, known: _Field) -> str | bytes:
        first = self.at
        if self.kinds[first] != STRING:
            hint = hints.string_expected(known.owner, known.name, self.words[first])
            raise self.error(f"{known.name} takes a quoted string, got {self._shown()}", hint=hint)
        value = b""
        while self.kinds[self.at] == STRING:
            try:
                value += unquote(self.words[self.at], known.name)
            except ValueError as error:
                raise self.error(str(error)) from None
            self.at += 1
        if known.bytes:
            return value
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise self.error(f"{known.name} is not UTF-8 text", first) from None

    def _enum(self, known: _Field) -> int:
        word = self.words[self.at]
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
            raise self.error(
                f"{known.name} takes a bare word, got the quoted {word}",
                hint=hints.quoted_enum(known.owner, known.name, word[1:-1], known.enum),
            )
        if self.kinds[self.at] != NAME:
            raise self.error(f"{known.name} takes one of its names, got {self._shown()}", hint=hints.enum_values(known.enum))
        raise self.error(f"{known.name} has no value {word}", hint=hints.enum_nearest(word, known.enum))

    def _bool(self, known: _Field) -> bool:
        value = _BOOLS.get(self.words[self.at])
        if value is None:
            raise self.error(f"{known.name} takes true or false, got {self._shown()}")
        self.at += 1
        return value

    def _integer(self, known: _Field) -> int:
        return self._whole(known, *known.range)

    def _whole(self, known: _Field, least: int, most: int) -> int:
        first = self.at
        negative = self.words[first] == "-"
        self.at += negative
        word = self.words[self.at]
        if self.kinds[self.at] != NUMBER or not _INTEGER.fullmatch(word):
            raise self.error(f"{known.name} takes a whole number, got {self._shown()}")
        if len(word) > 64:
            raise self.error(f"{known.name}: a number of {len(word)} digits is out of range", first)
        octal = len(word) > 1 and word[0] == "0" and word[1] not in "xX"
        number = int(word, 8) if octal else int(word, 0)
        number = -number if negative else number
        if not least <= number <= most:
            raise self.error(f"{known.name}: {number} is out of range ({least} to {most})", first)
        self.at += 1
        return number

    def _float(self, known: _Field) -> float:
        negative = self.words[self.at] == "-"
        self.at += negative
        word = self.words[self.at]
        if self.kinds[self.at] == NUMBER and _FLOAT.fullmatch(word):
            number = float(word.rstrip("fF"))
        elif self.kinds[self.at] == NUMBER and _INTEGER.fullmatch(word) and len(word) <= 64:
            number = float(int(word, 16))
        elif self.kinds[self.at] == NAME and word.lower() in ("inf", "infinity", "inff", "nan", "nanf"):
            number = float(word.lower().rstrip("f") if word.lower() in ("inff", "nanf") else word)
        else:
            raise self.error(f"{known.name} takes a number, got {self._shown()}")
        if known.single and abs(number) > _LARGEST_FLOAT:
            number = float("inf")
        self.at += 1
        return -number if negative else number

    # What is not as it should be.

    def _shown(self) -> str:
        """The present token, for a message."""
        kind, word = self.kinds[self.at], self.words[self.at]
        if kind == END:
            return "the end of the file"
        word = word if len(word) <= 40 else word[:40] + "..."
        return f'"{word}"' if kind == PUNCTUATION else word

    def _opened(self, token: int) -> str:
        return f"opened at line {self.text.line(self.starts[token])}"

    def _twice(self, name: str, first: int) -> PrototxtError:
        line, again = self.text.line(self.starts[first]), self.text.line(self.starts[self.at])
        return self.error(
            f"{name} is given twice, at line {line} and at line {again}", hint=f"{name} takes one value; delete one"
        )

    def _no_colon(self, known: _Field) -> PrototxtError:
        if self.words[self.at] in ("{", "<"):
            return self.error(f"{known.name} takes a value, not a block", hint=hints.value_expected(known.owner, known.name))
        return self.error(f'":" expected after {known.name}, got {self._shown()}', hint=f"write {known.name}: value")

    def _no_name(self, schema: _Schema, block: Block) -> None:
        """Something other than a field's name: an extension `[name]` is skipped, the rest is an error."""
        word = self.words[self.at]
        if self.kinds[self.at] == END:
            hint = (
                f"{block.name} is opened here and nowhere closed; the file ends at line {self.text.line(self.starts[self.at])}"
            )
            raise self.text.error(f'"{block.closer}" of {block.name} is missing', block.start, hint)
        if word in ("}", ">"):
            if not block.closer:
                raise self.error(f'"{word}" closes nothing', hint="a block above is closed once too often")
            hint = f"{block.name} is opened at line {self.text.line(block.start)}"
            raise self.error(f'"{block.closer}" expected to close {block.name}, got "{word}"', hint=hint)
        if word == "[":
            first = self.at
            self._skip_brackets()
            self._skip_value("".join(self.words[first : self.at]), first, schema)
            return
        raise self.error(f"a field name expected, got {self._shown()}")

    def _unknown(self, schema: _Schema, block: Block) -> None:
        """A name that the message does not have: skip the field, or say what must be wrong."""
        name, token = self.words[self.at], self.at
        if name in ("layer", "layers") and block.closer and self.words[token + 1] in ("{", ":"):
            line = self.text.line(block.start)
            raise self.error(
                f'{name} inside {block.name}: a "}}" is missing above', hint=f"{block.name} is opened at line {line}"
            )
        swapped = hints.swapped_file(schema.name, name)
        if swapped:
            raise self.error(f"{name} is no field of a {schema.name}", hint=swapped)
        self.at += 1
        self._skip_value(name, token, schema)

    def _skip_value(self, name: str, token: int, schema: _Schema) -> None:
        """Step over `: value`, `{ ... }` or a list, and remember what was skipped."""
        if self.strict:
            raise self.error(hints.unknown_field(schema.name, name, list(schema.fields)), token)
        colon = self.words[self.at] == ":"
        self.at += colon
        word = self.words[self.at]
        if word in _CLOSER:
            self._skip_brackets()
        elif not colon:
            raise self.error(f'":" or "{{" expected after {name}, got {self._shown()}')
        elif self.kinds[self.at] == STRING:
            while self.kinds[self.at] == STRING:
                self.at += 1
        else:
            self.at += word == "-"
            if self.kinds[self.at] not in (NAME, NUMBER):
                raise self.error(f"a value expected for {name}, got {self._shown()}")
            self.at += 1
        if self.words[self.at] in (",", ";"):
            self.at += 1
        self.unknown.setdefault((schema.name, name), []).append(self.starts[token])

    def _skip_brackets(self) -> None:
        """Step over a bracket and all up to the one that closes it."""
        opened: list[int] = []
        while True:
            word = self.words[self.at]
            if word in _CLOSER:
                opened.append(self.at)
                if len(opened) > MAX_DEPTH:
                    raise self.error(f"blocks are nested more than {MAX_DEPTH} deep")
            elif word in ("}", ">", "]"):
                if word != _CLOSER[self.words[opened[-1]]]:
                    raise self.error(
                        f'"{_CLOSER[self.words[opened[-1]]]}" expected, got "{word}"', hint=self._opened(opened[-1])
                    )
                opened.pop()
            elif self.kinds[self.at] == END:
                raise self.error(
                    f'"{_CLOSER[self.words[opened[-1]]]}" is missing', opened[-1], "opened here and nowhere closed"
                )
            self.at += 1
            if not opened:
                return
