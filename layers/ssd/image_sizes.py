"""The images of detections: their names and sizes, and boxes in their pixels.

Source: the SSD fork's detection_output_layer.cpp, detection_evaluate_layer.cpp (name_size_file) and bbox_util.cpp (OutputBBox).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import DataError
from minicaffe.files import granted, read_text
from minicaffe.proto import caffe_pb2

Resize = caffe_pb2.ResizeParameter


LARGEST = 2**31 - 1
"""Pixels of a side: Caffe's int."""


class Sized(NamedTuple):
    """An image's name, and its height and width in pixels."""

    name: str
    height: int
    width: int


def read_name_sizes(file: str) -> list[Sized]:
    """Return the images that a name_size_file lists, "name height width" on each line, from 1 to LARGEST. Raises DataError."""
    try:
        words = [line.split() for line in read_text(granted(file), "lists").split("\n") if line.strip()]
        sizes = [Sized(name, int(height), int(width)) for name, height, width in words]
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f'{file}: its lines must be "name height width"') from error
    if not sizes:
        raise DataError(f"{file}: no sizes in it")
    for image in sizes:
        if not (1 <= image.height <= LARGEST and 1 <= image.width <= LARGEST):
            raise DataError(f"{file}: {image.name}: no image has the height {image.height} and the width {image.width}")
    return sizes


def check_frame(resize: caffe_pb2.ResizeParameter | None) -> None:
    """Raise DataError for a resize_param without a size."""
    if resize is not None and not (resize.height and resize.width):
        raise DataError(f"resize_param needs a height and a width > 0, got {resize.height} and {resize.width}")


def boxes_in_pixels(boxes: Array, image: Sized, resize: caffe_pb2.ResizeParameter | None) -> Array:
    """Boxes (n, 4), relative to the net's input, in pixels of image and cut at its edges; resize: how it became the input.

    FIT_LARGE_SIZE_AND_PAD: relative to the padded frame. FIT_SMALL_SIZE with height_scale and width_scale: to these.
    """
    size = np.array([image.width, image.height] * 2, boxes.dtype)
    if resize is not None and resize.resize_mode == Resize.FIT_SMALL_SIZE and resize.height_scale and resize.width_scale:
        scale = np.array([resize.width_scale, resize.height_scale] * 2, boxes.dtype)
        scaled: Array = np.clip(boxes * scale, 0, size)
        return scaled
    if resize is not None and resize.resize_mode == Resize.FIT_LARGE_SIZE_AND_PAD:
        boxes = (boxes - margins(image, resize)) / (1 - 2 * margins(image, resize))
    pixels: Array = np.clip(boxes, 0, 1) * size
    return pixels.astype(boxes.dtype)


def margins(image: Sized, resize: caffe_pb2.ResizeParameter) -> Array:
    """Return the part of the frame that is padding left, above, left, above (4,)."""
    wide, wanted = image.width / image.height, resize.width / resize.height
    if wide > wanted:
        return np.array([0, (1 - wanted / wide) / 2] * 2)
    return np.array([(1 - wide / wanted) / 2, 0] * 2)
