"""Records whose channels are stored in several ways, as FlowNet's databases have them: images, flow and masks in one Datum.

    UINT8       a byte each
    UINT16FLOW  16 bits with a sign, low byte first, in 1/32; 32767 is NaN
    BOOL1       a channel of bits, 0 or 1, lowest bit first

Source: FlowNet 2's custom_data_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2

Param = caffe_pb2.DataParameter
UNKNOWN = 32767
STEPS = 32
"""Of a pixel, in UINT16FLOW."""


def slices_of(points: Sequence[int], channels: int) -> list[slice]:
    """The slices that these first channels of all but the first cut. Raises DataError."""
    edges = [0, *points, channels]
    if any(low >= high for low, high in pairwise(edges)):
        raise DataError(f"slice_point {', '.join(map(str, points))} do not cut {channels} channels into slices")
    return [slice(low, high) for low, high in pairwise(edges)]


def decoded(datum: caffe_pb2.Datum, slices: Sequence[slice], encoding: Sequence[int]) -> Array:
    """A Datum's values (C, H, W), float32; encoding: of each slice, UINT8 where it ends. Raises DataError."""
    shape, pixels = (datum.channels, datum.height, datum.width), datum.height * datum.width
    if datum.encoded:
        raise DataError("the record is an image file, not bytes of channels")
    if datum.float_data:
        if encoding:
            raise DataError("the record has floats, which have no encoding")
        return reshaped(np.array(datum.float_data, np.float32), shape)
    parts, at = [], 0
    for i, part in enumerate(slices):
        count, kind = part.stop - part.start, encoding[i] if i < len(encoding) else Param.UINT8
        if kind == Param.BOOL1 and count != 1:
            raise DataError(f"a slice of BOOL1 has one channel, got {count}")
        length = (pixels + 7) // 8 if kind == Param.BOOL1 else count * pixels * (2 if kind == Param.UINT16FLOW else 1)
        content = datum.data[at : at + length]
        if len(content) < length:
            break
        parts.append(values_of(content, kind)[: count * pixels])
        at += length
    if len(parts) < len(slices) or at != len(datum.data):
        wanted = f"{len(slices)} slices of {datum.channels} channels of {datum.height} x {datum.width}"
        raise DataError(f"{len(datum.data)} bytes are stored, not those of {wanted}")
    return reshaped(np.concatenate(parts), shape)


def values_of(content: bytes, kind: int) -> Array:
    """The values that bytes hold, float32."""
    if kind == Param.BOOL1:
        return np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little").astype(np.float32)
    if kind == Param.UINT16FLOW:
        steps = np.frombuffer(content, "<i2")
        flow: Array = np.where(steps == UNKNOWN, np.float32(np.nan), steps.astype(np.float32) / np.float32(STEPS))
        return flow
    return np.frombuffer(content, np.uint8).astype(np.float32)


def reshaped(values: Array, shape: tuple[int, int, int]) -> Array:
    """values (C, H, W). Raises DataError for another number of them."""
    if min(shape) < 1 or values.size != np.prod(shape):
        raise DataError(f"{values.size} values stored for {shape[0]} channels of {shape[1]} x {shape[2]}")
    return values.reshape(shape)
