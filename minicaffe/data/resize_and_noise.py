"""The steps of the SSD fork's transform_param in all data layers: resize_param, then noise_param, on bytes.

The fork's layers other than AnnotatedData silently ignore distort_param, expand_param and emit_constraint.
Source: the SSD fork's data_transformer.cpp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import DataError
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .image_bytes import check_size
from .noise import check_noise, noisy
from .resizing import check_resize, fitted_size, resized_by

Array = NDArray[Any]
BOXES_FIELDS = ("distort_param", "expand_param", "emit_constraint")


class ResizeAndNoise:
    """resize_param and noise_param of a transform_param, if given. Raises DataError."""

    def __init__(self, param: caffe_pb2.TransformationParameter) -> None:
        self.resize = param.resize_param if param.HasField("resize_param") else None
        self.noise = param.noise_param if param.HasField("noise_param") else None
        check_noise(param.noise_param)
        if self.resize is not None:
            check_resize(self.resize)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The resized height and width. Raises DataError for more than limits.pixels."""
        if self.resize is None:
            return height, width
        padded = self.resize.resize_mode == self.resize.FIT_LARGE_SIZE_AND_PAD
        new = (self.resize.height, self.resize.width) if padded else fitted_size(height, width, self.resize)
        check_size("an image resized to", *new)
        return new

    def __call__(self, pixels: Array, random: np.random.Generator) -> tuple[Array, Array | None]:
        """pixels (H, W, C), changed, and the frame (4,) that boxes are now relative to, or None if they are unchanged."""
        frame = None
        if self.resize is not None:
            check_bytes(pixels, "resize_param")
            pixels, frame = resized_by(np.ascontiguousarray(pixels), self.resize, random)
        if self.noise is not None:
            check_bytes(pixels, "noise_param")
            pixels = noisy(pixels, self.noise, random)
        return pixels, frame


def check_bytes(pixels: Array, field: str) -> None:
    """Raises DataError unless pixels are bytes, as the field requires."""
    if pixels.dtype != np.uint8:
        raise DataError(f"{field} needs images of bytes, but these are floats")


def crop_of(param: caffe_pb2.TransformationParameter) -> tuple[int, int]:
    """The height and width of the crop, (0, 0) without one. Raises DataError for contradictory fields."""
    if param.crop_size and (param.crop_h or param.crop_w):
        raise DataError("give crop_size, or crop_h and crop_w, not both")
    if bool(param.crop_h) != bool(param.crop_w):
        raise DataError(f"give both crop_h and crop_w, or neither; got {param.crop_h} and {param.crop_w}")
    return param.crop_h or param.crop_size, param.crop_w or param.crop_size


def warn_of_no_effect(layer: Layer, boxes: bool) -> None:
    """Warn of fields in the layer's transform_param without effect, as in the fork. boxes: the layer is AnnotatedData."""
    param = layer.param.transform_param
    for name in BOXES_FIELDS:
        if not boxes and param.HasField(name):  # type: ignore[arg-type]
            layer.warn(f"{name} has no effect here: only AnnotatedData reads it", f"transform_param.{name}")
    if param.resize_param.prob != 1:
        layer.warn("resize_param.prob has no effect: every image is resized", "transform_param.resize_param.prob")
