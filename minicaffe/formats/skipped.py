"""Fields that minicaffe's schema lacks: whether a net or solver may be computed without them, and the messages on them.

A field of a fork that has no effect here, and a value that changes nothing, are left out quietly. A field that no known fork
has, and whose name says that it concerns memory, cuDNN or the display, is left out with a note. Any other is refused, or, with
strict=False or in skipping_unknown, left out with a warning.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from minicaffe.errors import PrototxtError, PrototxtWarning, on_one_line, ways
from minicaffe.proto import caffe_pb2

from . import hints
from .forks import fork_field
from .source import Place, SkippedField
from .wire import BYTES, delimited

MOST_WARNED = 200
"""Most unknown fields with a warning each: finding the nearest known field takes time."""
_SUMMED_UP = 5
_EMPTY = ("{ }", "< >", "[ ]")

_HARMLESS_WORDS = frozenset(("mem", "memory", "cudnn", "workspace", "workspaces", "display"))
_HARMLESS_NAMES = frozenset(("debug_info", "log_dir", "share_blobs"))
_OF_LAYERS = frozenset(("cell", "cells", "data", "dim", "dims", "num", "output", "param", "size", "slots", "steps", "units"))
"""Words of a layer's own memory, as a recurrent layer has it: mem_cells changes the numbers."""

_found: dict[SkippedField, None] | None = None
"""What was computed without, while strict=False is the default."""


_NOTE = 2**29 - 1
"""The largest number of a field, which no schema has: a message carries notes under it, and copies of the message too."""


def hint() -> str:
    """Return advice on how to continue without an unknown field."""
    found = ways("strict=False", "--skip-unknown")
    return f"{found}{',' * (', or ' in found)} leaves it out; the numbers may then be wrong"


def note_in(message: Message, fields: Iterable[SkippedField]) -> None:
    """Add the fields that its schema lacks to a net's or layer's message as notes, if they matter."""
    for field in fields:
        if matters(field):
            message.MergeFromString(delimited(_NOTE, json.dumps(asdict(field)).encode()))


def noted_in(message: Message) -> tuple[SkippedField, ...]:
    """Return the fields that note_in added to the message, or to the one that it is a copy of."""
    unknown: Sequence[Any] = UnknownFieldSet(message)  # type: ignore[assignment]  # the stubs lack __iter__
    found = (json.loads(item.data) for item in unknown if (item.field_number, item.wire_type) == (_NOTE, BYTES))
    return tuple(SkippedField(**{**fields, "place": Place(**fields["place"])}) for fields in found)


def drop_notes(net: caffe_pb2.NetParameter) -> None:
    """Remove the notes from a net that is made without the fields, so that it saves none."""
    if any(noted_in(message) for message in (net, *net.layer)):
        net.DiscardUnknownFields()


def matters(field: SkippedField) -> bool:
    """Return whether the numbers may depend on the field, in a layer that reads its block."""
    known = fork_field(field.message, field.name)
    if known is None:
        return field.value not in _EMPTY and not seems_harmless(field)
    return not known.is_harmless(field.value)


def seems_harmless(field: SkippedField) -> bool:
    """Return whether no known fork has the field, and its name suggests that it does not affect the numbers."""
    if hints.is_layer_field(field.message, field.name) or fork_field(field.message, field.name):
        return False
    words = frozenset(field.name.split("_"))
    is_of_layer = field.message not in ("NetParameter", "SolverParameter") and not words.isdisjoint(_OF_LAYERS)
    return field.name in _HARMLESS_NAMES or not (is_of_layer or words.isdisjoint(_HARMLESS_WORDS))


def say_harmless(fields: Iterable[SkippedField], stacklevel: int = 4) -> None:
    """Issue a PrototxtWarning for each field that is left out because of its name."""
    for (message, name), same in _grouped(filter(seems_harmless, fields)).items():
        text = f"{same[0].place}: {message} has no field {name}; by its name it does not concern the numbers, so it is left out"
        warnings.warn(f"{text}{_again(same)}", PrototxtWarning, stacklevel=stacklevel)


def sentence(field: SkippedField) -> str:
    """Return a sentence on the field, without its place."""
    descriptor = caffe_pb2.DESCRIPTOR.message_types_by_name.get(field.message)
    return hints.unknown_field(field.message, field.name, descriptor.fields_by_name if descriptor else ())


def warn_of(fields: Iterable[SkippedField], stacklevel: int = 3) -> None:
    """Issue a PrototxtWarning for each field of a message, with its places."""
    groups = list(_grouped(fields).items())
    for _, same in groups[:MOST_WARNED]:
        text = f"{same[0].place}: {sentence(same[0])}; skipped{_again(same)}"
        warnings.warn(text, PrototxtWarning, stacklevel=stacklevel)
    if more := groups[MOST_WARNED:]:
        text = f"{more[0][1][0].place}: {len(more)} more fields are unknown"
        warnings.warn(text, PrototxtWarning, stacklevel=stacklevel)


def _again(same: Sequence[SkippedField]) -> str:
    return f" (and {len(same) - 1} more, the last at line {same[-1].place.line})" if len(same) > 1 else ""


def named(fields: Iterable[SkippedField]) -> list[str]:
    """Return each field once: "PoolingParameter.hole (net.prototxt:12 and 3 more)"."""
    groups = _grouped(fields).items()
    return [f"{message}.{name} ({same[0].place}{_more(len(same) - 1)})" for (message, name), same in groups]


def summed_up(fields: Iterable[SkippedField]) -> str:
    """Return a sentence on these fields for the end of a run."""
    names = named(fields)
    listed = ", ".join(map(on_one_line, names[:_SUMMED_UP])) + _more(len(names) - _SUMMED_UP)
    return f"left out, though the numbers may depend on them: {listed}"


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def _grouped(fields: Iterable[SkippedField]) -> dict[tuple[str, str], list[SkippedField]]:
    """Return the fields by message and name, each place once."""
    groups: dict[tuple[str, str], list[SkippedField]] = {}
    for field in dict.fromkeys(fields):
        groups.setdefault((field.message, field.name), []).append(field)
    return groups


# Nets and solvers that run without unknown fields.


def is_strict(strict: bool | None) -> bool:
    """Return strict, or its default for None."""
    return _found is None if strict is None else strict


def refuse(fields: Iterable[SkippedField], strict: bool | None) -> None:
    """Raise PrototxtError for the first of these fields, unless strict is False."""
    if is_strict(strict):
        for field in fields:
            place = field.place
            raise PrototxtError(sentence(field), file=place.file, line=place.line, column=place.column, hint=hint())


def skip(fields: Collection[SkippedField], stacklevel: int = 4) -> None:
    """Warn that a net or solver is computed without these fields."""
    warn_of(fields, stacklevel)
    if _found is not None:
        _found.update(dict.fromkeys(fields))


@contextmanager
def skipping_unknown() -> Iterator[Collection[SkippedField]]:
    """Make strict=False the default in the block. Yield a collection that fills with the unknown fields of nets and solvers."""
    global _found  # a default of the process, as minicaffe.limits
    before, _found = _found, {}
    try:
        yield _found
    finally:
        _found = before
