"""What AnnotatedData does to an image and its boxes before the mean and the scale.

    distort_param -> expand_param -> crop by a batch sampler -> resize_param -> noise_param -> crop_size -> mirror

Source: the SSD fork's annotated_data_layer.cpp and data_transformer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.augmentation import check_distortion, distorted, expanded
from minicaffe.data_transformer import check_mean, read_mean
from minicaffe.errors import DataError
from minicaffe.mode import TRAIN, Phase
from minicaffe.noise import check_noise, noisy
from minicaffe.proto import caffe_pb2
from minicaffe.resizing import check_resize, fitted_size, resized_by

from .batch_samplers import draw_crop, seen_in

Array = NDArray[Any]
BYTES_FIELDS = ("distort_param", "expand_param", "resize_param", "noise_param")
OWN_FIELDS = (*BYTES_FIELDS, "emit_constraint", "mirror", "crop_size", "crop_h", "crop_w")


class AnnotatedTransform:
    """The parts of transform_param that move boxes or need bytes, and the batch samplers. Raises DataError."""

    def __init__(
        self,
        param: caffe_pb2.TransformationParameter,
        samplers: Sequence[caffe_pb2.BatchSampler],
        phase: Phase,
        random: np.random.Generator,
    ) -> None:
        self.param, self.samplers, self.random, self.random_crop = param, list(samplers), random, phase == TRAIN
        self.emit = param.emit_constraint if param.HasField("emit_constraint") else None
        self.in_bytes = [name for name in BYTES_FIELDS if param.HasField(name)]  # type: ignore[arg-type]
        self.crop = (param.crop_h or param.crop_size, param.crop_w or param.crop_size)
        self._check()
        self.mean = read_mean(param, np.float32) if "expand_param" in self.in_bytes else None

    def _check(self) -> None:
        param = self.param
        check_distortion(param.distort_param)
        check_noise(param.noise_param)
        if "resize_param" in self.in_bytes:
            check_resize(param.resize_param)
        if param.crop_size and (param.crop_h or param.crop_w):
            raise DataError("give crop_size, or crop_h and crop_w, not both")
        if bool(self.crop[0]) != bool(self.crop[1]):
            raise DataError(f"crop_h and crop_w go together, got {param.crop_h} and {param.crop_w}")
        if param.expand_param.max_expand_ratio < 1:
            raise DataError(f"expand_param.max_expand_ratio must be >= 1, got {param.expand_param.max_expand_ratio:g}")
        if param.mean_file and (self.crop[0] or "expand_param" in self.in_bytes):
            raise DataError("AnnotatedData with crop_size or expand_param needs mean_value, not a mean_file")

    def plain(self) -> caffe_pb2.TransformationParameter:
        """What is left to do: mean and scale, and how images are decoded."""
        plain = caffe_pb2.TransformationParameter()
        plain.CopyFrom(self.param)
        for field in OWN_FIELDS:
            plain.ClearField(field)  # type: ignore[arg-type]
        return plain

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The height and width of the result for an image of this size that no sampler crops."""
        resize = self.param.resize_param
        if "resize_param" in self.in_bytes:
            fit_small = resize.resize_mode == resize.FIT_SMALL_SIZE
            height, width = fitted_size(height, width, resize) if fit_small else (resize.height, resize.width)
        return self.crop if self.crop[0] else (height, width)

    def __call__(self, image: Array, boxes: Array) -> tuple[Array, Array]:
        """image (C, H, W), changed, and those of boxes (n, 7: class, instance, corners, difficult) that are still seen."""
        if self.in_bytes and image.dtype != np.uint8:
            raise DataError(f"{self.in_bytes[0]} needs images of bytes, these are floats")
        pixels = image.transpose(1, 2, 0)
        if "distort_param" in self.in_bytes:
            pixels = distorted(pixels, self.param.distort_param, self.random)
        if "expand_param" in self.in_bytes:
            if self.mean is not None:
                check_mean(self.mean, image.shape, "")
            pixels, canvas = expanded(pixels, self.param.expand_param, self.mean, self.random)
            boxes = self._seen(canvas, boxes)
        crop = draw_crop(self.samplers, boxes[:, 2:6], self.random)
        boxes = self._seen(crop, boxes)
        pixels = pixels if crop is None else cut(pixels, crop)
        if "resize_param" in self.in_bytes:
            pixels, frame = resized_by(np.ascontiguousarray(pixels), self.param.resize_param, self.random)
            boxes = self._seen(frame, boxes)
        if "noise_param" in self.in_bytes:
            pixels = noisy(pixels, self.param.noise_param, self.random)
        if self.crop[0]:
            pixels, window = self._cropped(pixels)
            boxes = self._seen(window, boxes)
        if self.param.mirror and self.random.integers(2):
            pixels = pixels[:, ::-1]
            boxes[:, [2, 4]] = 1 - boxes[:, [4, 2]]
        return pixels.transpose(2, 0, 1), boxes

    def _seen(self, frame: Array | None, boxes: Array) -> Array:
        """The boxes of those objects that count in frame (4,), relative to it; all where there is none."""
        if frame is None:
            return boxes
        boxes = boxes.copy()
        boxes[:, 2:6], counts = seen_in(frame, boxes[:, 2:6], self.emit)
        return boxes[counts]

    def _cropped(self, pixels: Array) -> tuple[Array, Array]:
        """crop_h x crop_w of pixels (H, W, C), at random in phase TRAIN, else the centre; and that window (4,)."""
        (high, wide), (height, width) = self.crop, pixels.shape[:2]
        if high > height or wide > width:
            raise DataError(f"the crop, {wide} wide and {high} high, is larger than the image, {width} wide and {height} high")
        free = (height - high, width - wide)
        top, left = (int(self.random.integers(n + 1)) if self.random_crop else n // 2 for n in free)
        window = np.array([left / width, top / height, (left + wide) / width, (top + high) / height])
        return pixels[top : top + high, left : left + wide], window


def cut(pixels: Array, crop: Array) -> Array:
    """The part of pixels (H, W, C) in crop (4,), at least a pixel; edges are cut to whole pixels."""
    height, width = pixels.shape[:2]
    x, y, x_end, y_end = np.clip(crop, 0, 1) * [width, height, width, height]
    left, top = min(int(x), width - 1), min(int(y), height - 1)
    return pixels[top : top + max(int(y_end - y), 1), left : left + max(int(x_end - x), 1)]
