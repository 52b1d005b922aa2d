"""pycaffe's caffe.io: conversion between images and a net's inputs, and between arrays and Caffe's messages.

    image (H, W, C) in [0, 1], RGB  -- Transformer.preprocess -->  (C, H, W), channels swapped, scaled, mean subtracted

Source: the interface of pycaffe's io.py, and what it computes with scikit-image and scipy. Pillow is enough; only splines
(interp_order 2 to 5) need scipy.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import ArrayLike, NDArray

from minicaffe.blob import Array
from minicaffe.data.database import datum_array
from minicaffe.data.image_bytes import check_size, read_image
from minicaffe.errors import ArrayError, DataError, Error, install
from minicaffe.proto import caffe_pb2

GREY = (0.2125, 0.7154, 0.0721)
"""The weights of red, green and blue in grey, as in scikit-image."""


# Messages.


def blobproto_to_array(blob: caffe_pb2.BlobProto, return_diff: bool = False) -> Array:
    """Return the data (or diff) of a BlobProto as float64.

    Its shape is num, channels, height, width if one of them is set.
    """
    values = (blob.double_diff or blob.diff) if return_diff else (blob.double_data or blob.data)
    legacy = ("num", "channels", "height", "width")
    if any(blob.HasField(name) for name in legacy):  # type: ignore[arg-type]
        shape = [getattr(blob, name) for name in legacy]
    else:
        shape = list(blob.shape.dim)
    return _shaped(np.array(values, np.float64), shape, "the BlobProto")


def array_to_blobproto(arr: ArrayLike, diff: ArrayLike | None = None) -> caffe_pb2.BlobProto:
    """Return a BlobProto with the array's shape and values, and the values of diff."""
    array = np.asarray(arr)
    blob = caffe_pb2.BlobProto()
    blob.shape.dim.extend(array.shape)
    blob.data.extend(array.astype(np.float64).ravel().tolist())
    if diff is not None:
        blob.diff.extend(np.asarray(diff, np.float64).ravel().tolist())
    return blob


def arraylist_to_blobprotovector_str(arraylist: Iterable[ArrayLike]) -> bytes:
    """Return arrays as the bytes of a BlobProtoVector."""
    vector = caffe_pb2.BlobProtoVector()
    vector.blobs.extend([array_to_blobproto(array) for array in arraylist])
    return vector.SerializeToString()


def blobprotovector_str_to_arraylist(str: bytes) -> list[Array]:
    """Return the arrays in the bytes of a BlobProtoVector. Raises DataError for other bytes."""
    try:
        vector = caffe_pb2.BlobProtoVector.FromString(str)
    except DecodeError as error:
        raise DataError(f"these bytes are not a BlobProtoVector: {error}") from error
    return [blobproto_to_array(blob) for blob in vector.blobs]


def array_to_datum(arr: ArrayLike, label: int | None = None) -> caffe_pb2.Datum:
    """Return a Datum of (C, H, W): bytes for uint8, float_data for other types. Raises DataError for another number of axes."""
    array = np.asarray(arr)
    if array.ndim != 3:
        raise ArrayError(f"a Datum holds an array (channels, height, width), got shape {array.shape}")
    datum = caffe_pb2.Datum(channels=array.shape[0], height=array.shape[1], width=array.shape[2])
    if array.dtype == np.uint8:
        datum.data = array.tobytes()
    else:
        datum.float_data.extend(array.astype(np.float64).ravel().tolist())
    if label is not None:
        datum.label = label
    return datum


def datum_to_array(datum: caffe_pb2.Datum) -> Array:
    """Return the values (C, H, W) of a Datum: uint8 (an encoded image as blue, green, red), or its floats as float64.

    Raises DataError.
    """
    if datum.encoded:
        return datum_array(datum, "the Datum")
    values: Array = np.frombuffer(datum.data, np.uint8) if datum.data else np.array(datum.float_data, np.float64)
    return _shaped(values, [datum.channels, datum.height, datum.width], "the Datum")


def _shaped(values: Array, shape: Sequence[int], what: str) -> Array:
    try:
        return values.reshape(tuple(shape))
    except ValueError:
        raise ArrayError(f"{what} has {values.size} values, which do not fit its shape {tuple(shape)}") from None


# Images.


def load_image(filename: str | PathLike[str], color: bool = True) -> NDArray[np.float32]:
    """Return an image file as float32 in [0, 1]: (H, W, 3) red, green, blue, or (H, W, 1) grey.

    Its EXIF orientation is ignored. Of 16 bits the upper 8 count. Raises DataError.
    """
    rgb = read_image(filename, upright=False)[:, :, ::-1].astype(np.float32)
    rgb /= np.float32(255)
    return rgb if color else np.asarray(rgb @ np.array(GREY, np.float32)[:, None])


def resize_image(im: ArrayLike, new_dims: Sequence[int], interp_order: int = 1) -> NDArray[np.float32]:
    """Return im (H, W, C) as (*new_dims, C), without smoothing.

    interp_order 0: the nearest pixel; 1: bilinear; 2 to 5: splines, with scipy. Raises DataError for other orders and for more
    than limits.pixels, Error without scipy.

    As pycaffe's. One or three channels, by scikit-image: pixel centres are mapped to each other, around the image is its
    minimum, and nothing leaves its range. Others, by scipy's zoom: the corner pixels' centres are mapped to each other.
    """
    image = np.asarray(im, np.float32)
    if image.ndim != 3 or 0 in image.shape or min(new_dims) < 1:
        raise DataError(
            f"cannot resize an image of shape {image.shape} to {tuple(new_dims)}: it must be (height, width, channels)"
        )
    height, width = (int(n) for n in new_dims)
    check_size("an image resized to", height, width)
    if interp_order not in range(6):
        raise ArrayError(f"interp_order must be 0 (nearest), 1 (bilinear) or 2 to 5 (splines), got {interp_order}")
    by_centres = image.shape[2] in (1, 3)
    if interp_order > 1:
        return _spline(image, height, width, interp_order, by_centres)
    outside = image.min()
    for axis, new in enumerate((height, width)):
        old = image.shape[axis]
        places = (np.arange(new) + 0.5) * old / new - 0.5 if by_centres else np.linspace(0, old - 1, new)
        if interp_order == 0:
            image = image.take(np.floor(places + 0.5).astype(int), axis)
        else:
            image = _between(image, axis, places, outside)
    return image


def _between(image: NDArray[np.float32], axis: int, places: Array, outside: np.float32) -> NDArray[np.float32]:
    """Return image (H, W, C) at these places of an axis, linear between its pixels. Pixels around it are `outside`."""
    low = np.floor(places).astype(int)
    part = (places - low).astype(np.float32).reshape(-1, *[1] * (2 - axis))

    def pixels(at: Array) -> NDArray[np.float32]:
        inside = (at >= 0) & (at < image.shape[axis])
        return np.where(inside.reshape(part.shape), image.take(at, axis, mode="clip"), outside)

    first = pixels(low)
    between: NDArray[np.float32] = first + part * (pixels(low + 1) - first)
    return between


def _spline(image: NDArray[np.float32], height: int, width: int, order: int, by_centres: bool) -> NDArray[np.float32]:
    """Return image (H, W, C) as (height, width, C), by B-splines through its pixels."""
    try:
        ndimage: Any = importlib.import_module("scipy.ndimage")
    except ImportError as error:
        raise Error(f"interp_order {order} needs scipy: {install('resize')}; 0 and 1 do not") from error
    factors = (height / image.shape[0], width / image.shape[1], 1)
    if not by_centres:
        return np.asarray(ndimage.zoom(image, factors, order=order), np.float32)
    low, high = image.min(), image.max()
    resized = ndimage.zoom(image, factors, order=order, mode="grid-constant", cval=low, grid_mode=True)
    return np.asarray(np.clip(resized, low, high), np.float32)


def oversample(images: Sequence[ArrayLike], crop_dims: Sequence[int]) -> NDArray[np.float32]:
    """Return ten crops of each image (H, W, C), (10 N, *crop_dims, C) float32: corners, centre, and these mirrored."""
    stack = [np.asarray(image, np.float32) for image in images]
    if not stack or stack[0].ndim != 3:
        raise ArrayError(f"oversample takes images (height, width, channels), got shapes {[image.shape for image in stack]}")
    size, crop = np.array(stack[0].shape[:2]), np.array(crop_dims, int)
    if (crop > size).any():
        raise ArrayError(f"crops of {tuple(crop)} do not fit into images of {tuple(size)}")
    down, right = size - crop
    starts = [(0, 0), (0, right), (down, 0), (down, right), tuple((size - crop) // 2)]
    crops = np.stack([[image[y : y + crop[0], x : x + crop[1]] for y, x in starts] for image in stack])
    both: NDArray[np.float32] = np.concatenate([crops, crops[:, :, :, ::-1]], axis=1)  # crops (N, 5, h, w, C), then mirrored
    return both.reshape(-1, *both.shape[2:])


class Transformer:
    """A converter of images to a net's inputs and back.

    inputs: {input name: shape (N, C, H, W)}. preprocess resizes to (H, W), then applies the settings in this order:
    transpose, channel_swap, raw_scale, mean, input_scale. deprocess reverses all but the resizing.
    Raises Error for an unknown input, and for settings that do not fit the input's shape.
    """

    def __init__(self, inputs: Mapping[str, Sequence[int]]) -> None:
        self.inputs = dict(inputs)
        self.transpose: dict[str, Sequence[int]] = {}
        self.channel_swap: dict[str, Sequence[int]] = {}
        self.raw_scale: dict[str, float] = {}
        self.mean: dict[str, Array] = {}
        self.input_scale: dict[str, float] = {}

    def preprocess(self, in_: str, data: ArrayLike) -> NDArray[np.float32]:
        """Return an image (H, W, C), or (C, H, W) if no transpose is set, as an array for the input in_. data is unchanged."""
        self._check(in_)
        array = np.array(data, np.float32)
        size = tuple(self.inputs[in_][2:])
        if array.ndim == 3 and array.shape[:2] != size:
            array = resize_image(array, size)
        if in_ in self.transpose:
            array = array.transpose(self.transpose[in_])
        if in_ in self.channel_swap:
            array = array[list(self.channel_swap[in_])]
        if in_ in self.raw_scale:
            array = array * np.float32(self.raw_scale[in_])
        if in_ in self.mean:
            array = (array - self.mean[in_]).astype(np.float32)
        if in_ in self.input_scale:
            array = array * np.float32(self.input_scale[in_])
        return np.ascontiguousarray(array)

    def deprocess(self, in_: str, data: ArrayLike) -> NDArray[np.float32]:
        """Return the image of a preprocessed array, the inverse of preprocess, at the input's size.

        Axes of length 1 are dropped.
        """
        self._check(in_)
        array = np.array(data, np.float32).squeeze()
        if in_ in self.input_scale:
            array = array / np.float32(self.input_scale[in_])
        if in_ in self.mean:
            array = (array + self.mean[in_]).astype(np.float32)
        if in_ in self.raw_scale:
            array = array / np.float32(self.raw_scale[in_])
        if in_ in self.channel_swap:
            array = array[np.argsort(self.channel_swap[in_])]
        if in_ in self.transpose:
            array = array.transpose(tuple(np.argsort(self.transpose[in_])))
        return np.ascontiguousarray(array)

    def set_transpose(self, in_: str, order: Sequence[int]) -> None:
        """Set the order of axes: (2, 0, 1) takes (H, W, C) to (C, H, W)."""
        self._check(in_)
        if sorted(order) != list(range(len(self.inputs[in_]) - 1)):
            raise Error(f'the transpose {tuple(order)} is not an order of the {len(self.inputs[in_]) - 1} axes of "{in_}"')
        self.transpose[in_] = tuple(order)

    def set_channel_swap(self, in_: str, order: Sequence[int]) -> None:
        """Set the order of channels: (2, 1, 0) takes red, green, blue to blue, green, red."""
        self._check(in_)
        if sorted(order) != list(range(self.inputs[in_][1])):
            raise Error(f'the channel swap {tuple(order)} is not an order of the {self.inputs[in_][1]} channels of "{in_}"')
        self.channel_swap[in_] = tuple(order)

    def set_raw_scale(self, in_: str, scale: float) -> None:
        """Set a factor that multiplies the image before the mean is subtracted: 255 for images in [0, 1]."""
        self._check(in_)
        self.raw_scale[in_] = scale

    def set_mean(self, in_: str, mean: ArrayLike) -> None:
        """Set the mean to subtract, channels in the net's order: (C,), (H, W) or (C, H, W). Another size is resized."""
        self._check(in_)
        array, shape = np.asarray(mean), tuple(self.inputs[in_][1:])
        if array.ndim == 1 and array.shape == shape[:1]:
            array = array[:, None, None]
        elif array.ndim == 2 or (array.ndim == 3 and array.shape[0] == shape[0]):
            array = array.reshape(-1, *array.shape[-2:])
            if array.shape[1:] != shape[1:]:
                # resize_image expects channels last
                array = resize_image(array.transpose(1, 2, 0), shape[1:]).transpose(2, 0, 1)
        else:
            raise ArrayError(f'a mean of shape {array.shape} does not fit the input "{in_}" of {shape}')
        self.mean[in_] = array

    def set_input_scale(self, in_: str, scale: float) -> None:
        """Set a factor that multiplies the image after the mean is subtracted."""
        self._check(in_)
        self.input_scale[in_] = scale

    def _check(self, in_: str) -> None:
        if in_ not in self.inputs:
            raise Error(f'"{in_}" is not an input of this Transformer; its inputs are {", ".join(self.inputs)}')
