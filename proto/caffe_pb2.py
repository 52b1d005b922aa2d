"""Caffe's message classes, made at run time from caffe.desc in a descriptor pool of their own.

No generated code: any protobuf from 4.25 on can load the set, and a second Caffe in the process does not collide.
Editors and mypy read caffe_pb2.pyi.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

_pool = descriptor_pool.DescriptorPool()
_files = descriptor_pb2.FileDescriptorSet.FromString(Path(__file__).with_name("caffe.desc").read_bytes())
for _file in _files.file:
    _pool.Add(_file) if not hasattr(_pool, "AddSerializedFile") else _pool.AddSerializedFile(_file.SerializeToString())

DESCRIPTOR = _pool.FindFileByName("caffe.proto")


def _publish(names: dict[str, Any]) -> None:
    """Put every top-level message class, enum and enum value of the schema into this module."""
    for name, message in DESCRIPTOR.message_types_by_name.items():
        names[name] = message_factory.GetMessageClass(message)
    for name, enum in DESCRIPTOR.enum_types_by_name.items():
        names[name] = enum_type_wrapper.EnumTypeWrapper(enum)
        names.update({value.name: value.number for value in enum.values})


_publish(globals())
