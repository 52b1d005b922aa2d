"""A hypothesis strategy for messages of the schema, filled at random."""

from __future__ import annotations

import struct

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from minicaffe.formats.values import is_repeated, is_required

_SCALARS = {
    FieldDescriptor.CPPTYPE_STRING: st.text(st.characters(codec="utf-8"), max_size=5),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_FLOAT: st.floats(width=32, allow_nan=False),
    FieldDescriptor.CPPTYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.CPPTYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: st.integers(0, 2**32 - 1),
}


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 3) -> Message:
    """Return a message with up to four of its fields set, and every required one; blocks nest up to depth."""
    fields = [f for f in descriptor.fields if depth or f.message_type is None]
    chosen = draw(st.lists(st.sampled_from(fields), max_size=4, unique_by=lambda f: f.name)) if fields else []
    required = [f for f in fields if is_required(f) and f not in chosen]
    message = message_factory.GetMessageClass(descriptor)()
    for field in chosen + required:
        many = is_repeated(field)
        for _ in range(draw(st.integers(1, 3)) if many else 1):
            _set(draw, message, field, many, depth)
    return message


def _set(draw: st.DrawFn, message: Message, field: FieldDescriptor, many: bool, depth: int) -> None:
    target = getattr(message, field.name)
    if field.message_type is not None:
        value = draw(messages(field.message_type, depth - 1))
        target.append(value) if many else target.CopyFrom(value)
        return
    if field.enum_type is not None:
        value = draw(st.sampled_from([v.number for v in field.enum_type.values]))
    elif field.type == FieldDescriptor.TYPE_BYTES:
        value = draw(st.binary(max_size=5))
    else:
        value = draw(_SCALARS[field.cpp_type])
    if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    target.append(value) if many else setattr(message, field.name, value)
