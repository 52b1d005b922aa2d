"""A parser of protobuf's text format that keeps the place of every field.

It descends recursively over tokens.Tokens. Unknown fields are skipped and recorded. Hints are in hints.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from minicaffe.errors import PrototxtError

from . import hints
from .tokens import END, NAME, NUMBER, STRING, Text, check_count
from .values import ONE_FOR_EACH_AXIS, Field, ValueReader, is_repeated, is_required

MAX_DEPTH = 100  # far from Python's recursion limit
MOST_UNKNOWN = 10
"""Most unknown fields of a text, for each layer that limits.layers allows."""
_ENGINE = "engine"
"""In any message: it selects code, and changes no number."""
_CLOSER = {"{": "}", "<": ">", "[": "]"}


class Schema:
    """The fields of a message type by name, and the names of the required ones."""

    def __init__(self, descriptor: Descriptor) -> None:
        self.name = descriptor.name
        self.fields = {f.name: Field(f, descriptor.name, is_repeated(f)) for f in descriptor.fields}
        self.required = [f.name for f in descriptor.fields if is_required(f)]
        several = ONE_FOR_EACH_AXIS if descriptor.name == "PoolingParameter" else {}
        self.several = {one: self.fields[name] for one, name in several.items()}


schema_of = cache(Schema)


@dataclass(frozen=True)
class Skipped:
    """An unknown field: the message type that lacks it, and the content of source.SkippedField."""

    message: str
    name: str
    path: str
    value: str
    offset: int


@dataclass
class Block:
    """One `name { ... }`, or the whole text: its start, the offsets of its fields by dotted path, and its unknown fields."""

    name: str
    start: int
    closer: str = ""
    prefix: str = ""
    offsets: dict[str, int] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    depth: int = 0


class Parser(ValueReader):
    """A parser of a text into a message.

    Results: `root`, the text's Block; `layers`, one Block per top-level layer or layers.
    """

    def __init__(self, text: Text, *, strict: bool = False) -> None:
        super().__init__(text)
        self.strict = strict
        self.root = Block("", 0)
        self.layers: list[Block] = []
        self._unknown_count = 0

    def parse(self, message: Message) -> None:
        """Fill message. Raises PrototxtError."""
        self._fields(message, self.root)

    def _fields(self, message: Message, block: Block) -> None:
        """Read fields up to and including the block's end."""
        schema = schema_of(message.DESCRIPTOR)
        kinds, words = self.kinds, self.words
        seen: dict[str, int] = {}
        while True:
            self.look_ahead()
            word = words[self.at]
            if kinds[self.at] != NAME:
                if word == block.closer:  # the text's closer "" is END's word
                    break
                self._no_name(schema, block)
                continue
            known = schema.fields.get(word)
            if known is None:
                self._unknown(schema, block)
                continue
            if word in schema.several and (word in seen or "[" in words[self.at + 1 : self.at + 3]):
                known = self._one_for_each_axis(message, word, schema.several[word])
            if not known.repeated and word in seen:
                line, again = self.text.line(self.starts[seen[word]]), self.text.line(self.starts[self.at])
                hint = hints.given_twice(schema.name, word)
                raise self.error(f"{word} is given twice, at line {line} and at line {again}", hint=hint)
            seen[word] = self.at
            self._field(message, known, block)
            if words[self.at] in (",", ";"):
                self.at += 1
        for name in schema.required:
            if name not in seen:
                raise self.text.error(f"{block.name or schema.name} has no {name}, which is required", block.start)
        self.at += kinds[self.at] != END  # END stays under the cursor, so no loop runs past it

    @staticmethod
    def _one_for_each_axis(message: Message, word: str, several: Field) -> Field:
        """Move a value that is already read to the repeated field `several`, and return this field."""
        if message.HasField(word):
            getattr(message, several.name).append(getattr(message, word))
            message.ClearField(word)
        return several

    def _field(self, message: Message, known: Field, block: Block) -> None:
        """Read a known field: its value or list of values."""
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
            self.look_ahead()
        self.at += 1

    def _value(self, message: Message, known: Field, block: Block, start: int) -> None:
        """Read one value into the message and record its place."""
        path = block.prefix + known.name
        if known.repeated:
            values = getattr(message, known.name)
            path = f"{path}[{len(values)}]"  # the index that the value is about to get
        if known.message is not None:
            block.offsets[path] = start
            inner = self._open(known, block, start, path)
            if known.repeated:
                child = values.add()
            else:
                child = getattr(message, known.name)
                child.SetInParent()  # an empty block counts as given
            self._fields(child, inner)
            return
        value = self.value(known)
        block.offsets[path] = start
        if known.repeated:
            values.append(value)
        else:
            setattr(message, known.name, value)

    def _open(self, known: Field, block: Block, start: int, path: str) -> Block:
        """Step into the block at the cursor and return it."""
        word = self.words[self.at]
        if word not in ("{", "<"):
            hint = hints.block_expected(known.owner, known.name)
            raise self.error(f"{known.name} takes a block {{ ... }}, got {self.shown()}", hint=hint)
        if block.depth >= MAX_DEPTH:
            raise self.error(f"blocks are nested more than {MAX_DEPTH} deep")
        self.at += 1
        if known.owner == "NetParameter" and block is self.root and known.name in ("layer", "layers"):
            layer = Block(known.name, start, _CLOSER[word], depth=block.depth + 1)  # paths in a layer are relative to it
            self.layers.append(layer)
            return layer
        # The outermost block of a layer records the fields of inner ones.
        return Block(known.name, start, _CLOSER[word], path + ".", block.offsets, block.skipped, block.depth + 1)

    # Errors and unknown fields.

    def _opened(self, token: int) -> str:
        return f"opened at line {self.text.line(self.starts[token])}"

    def _no_colon(self, known: Field) -> PrototxtError:
        if self.words[self.at] in ("{", "<"):
            return self.error(f"{known.name} takes a value, not a block", hint=hints.value_expected(known.owner, known.name))
        value = self.words[self.at] if self.kinds[self.at] in (NUMBER, STRING) else "value"
        return self.error(f'":" expected after {known.name}, got {self.shown()}', hint=f"write {known.name}: {value}")

    def _no_name(self, schema: Schema, block: Block) -> None:
        """Skip an extension `[name]`. Raise PrototxtError for anything else that is not a field's name."""
        word = self.words[self.at]
        if self.kinds[self.at] == END:
            end = self.text.line(self.starts[self.at])
            hint = f"{block.name} is opened here and never closed; the file ends at line {end}"
            raise self.text.error(f'"{block.closer}" of {block.name} is missing', block.start, hint)
        if word in ("}", ">"):
            if not block.closer:
                raise self.error(f'"{word}" closes nothing', hint=self._closed_too_often())
            hint = f"{block.name} is opened at line {self.text.line(block.start)}"
            raise self.error(f'"{block.closer}" expected to close {block.name}, got "{word}"', hint=hint)
        if word == "[":
            first = self.at
            self._skip_brackets()
            self._skip_value("".join(self.words[first : self.at]), first, schema, block)
            return
        raise self.error(f"a field name expected, got {self.shown()}", hint="a comment starts with #" if word == "/" else "")

    def _closed_too_often(self) -> str:
        """Return a message that places a surplus "}" before the first field outside its block."""
        strays = [skipped.offset for skipped in self.root.skipped if hints.is_layer_field(skipped.message, skipped.name)]
        if not strays:
            return "a block is closed once too often above"
        line = self.text.line(min(strays))
        return f"a block is closed once too often before line {line}, where a layer's field is outside any layer"

    def _unknown(self, schema: Schema, block: Block) -> None:
        """Skip an unknown field, or raise PrototxtError if it shows another mistake."""
        name, token = self.words[self.at], self.at
        if name in ("layer", "layers") and block.closer and self.words[token + 1] in ("{", ":"):
            hint = f"{block.name} is opened at line {self.text.line(block.start)}"
            raise self.error(f'{name} inside {block.name}: a "}}" is missing above', hint=hint)
        if swapped := hints.swapped_file(schema.name, name):
            raise self.error(f"{name} is not a field of {schema.name}", hint=swapped)
        self.at += 1
        self._skip_value(name, token, schema, block)

    def _skip_value(self, name: str, token: int, schema: Schema, block: Block) -> None:
        """Skip `: value`, `{ ... }` or a list, and record it."""
        if self.strict and name != _ENGINE:
            raise self.error(hints.unknown_field(schema.name, name, list(schema.fields)), token)
        colon = self.words[self.at] == ":"
        self.at += colon
        word, first = self.words[self.at], self.at
        if word in _CLOSER:
            self._skip_brackets()
        elif not colon:
            raise self.error(f'":" or "{{" expected after {name}, got {self.shown()}')
        elif self.kinds[self.at] == STRING:
            while self.kinds[self.at] == STRING:
                self.at += 1
                self.look_ahead()
        else:
            self.at += word == "-"
            if self.kinds[self.at] not in (NAME, NUMBER):
                raise self.error(f"a value expected for {name}, got {self.shown()}")
            self.at += 1
        if name != _ENGINE:
            self._unknown_count += 1
            check_count(self.text, self._unknown_count, "unknown fields", MOST_UNKNOWN)
            value = " ".join(self.words[first : self.at])
            block.skipped.append(Skipped(schema.name, name, block.prefix + name, value, self.starts[token]))
        if self.words[self.at] in (",", ";"):
            self.at += 1

    def _skip_brackets(self) -> None:
        """Skip from a bracket to the one that closes it."""
        opened: list[int] = []
        while True:
            self.look_ahead()
            word = self.words[self.at]
            if word in _CLOSER:
                opened.append(self.at)
                if len(opened) > MAX_DEPTH:
                    raise self.error(f"blocks are nested more than {MAX_DEPTH} deep")
            closer = _CLOSER[self.words[opened[-1]]]
            if self.kinds[self.at] == END:
                raise self.error(f'"{closer}" is missing', opened[-1], "opened here and never closed")
            if word in ("}", ">", "]"):
                if word != closer:
                    raise self.error(f'"{closer}" expected, got "{word}"', hint=self._opened(opened[-1]))
                opened.pop()
            self.at += 1
            if not opened:
                return
