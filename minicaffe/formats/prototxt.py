"""Readers of prototxts of nets and solvers, which give upgraded messages with the place of every layer and field.

    net = read_net("test.prototxt")
    net.param.layer[3].name, str(net.sources[3].at("convolution_param.pad"))   # "conv2", "test.prototxt:41"

Reading skips fields that the schema lacks, and lists them in sources[i].skipped and net.skipped. A Net made from the NetFile
refuses fields that matter (skipped.py). Templates, whose variables a script fills in, are read with values for these:

    $NAME$ or $NAME: FlowNet 2's, PWC-Net's        ${NAME}: DeepLab's
"""

from __future__ import annotations

import codecs
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from google.protobuf import text_format
from google.protobuf.message import Message

from minicaffe import limits
from minicaffe.errors import PrototxtError, PrototxtWarning, UpgradeError, missing
from minicaffe.files import read_bytes
from minicaffe.formats import skipped
from minicaffe.formats.lookalikes import PROTOTXT, START, lookalike
from minicaffe.formats.source import LayerSource, Place, SkippedField
from minicaffe.formats.textformat import Block, Parser
from minicaffe.formats.tokens import CONTROL, Text, check_count, octal
from minicaffe.formats.upgrade import INPUT_FIELDS, ONE_GENERATION, default_snapshot_prefix, upgrade_net, upgrade_solver
from minicaffe.formats.values import ONE_FOR_EACH_AXIS
from minicaffe.formats.weights import HDF5_SIGNATURE
from minicaffe.proto import caffe_pb2


def fill_variables(text: str, values: Mapping[str, object]) -> str:
    """Return a template's text with the values of these variables. Other variables stay."""
    if not values:
        return text
    names = "|".join(map(re.escape, values))
    return re.sub(rf"\$\{{({names})\}}|\$({names})\b\$?", lambda found: str(values[found[1] or found[2]]), text)


AnyMessage = TypeVar("AnyMessage", bound=Message)
MOST_ENDS = 10
"""Most bottoms and tops of a net, for each layer that limits.layers allows."""
_HEAD = 4096
_ONE = {several: one for one, several in ONE_FOR_EACH_AXIS.items()}
_SEVERAL = re.compile(rf"^( *)({'|'.join(_ONE)})(?=: )", re.MULTILINE)
"""The fields whose values a prototxt gives under another name, at the start of a line. No other message has their names."""
_COLOUR = re.compile("\x1b\\[[0-9;]*m|" + CONTROL.pattern)
"""Colours and other control characters in text copied from a terminal."""
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class NetFile:
    """An upgraded net. sources[i] is the place of param.layer[i] in the text. skipped: unknown fields outside these layers."""

    param: caffe_pb2.NetParameter
    sources: list[LayerSource]
    file: str
    skipped: tuple[SkippedField, ...] = ()


class _Places(Mapping[str, Place]):
    """Places by path, computed from offsets on access."""

    def __init__(self, text: Text, offsets: Mapping[str, int]) -> None:
        self._text, self._offsets = text, offsets

    def __getitem__(self, path: str) -> Place:
        return self._text.place(self._offsets[path])

    def __iter__(self) -> Iterator[str]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)


def read_net(path: str | os.PathLike[str], *, strict: bool = False, warn: bool = True) -> NetFile:
    """Return the net in a prototxt file. Raises PrototxtError. strict, warn: as in parse_net."""
    return parse_net(read_text(path), str(path), strict=strict, warn=warn)


def parse_net(text: str, file: str = "<text>", *, strict: bool = False, warn: bool = True) -> NetFile:
    """Return the net in a prototxt text of any generation, upgraded. Raises PrototxtError, LimitError.

    strict: any unknown field is an error. warn: unknown fields that may matter are PrototxtWarnings; a Net warns or refuses
    by itself.
    """
    message = caffe_pb2.NetParameter()
    parser = _parse(text, message, file, strict=strict)
    _refuse_mixed(parser)
    limits.check(f"{file}: the net", len(parser.layers), "layers")

    def warn_of(sentence: str, index: int) -> None:
        warnings.warn(f"{parser.text.place(parser.layers[index].start)}: {sentence}", PrototxtWarning, stacklevel=6)

    try:
        param, origins = upgrade_net(message, warn_of)
    except UpgradeError as error:
        raise parser.text.error(error.message, _block_start(parser, error.block), error.hint) from None
    ends = sum(len(layer.bottom) + len(layer.top) for layer in param.layer)
    check_count(parser.text, ends, "bottoms and tops", MOST_ENDS)
    sources = [_input_source(parser) if i == INPUT_FIELDS else _layer_source(parser, i) for i in origins]
    if UNPRINTABLE.search(param.name):
        raise _control("name", param.name, parser.text.place(parser.root.offsets["name"]))
    for layer, source in zip(param.layer, sources, strict=True):
        tops = [(f"top[{j}]", name) for j, name in enumerate(layer.top)]
        bottoms = [(f"bottom[{j}]", name) for j, name in enumerate(layer.bottom)]
        for field, name in [("name", layer.name), ("type", layer.type), *tops, *bottoms]:
            if UNPRINTABLE.search(name):
                raise _control(field.partition("[")[0], name, source.at(field))
    kept = set(origins)  # V0's padding layers are dropped
    outside = [parser.root, *(layer for i, layer in enumerate(parser.layers) if i not in kept)]
    found = NetFile(param, sources, file, tuple(field for block in outside for field in _skipped(parser, block)))
    skipped.note_in(param, found.skipped)  # for a Net made from the NetParameter alone
    for layer, source in zip(param.layer, sources, strict=True):
        skipped.note_in(layer, source.skipped)
    if warn:
        skipped.warn_of(filter(skipped.matters, all_skipped(found)), stacklevel=3)
    return found


def all_skipped(file: NetFile) -> list[SkippedField]:
    """Return the unknown fields of a whole net."""
    return [*file.skipped, *(field for source in file.sources for field in source.skipped)]


def _skipped(parser: Parser, block: Block) -> tuple[SkippedField, ...]:
    return tuple(SkippedField(f.message, f.name, f.path, f.value, parser.text.place(f.offset)) for f in block.skipped)


def _control(field: str, name: str, place: Place) -> PrototxtError:
    """Return the error for a control character in a name, which would reach the terminal when the name is printed."""
    message = f"the {field} {name!r} holds a control character"
    return PrototxtError(message, file=place.file, line=place.line, column=place.column)


def read_solver(path: str | os.PathLike[str], *, strict: bool | None = None) -> caffe_pb2.SolverParameter:
    """Return the solver in a prototxt file.

    As in Caffe, snapshot_prefix defaults to the file's name. Raises PrototxtError. strict: as in parse_solver.
    """
    solver = parse_solver(read_text(path), str(path), strict=strict)
    default_snapshot_prefix(solver, path)
    return solver


def parse_solver(text: str, file: str = "<text>", *, strict: bool | None = None) -> caffe_pb2.SolverParameter:
    """Return the solver in a prototxt text, upgraded.

    Raises PrototxtError, also for an unknown field that matters; strict=False skips it with a PrototxtWarning.
    """
    message = caffe_pb2.SolverParameter()
    parser = _parse(text, message, file, strict=False)
    try:
        solver = upgrade_solver(message)
    except UpgradeError as error:
        raise parser.text.error(error.message, parser.root.offsets["solver_type"], error.hint) from None
    read = zip(_skipped(parser, parser.root), parser.root.skipped, strict=True)
    lacking = [(field, raw.offset) for field, raw in read if skipped.matters(field)]
    if lacking and skipped.is_strict(strict):
        field, offset = lacking[0]
        raise parser.text.error(skipped.sentence(field), offset, skipped.hint())
    skipped.skip([field for field, _ in lacking])
    skipped.say_harmless(_skipped(parser, parser.root))
    return solver


def parse_message(text: str, message: AnyMessage, file: str = "<text>", *, strict: bool = False) -> AnyMessage:
    """Parse text into any message, without an upgrade, and return the message.

    Unknown fields that may matter are PrototxtWarnings, or with strict any unknown one is an error. Raises PrototxtError.
    """
    parser = Parser(Text(text, file), strict=strict)
    parser.parse(message)
    fields = [field for block in (parser.root, *parser.layers) for field in _skipped(parser, block)]
    skipped.warn_of(filter(skipped.matters, fields), stacklevel=3)
    return message


def to_text(message: Message) -> str:
    """Return the message as prototxt, with invisible characters in its strings escaped."""
    text = _SEVERAL.sub(lambda found: found[1] + _ONE[found[2]], text_format.MessageToString(message))
    return "\n".join(octal(line) for line in text.split("\n"))


def _parse(text: str, message: Message, file: str, *, strict: bool) -> Parser:
    """Parse a whole file's text, which must not be empty."""
    if not text:
        raise PrototxtError("the file is empty (0 bytes)", file=file)
    if CONTROL.search(text, 0, _HEAD):
        raise _binary(text[:_HEAD].encode("utf-8", "surrogatepass"), file)
    parser = Parser(Text(text, file), strict=strict)
    parser.parse(message)
    root = parser.root
    if not (root.offsets or root.skipped or parser.layers):  # a layer's offsets are not in root's
        raise PrototxtError("the file holds only blanks and comments", file=file)
    return parser


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the file's text. Bytes that are not UTF-8 (in old comments) become surrogates. Raises PrototxtError."""
    try:
        data = read_bytes(path)
        if CONTROL.search(data[:_HEAD].decode("latin-1")):  # latin-1 decodes any bytes, and its controls are ASCII's
            raise _binary(data[:_HEAD], str(path))
        return data.decode("utf-8", "surrogateescape")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        found = missing(path) if isinstance(error, FileNotFoundError) else f"cannot be read: {reason}"
        raise PrototxtError(found, file=str(path)) from error


def _binary(head: bytes, file: str) -> PrototxtError:
    """Return the error for a file with control characters."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return PrototxtError("this is UTF-16 text", file=file, hint="save it as UTF-8")
    if head.startswith(HDF5_SIGNATURE):
        return PrototxtError(
            "this is an HDF5 file, not a prototxt", file=file, hint="give weights (.caffemodel.h5) after the net"
        )
    if found := lookalike(head[:START], "a prototxt"):
        return PrototxtError(f"this is {found}", file=file)
    text = head.decode("latin-1")
    control = CONTROL.search(text)
    if control and "\0" not in text and re.match(PROTOTXT, _COLOUR.sub("", text).encode("latin-1")):
        line, column = text.count("\n", 0, control.start()) + 1, control.start() - text.rfind("\n", 0, control.start())
        return PrototxtError(f"unexpected character {control[0]!r}", file=file, line=line, column=column)
    hint = "it looks like a .caffemodel: are the net and its weights swapped?"
    return PrototxtError("this is a binary file, not a prototxt", file=file, hint=hint)


def _refuse_mixed(parser: Parser) -> None:
    first = {layer.name: layer.start for layer in reversed(parser.layers)}  # reversed, so that the first of each name stays
    if len(first) == 2:
        lines = " and ".join(f"{name} (line {parser.text.line(start)})" for name, start in sorted(first.items()))
        raise parser.text.error(f"the net mixes {lines}", max(first.values()), ONE_GENERATION)


def _block_start(parser: Parser, index: int | None) -> int:
    """Return the start of a layer's block or of the first input field."""
    if index is None:
        return 0
    return parser.root.offsets["input[0]"] if index == INPUT_FIELDS else parser.layers[index].start


def _layer_source(parser: Parser, index: int) -> LayerSource:
    layer = parser.layers[index]
    return LayerSource(parser.text.place(layer.start), _Places(parser.text, layer.offsets), _skipped(parser, layer))


def _input_source(parser: Parser) -> LayerSource:
    """Return the source of the Input layer made from a net's fields input, input_shape and input_dim."""
    offsets: dict[str, int] = {}
    for path, offset in parser.root.offsets.items():
        name, _, index = path.rstrip("]").partition("[")
        if name == "input":
            offsets[f"top[{index}]"] = offset
        elif name == "input_shape" and "]" not in index:  # excludes input_shape[0].dim[1]
            offsets[f"input_param.shape[{index}]"] = offset
        elif name == "input_dim" and int(index) % 4 == 0:  # four for each input: num, channels, height, width
            offsets.setdefault(f"input_param.shape[{int(index) // 4}]", offset)
    return LayerSource(parser.text.place(parser.root.offsets["input[0]"]), _Places(parser.text, offsets))
