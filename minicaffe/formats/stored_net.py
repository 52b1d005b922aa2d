"""The net that a .caffemodel carries beside its weights: its layers' parameters, of any fork and age, without the blobs.

Caffe writes into a .caffemodel the layers of the net that was trained, after its include and exclude rules.
"""

from __future__ import annotations

import os

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from minicaffe.errors import WeightsError
from minicaffe.proto import caffe_pb2

from .fork_numbers import Origin, origin, todays_layer
from .upgrade import upgrade_net
from .weights import HDF5_SIGNATURE, file_error, mapped, refuse_lookalikes
from .wire import BYTES, Buffer, Field, WireError, fields, header

TEXT, MESSAGE = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE
V1_BLOBS, V0_LAYER, V0_BLOBS = 6, 1, 50


def read_stored_net(path: str | os.PathLike[str]) -> tuple[caffe_pb2.NetParameter, Origin]:
    """The net in today's form, and the forks that it can come from. Raises WeightsError."""
    buffer = mapped(path)
    if buffer[: len(HDF5_SIGNATURE)] == HDF5_SIGNATURE:
        raise WeightsError(f"{path}: weights in HDF5 carry no net: only a .caffemodel does")
    refuse_lookalikes(path, buffer)
    try:
        found = origin(buffer)
        parts = [_bare(buffer, item, found.forks) for item in fields(buffer, 0, len(buffer))]
        bare = _readable(b"".join(parts), caffe_pb2.NetParameter.DESCRIPTOR)
    except WireError as error:
        raise file_error(path, error, ".caffemodel") from error
    param = caffe_pb2.NetParameter()
    try:
        param.MergeFromString(bare)
    except DecodeError as error:
        raise WeightsError(f"{path}: the net in it cannot be read ({error})") from error
    if not (param.layer or param.layers):
        raise WeightsError(f"{path}: no layer in it: this is no .caffemodel, or the net was empty")
    if not any(layer.type for layer in param.layer) and not param.layers:
        raise WeightsError(f"{path}: its layers have names and blobs only, no types: there is no net to rescue")
    return upgrade_net(param)[0], found


def _bare(buffer: Buffer, item: Field, forks: tuple[str, ...]) -> bytes:
    """A net's field without the blobs in it."""
    if item.kind == BYTES and item.number == 100:
        return todays_layer(buffer, item, forks)
    if item.kind == BYTES and item.number == 2:
        return _message(
            2, [_bare_v0(buffer, inner) for inner in fields(buffer, item.start, item.end) if inner.number != V1_BLOBS]
        )
    return bytes(buffer[item.offset : item.end])


def _bare_v0(buffer: Buffer, item: Field) -> bytes:
    """A V1 layer's field; the V0 layer in one loses its blobs too."""
    if item.number != V0_LAYER or item.kind != BYTES:
        return bytes(buffer[item.offset : item.end])
    inner = [f for f in fields(buffer, item.start, item.end) if f.number != V0_BLOBS]
    return _message(V0_LAYER, [bytes(buffer[f.offset : f.end]) for f in inner])


def _readable(data: bytes, descriptor: Descriptor) -> bytes:
    """A message whose texts are UTF-8: what is not is replaced, as the weights' names are."""
    parts = []
    for item in fields(data, 0, len(data)):
        known = descriptor.fields_by_number.get(item.number)
        content = data[item.start : item.end]
        if known is None or item.kind != BYTES or known.type not in (TEXT, MESSAGE):
            parts.append(data[item.offset : item.end])
        elif known.message_type is not None:
            parts.append(_message(item.number, [_readable(content, known.message_type)]))
        else:
            parts.append(_message(item.number, [content.decode("utf-8", "replace").encode()]))
    return b"".join(parts)


def _message(number: int, parts: list[bytes]) -> bytes:
    content = b"".join(parts)
    return header(number, len(content)) + content
