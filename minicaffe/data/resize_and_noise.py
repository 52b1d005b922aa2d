"""The steps of the SSD fork's transform_param that all data layers make: resize_param, then noise_param, on bytes.

What only AnnotatedData makes (distort_param, expand_param, emit_constraint) the fork's other layers pass over in silence.
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
    """resize_param and noise_param of a transform_param, where they are given. Raises DataError."""

    def __init__(self, param: caffe_pb2.TransformationParameter) -> None:
        self.resize = param.resize_param if param.HasField("resize_param") else None
        self.noise = param.noise_param if param.HasField("noise_param") else None
        check_noise(param.noise_param)
        if self.resize is not None:
            check_resize(self.resize)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """What becomes of this height and width. Raises DataError for more than limits.pixels."""
        if self.resize is None:
            return height, width
        padded = self.resize.resize_mode == self.resize.FIT_LARGE_SIZE_AND_PAD
        new = (self.resize.height, self.resize.width) if padded else fitted_size(height, width, self.resize)
        check_size("an image resized to", *new)
        return new

    def __call__(self, pixels: Array, random: np.random.Generator) -> tuple[Array, Array | None]:
        """pixels (H, W, C), changed, and the frame (4,) that boxes are now relative to, or None where they stay."""
        frame = None
        for name in [name for name, given in (("resize_param", self.resize), ("noise_param", self.noise)) if given is not None]:
            check_bytes(pixels, name)
        if self.resize is not None:
            pixels, frame = resized_by(np.ascontiguousarray(pixels), self.resize, random)
        if self.noise is not None:
            pixels = noisy(pixels, self.noise, random)
        return pixels, frame


def check_bytes(pixels: Array, field: str) -> None:
    """Raises DataError unless pixels are bytes, which field needs."""
    if pixels.dtype != np.uint8:
        raise DataError(f"{field} needs images of bytes, these are floats")


def crop_of(param: caffe_pb2.TransformationParameter) -> tuple[int, int]:
    """The height and width of the crop, (0, 0) without one. Raises DataError where fields contradict each other."""
    if param.crop_size and (param.crop_h or param.crop_w):
        raise DataError("give crop_size, or crop_h and crop_w, not both")
    if bool(param.crop_h) != bool(param.crop_w):
        raise DataError(f"crop_h and crop_w go together, got {param.crop_h} and {param.crop_w}")
    return param.crop_h or param.crop_size, param.crop_w or param.crop_size


def warn_of_no_effect(layer: Layer, boxes: bool) -> None:
    """Warn of what in the layer's transform_param changes nothing, as in the fork. boxes: the layer is AnnotatedData."""
    param = layer.param.transform_param
    for name in BOXES_FIELDS:
        if not boxes and param.HasField(name):  # type: ignore[arg-type]
            layer.warn(f"{name} changes nothing here: only AnnotatedData looks at it", f"transform_param.{name}")
    if param.resize_param.prob != 1:
        layer.warn("resize_param.prob changes nothing: every image is resized", "transform_param.resize_param.prob")
