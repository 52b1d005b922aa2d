"""Datum, one item of a database: an image (bytes or floats in the order channel, row, column; or an image file), and a label.

Source: Caffe's caffe.proto (Datum) and util/io.cpp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2

from .image_bytes import Pixels, read_image


def parse_datum(value: bytes, name: str) -> caffe_pb2.Datum:
    """The Datum in these bytes. name: for errors. Raises DataError."""
    datum = caffe_pb2.Datum()
    try:
        datum.ParseFromString(value)
    except DecodeError as error:
        raise DataError(f"{name}: not a Datum: {error}") from error
    return datum


def datum_array(datum: caffe_pb2.Datum, name: str, color: bool | None = None) -> NDArray[Any]:
    """Its values (C, H, W), uint8 or float32. color: how to decode an encoded image (None: as stored).

    Raises DataError for an image that cannot be decoded, and if the number of values does not match the shape.
    """
    if datum.encoded:
        return np.moveaxis(read_image(datum.data, color, name), 2, 0)
    shape = (datum.channels, datum.height, datum.width)
    # As in Caffe, bytes are preferred to floats.
    values: NDArray[Any] = np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data, np.float32)
    if min(shape) < 1 or values.size != np.prod(shape):
        raise DataError(f"{name}: {values.size} values stored for {shape[0]} channels of {shape[1]} x {shape[2]}")
    return values.reshape(shape)


def image_datum(pixels: Pixels, label: int) -> caffe_pb2.Datum:
    """An image (H, W, C) as a Datum of bytes."""
    height, width, channels = pixels.shape
    data = np.ascontiguousarray(pixels.transpose(2, 0, 1)).tobytes()
    return caffe_pb2.Datum(channels=channels, height=height, width=width, data=data, label=label, encoded=False)


def encoded_datum(content: bytes, label: int) -> caffe_pb2.Datum:
    """The bytes of an image file as a Datum."""
    return caffe_pb2.Datum(data=content, label=label, encoded=True)


def float_datum(values: NDArray[Any]) -> caffe_pb2.Datum:
    """An array (C, H, W) as a Datum of floats."""
    channels, height, width = values.shape
    return caffe_pb2.Datum(channels=channels, height=height, width=width, float_data=values.ravel().tolist())
