"""The layers' names, types and blobs in a serialised NetParameter or BlobProto, found without a schema.

Layers have the same field numbers in every fork, and blobs in all but C3D v1.0, so that a walk over the memory-mapped bytes
finds them:

    net    V2 layers 100, V1 layers 2
    layer  V2: name 1, type 2, blobs 7    V1: name 4, type 5, blobs 6, V0 layer 1    V0: name 1, type 2, blobs 50
    blob   num, channels, height, width 1-4, data 5, shape 7, double_data 8; NVIDIA's: raw_data_type 10, raw_data 12;
           C3D v1.0's: num, channels, length, height, width 1-5, data 6, diff 7

Source: Caffe's caffe.proto and blob.cpp (FromProto, ShapeEquals).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from minicaffe import limits, threads
from minicaffe.blob import MAX_AXES
from minicaffe.errors import WeightsError
from minicaffe.formats.upgrade import C3D_TYPES, V0_TYPES, V1_TYPES, capitalised
from minicaffe.proto import caffe_pb2

from .wire import BYTES, VARINT, Buffer, Field, WireError, fields, numbers, signed, varint

FLOAT, DOUBLE, HALF = np.dtype("<f4"), np.dtype("<f8"), np.dtype("<f2")
Stored = TypeVar("Stored")
RAW_TYPES: dict[int, np.dtype[Any]] = {0: DOUBLE, 1: FLOAT, 2: HALF}


@dataclass(frozen=True)
class BlobWeights:
    """One stored blob: its shape and values.

    legacy: the shape is num, channels, height, width, or C3D v1.0's num, channels, length, height, width; a vector is (1, 1, 1,
    n).
    """

    shape: tuple[int, ...]
    legacy: bool
    chunks: tuple[NDArray[Any], ...] = field(repr=False)

    @property
    def array(self) -> NDArray[Any]:
        """The values as float32 of this shape.

        If the mapped file holds float32, they are a view of it, and writing to it changes only this process's copy. Other types
        are converted at each use.
        """
        return self.read(np.float32)

    def read(self, dtype: DTypeLike) -> NDArray[Any]:
        """Return the values as dtype, of this shape."""
        # The empty array is for a blob without values: np.concatenate needs at least one array.
        flat = self.chunks[0] if len(self.chunks) == 1 else np.concatenate([np.zeros(0, dtype), *self.chunks])
        with np.errstate(all="ignore"):
            return flat.astype(dtype, copy=False).reshape(self.shape)

    def copy_to(self, target: NDArray[Any]) -> None:
        """Write the values into a C-contiguous array of the same size and any type, split across all threads."""
        flat, done = target.reshape(-1), 0
        for chunk in self.chunks:
            values, place = chunk.reshape(-1), flat[done : done + chunk.size]
            # In parallel also for float32: copying takes the mapped file's page faults.
            threads.run(partial(_cast, place[part], values[part]) for part in threads.parts(chunk.size, 2**18, 4))
            done += chunk.size

    def fits(self, shape: Sequence[int]) -> bool:
        """Return whether a blob of this shape can take the values.

        As in Caffe, a legacy shape may have additional leading ones, and C3D's a length of one.
        """
        if not self.legacy:
            return self.shape == tuple(shape)
        forms = [self.shape, self.shape[:2] + self.shape[3:]] if self.shape[2:-2] == (1,) else [self.shape]
        return any(len(shape) <= len(form) and form == (1,) * (len(form) - len(shape)) + tuple(shape) for form in forms)


def _cast(target: NDArray[Any], values: NDArray[Any]) -> None:
    with np.errstate(all="ignore"):
        np.copyto(target, values, casting="same_kind")


@dataclass(frozen=True)
class LayerWeights:
    """A stored layer: its name, its type (V2's name; "" if unknown) and its blobs.

    A blob is None if a file (HDF5) stores a shared parameter only with the layer that owns it.
    """

    name: str
    type: str
    blobs: list[BlobWeights | None]


def numbered(blobs: Mapping[int, Stored], layer: str) -> list[Stored | None]:
    """Return a layer's blobs in a list by their numbers, with None for missing ones.

    Raises WeightsError for a number far beyond them.
    """
    if max(blobs, default=0) > len(blobs) + 64:  # shared blobs leave gaps, but not of millions
        raise WeightsError(f"{layer} has a blob {max(blobs)} but only {len(blobs)} blobs")
    return [blobs.get(i) for i in range(max(blobs, default=-1) + 1)]


class _Numbers(NamedTuple):
    """The numbers of the fields that minicaffe reads in a layer message of one version."""

    name: int
    type: int
    blobs: int
    inner: int = 0  # no field has the number 0


V0, V1, V2 = _Numbers(1, 2, 50), _Numbers(4, 5, 6, inner=1), _Numbers(1, 2, 7)
VERSIONS = {100: V2, 2: V1}
MOST_BLOBS = 4
"""Most blobs of a file, for each layer that limits.layers allows."""


def layers(buffer: Buffer) -> list[LayerWeights]:
    """Return the layers of a serialised NetParameter, V0, V1 or V2.

    Raises WireError, also for more than limits.layers layers, as many splits, which Caffe stores too, or MOST_BLOBS for each
    layer of the limit.
    """
    found: list[LayerWeights] = []
    counts = {"layers": 0, "splits": 0}
    room = MOST_BLOBS * limits.layers
    for item in fields(buffer, 0, len(buffer)):
        if version := VERSIONS.get(item.number):
            layer = _layer(buffer, item, version, f"layer {len(found)}", room)
            room -= len(layer.blobs)
            kind = "splits" if layer.type == "Split" else "layers"
            counts[kind] += 1
            if counts[kind] > limits.layers:
                raise WireError(item.offset, f"more than {limits.layers:,} {kind}: {limits.raising('layers')}")
            found.append(layer)
    return found


def _layer(buffer: Buffer, message: Field, version: _Numbers, place: str, room: int) -> LayerWeights:
    name, kind, old = "", "", None
    blobs: list[BlobWeights | None] = []
    try:
        for item in fields(buffer, *_span(message)):
            if item.number == version.name:
                name = _text(buffer, item)
            elif item.number == version.type:
                kind = _type(buffer, item, version)
            elif item.number == version.blobs:
                if len(blobs) == room:
                    many = f"more than {MOST_BLOBS * limits.layers:,} blobs, {MOST_BLOBS} for each layer of the limit"
                    raise WireError(item.offset, f"{many}: {limits.raising('layers')}")
                try:
                    blobs.append(blob(buffer, *_span(item), whole=item.whole))
                except WireError as error:
                    raise error.within(f"blob {len(blobs)}") from error
            elif item.number == version.inner:
                old = _layer(buffer, item, V0, "V0 layer", room)
    except WireError as error:
        raise error.within(f'{place} "{name}"' if name else place) from error
    if version is V1 and blobs:
        kind = C3D_TYPES.get(kind, kind)
    return old or LayerWeights(name, kind, blobs)  # around a V0 layer, V1 holds only its bottoms and tops


def blob(buffer: Buffer, start: int, end: int, *, whole: bool = True) -> BlobWeights:
    """Return the BlobProto at [start, end). Raises WireError, also if its shape does not match the number of stored values."""
    legacy: dict[int, int] = {}
    dims: list[int] = []
    shaped = False
    raw_type, raw = 0, None
    stored: dict[np.dtype[Any], list[NDArray[Any]]] = {DOUBLE: [], FLOAT: []}
    for item in fields(buffer, start, end):
        if item.number <= 4:
            legacy[item.number] = _integer(item)
        elif item.number == 5 and item.kind == VARINT:  # elsewhere field 5 holds floats
            return _c3d_blob(buffer, start, end, whole)
        elif item.number == 5:
            stored[FLOAT].append(numbers(buffer, item, FLOAT))
        elif item.number == 7:
            shaped = True
            dims += _dims(buffer, item, MAX_AXES - len(dims))
        elif item.number == 8:
            stored[DOUBLE].append(numbers(buffer, item, DOUBLE))
        elif item.number == 10:
            raw_type = _integer(item)
        elif item.number == 12:
            raw = item
    if raw is not None and raw_type not in RAW_TYPES:
        raise WireError(raw.offset, f"raw data has the unknown type {raw_type} (0 is double, 1 float, 2 fp16)")
    # As in Caffe's FromProto, doubles are preferred to floats.
    chunks = stored[DOUBLE] or stored[FLOAT] or ([numbers(buffer, raw, RAW_TYPES[raw_type])] if raw is not None else [])
    shape = tuple(dims) if shaped else tuple(legacy.get(i, 0) for i in (1, 2, 3, 4)) if legacy else ()
    if whole:
        _check_shape(start, shape, sum(chunk.size for chunk in chunks))
    return BlobWeights(shape, not shaped and bool(legacy), tuple(chunks))


def _c3d_blob(buffer: Buffer, start: int, end: int, whole: bool) -> BlobWeights:
    """Return a BlobProto of C3D v1.0, recognised by the width in field 5.

    num, channels, length, height and width are 1 to 5, data is 6 and diff 7. Raises WireError, also for a missing size and for
    any other field.
    """
    dims: dict[int, int] = {}
    chunks = []
    for item in fields(buffer, start, end):
        if item.number <= 5:
            dims[item.number] = _integer(item)
        elif item.number == 6:
            chunks.append(numbers(buffer, item, FLOAT))
        elif item.number != 7:
            raise WireError(item.offset, f"field {item.number} is none of C3D v1.0's blobs, whose width is field 5")
    if len(dims) < 5:
        raise WireError(
            start, f"field 5 has wire type {VARINT}, which cannot hold float32, and is no width of C3D v1.0's blobs"
        )
    shape = tuple(dims[i] for i in range(1, 6))
    if whole:
        _check_shape(start, shape, sum(chunk.size for chunk in chunks))
    return BlobWeights(shape, True, tuple(chunks))


def _check_shape(offset: int, shape: tuple[int, ...], count: int) -> None:
    if len(shape) > MAX_AXES or any(dim < 0 for dim in shape):
        raise WireError(offset, f"no blob can have the shape {shape[:MAX_AXES]}")
    if math.prod(max(dim, 1) for dim in shape) > limits.blob_elements:  # an axis of 0 must not hide the others
        what = f"shape {shape} exceeds the {limits.blob_elements} values that a blob may have"
        raise WireError(offset, f"{what}: {limits.raising('blob_elements')}")
    if math.prod(shape) != count:
        raise WireError(offset, f"shape {shape} needs {math.prod(shape)} values, but {count} are stored")


def _dims(buffer: Buffer, message: Field, most: int) -> list[int]:
    """Return a BlobShape's dims, packed or not. Raises WireError for more than `most`."""
    dims: list[int] = []
    for item in fields(buffer, *_span(message)):
        if item.number == 1 and item.kind == BYTES:
            at = item.start
            while at < item.end and len(dims) <= most:  # a packed field may hold millions
                dim, at = varint(buffer, at, item.end)
                dims.append(signed(dim))
        elif item.number == 1:
            dims.append(_integer(item))
        if len(dims) > most:
            raise WireError(item.offset, f"a shape of more than {MAX_AXES} axes")
    return dims


def _span(message: Field) -> tuple[int, int]:
    if message.kind != BYTES:
        raise WireError(message.offset, f"field {message.number} has wire type {message.kind}, not a message's {BYTES}")
    return message.start, message.end


def _integer(item: Field) -> int:
    if item.kind != VARINT:
        raise WireError(item.offset, f"field {item.number} has wire type {item.kind}, not an integer's {VARINT}")
    return signed(item.value)


def _text(buffer: Buffer, item: Field) -> str:
    start, end = _span(item)
    return buffer[start:end].decode("utf-8", "replace")


def _type(buffer: Buffer, item: Field, version: _Numbers) -> str:
    """Return a layer's type by V2's name, or "" if it is unknown."""
    if version is not V1:  # V1's type is an enum, V0's and V2's are texts
        text = _text(buffer, item)
        if version is V2:
            return text
        return V1_TYPES[V0_TYPES[text]] if text in V0_TYPES else capitalised(text)
    known = caffe_pb2.V1LayerParameter.LayerType
    number = _integer(item)
    if number not in known.values():
        return ""
    return V1_TYPES[known.Name(number)]  # type: ignore[arg-type]
