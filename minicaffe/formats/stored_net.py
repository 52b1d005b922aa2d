"""The net inside a .caffemodel: its layers' parameters, of any fork and generation, without the blobs.

Caffe writes the layers of the trained net into a .caffemodel, after include and exclude rules.
"""

from __future__ import annotations

import os
from dataclasses import replace

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from minicaffe.errors import WeightsError
from minicaffe.formats.upgrade import C3D_TYPES, V1_TYPES
from minicaffe.proto import caffe_pb2

from .fork_numbers import Origin, origin
from .fork_readings import V1_CONVOLUTION, Block, ForkError, todays_block, todays_layer
from .forks import find_fork
from .upgrade import upgrade_net
from .weights import NO_LAYER, file_error, kind_of_arrays, mapped, refuse_lookalikes
from .wire import BYTES, Buffer, Field, WireError, delimited, fields

TEXT, MESSAGE = FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE
V1_TYPE, V1_BLOBS, V0_LAYER, V0_BLOBS = 5, 6, 1, 50
C3D_KINDS = {number for v1, number in caffe_pb2.V1LayerParameter.LayerType.items() if V1_TYPES[v1] in C3D_TYPES}
"""V1's types that with blobs are C3D's."""


def read_stored_net(path: str | os.PathLike[str], fork: str = "") -> tuple[caffe_pb2.NetParameter, Origin]:
    """Return the upgraded net in a .caffemodel, and the forks that may have written the file.

    fork: the name of the one that did, where fields have other meanings in other forks. Raises WeightsError, also for such a
    field if nothing tells the fork, and Error for an unknown name.
    """
    buffer = mapped(path)
    if kind := kind_of_arrays(buffer):
        raise WeightsError(f"{path}: {kind} weights contain no net: give a .caffemodel")
    refuse_lookalikes(path, buffer)
    try:
        found = origin(buffer)
        # Blobs are cut out before parsing: protobuf would copy them, and refuses more than 2 GB.
        if fork:
            by = (find_fork(fork).title,)
            found = replace(found, forks=by, certain=by)
        parts = [_bare(buffer, item, found) for item in fields(buffer, 0, len(buffer))]
        bare = _readable(b"".join(parts), caffe_pb2.NetParameter.DESCRIPTOR)
    except WireError as error:
        raise file_error(path, error, ".caffemodel") from error
    except ForkError as error:
        raise WeightsError(f"{path}: {error}") from error
    param = caffe_pb2.NetParameter()
    try:
        param.MergeFromString(bare)
    except DecodeError as error:
        raise WeightsError(f"{path}: its net cannot be read ({error})") from error
    if not (param.layer or param.layers):
        raise WeightsError(NO_LAYER.format(path=path))
    if not any(layer.type for layer in param.layer) and not param.layers:
        raise WeightsError(f"{path}: its layers have names and blobs but no types, so it contains no net to rescue")
    return upgrade_net(param)[0], found


def _bare(buffer: Buffer, item: Field, found: Origin) -> bytes:
    """Return a net's field without its blobs."""
    if item.kind == BYTES and item.number == 100:
        return todays_layer(buffer, item, found)
    if item.kind == BYTES and item.number == 2:
        inner = list(fields(buffer, item.start, item.end))
        _refuse_c3d(inner)
        return delimited(2, b"".join(_bare_v1(buffer, f) for f in inner))
    return bytes(buffer[item.offset : item.end])


def _refuse_c3d(layer: list[Field]) -> None:
    """Raise WireError for a V1 layer of C3D: its blocks give BVLC's field numbers to other fields."""
    stored = {f.number: f for f in layer}
    kind = stored.get(V1_TYPE)
    if V1_BLOBS in stored and kind is not None and kind.value in C3D_KINDS:
        raise WireError(kind.offset, "a 3-D convolution of C3D, whose field numbers differ from BVLC's: give its prototxt")


def _bare_v1(buffer: Buffer, item: Field) -> bytes:
    """Return a V1 layer's field, b"" for its blobs. A V0 layer in it loses its blobs."""
    if item.number == V0_LAYER and item.kind == BYTES:
        inner = fields(buffer, item.start, item.end)
        return delimited(V0_LAYER, b"".join(bytes(buffer[f.offset : f.end]) for f in inner if f.number != V0_BLOBS))
    if item.number == V1_CONVOLUTION and item.kind == BYTES:
        block = Block("", "convolution_param", V1_CONVOLUTION)
        return delimited(V1_CONVOLUTION, todays_block(buffer, item.start, item.end, block))
    return b"" if item.number == V1_BLOBS else bytes(buffer[item.offset : item.end])


def _readable(data: bytes, descriptor: Descriptor) -> bytes:
    """Return the message with its texts made valid UTF-8, as the weights' names are."""
    parts = []
    for item in fields(data, 0, len(data)):
        known = descriptor.fields_by_number.get(item.number)
        content = data[item.start : item.end]
        if known is None or item.kind != BYTES or known.type not in (TEXT, MESSAGE):
            parts.append(data[item.offset : item.end])
        elif known.message_type is not None:
            parts.append(delimited(item.number, _readable(content, known.message_type)))
        else:
            parts.append(delimited(item.number, content.decode("utf-8", "replace").encode()))
    return b"".join(parts)
