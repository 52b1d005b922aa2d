"""What AnnotatedData does to an image and its boxes before the mean and the scale.

    distort_param -> expand_param -> crop by a batch sampler -> resize_param -> noise_param -> crop_size -> mirror

Source: the SSD fork's annotated_data_layer.cpp and data_transformer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.augmentation import check_distortion, distorted, expanded
from minicaffe.data.data_transformer import ResizeAndNoise, Window, check_bytes, crop_of, read_mean
from minicaffe.data.resizing import extrapolation
from minicaffe.errors import DataError
from minicaffe.mode import TRAIN, Phase
from minicaffe.proto import caffe_pb2

from .batch_samplers import check_sampler, draw_crop, seen_in

OWN_FIELDS = (
    "distort_param", "expand_param", "resize_param", "noise_param", "emit_constraint",
    "mirror", "crop_size", "crop_h", "crop_w",
)  # fmt: skip


MOST_TRIALS = 10_000
"""Most boxes that are drawn for one image; SSD draws 300."""


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
        self.change, self.crop = ResizeAndNoise(param), crop_of(param)
        self.distort = param.distort_param if param.HasField("distort_param") else None
        self.expand = param.expand_param if param.HasField("expand_param") else None
        check_distortion(param.distort_param)
        for sampler in samplers:
            check_sampler(sampler.sampler)
        if (trials := sum(sampler.max_trials for sampler in samplers)) > MOST_TRIALS:
            raise DataError(f"max_trials of the batch samplers are at most {MOST_TRIALS} together, got {trials}")
        if not 1 <= param.expand_param.max_expand_ratio < np.inf:
            raise DataError(
                f"expand_param.max_expand_ratio must be >= 1 and finite, got {param.expand_param.max_expand_ratio:g}"
            )
        mean = read_mean(param, np.float32) if self.expand is not None else None
        self.canvas = None if mean is None else mean.mean(axis=(1, 2))

    def plain(self) -> caffe_pb2.TransformationParameter:
        """What is left to do: mean and scale, and how images are decoded."""
        plain = caffe_pb2.TransformationParameter()
        plain.CopyFrom(self.param)
        for field in OWN_FIELDS:
            plain.ClearField(field)  # type: ignore[arg-type]
        return plain

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The height and width of the result for an image of this size that no sampler crops."""
        return self.crop if self.crop[0] else self.change.size(height, width)

    def __call__(self, image: Array, boxes: Array) -> tuple[Array, Array, Window]:
        """image (C, H, W), changed; those of boxes (n, 7: class, instance, corners, difficult) that are still seen; and where
        crop_size cut the image."""
        pixels = image.transpose(1, 2, 0)
        if self.distort is not None:
            check_bytes(pixels, "distort_param")
            pixels = distorted(pixels, self.distort, self.random)
        if self.expand is not None:
            check_bytes(pixels, "expand_param")
            pixels, canvas = expanded(pixels, self.expand, self._canvas(len(image)), self.random)
            boxes = self._seen(canvas, boxes)
        crop = draw_crop(self.samplers, boxes[:, 2:6], self.random)
        boxes = self._seen(crop, boxes)
        pixels, frame = self.change(pixels if crop is None else cut(pixels, crop), self.random)
        boxes = self._seen(frame, boxes)
        pixels, window, seen = self._cropped(pixels)
        boxes = self._seen(seen, boxes)
        if self.param.mirror and self.random.integers(2):
            pixels = pixels[:, ::-1]
            boxes[:, [2, 4]] = 1 - boxes[:, [4, 2]]  # xmin and xmax change places
        factors = extrapolation(pixels.shape[:2], self.param.resize_param)
        if factors is not None:
            boxes[:, 2:6] *= factors
        return pixels.transpose(2, 0, 1), boxes, window

    def _canvas(self, channels: int) -> Array | None:
        """The colour around an expanded image: mean values, or a mean image's average."""
        if self.canvas is not None and len(self.canvas) not in (1, channels):
            given = "channels in the mean_file" if self.param.mean_file else "mean_value given"
            raise DataError(f"{len(self.canvas)} {given} for {channels} channels: give one, or one for each")
        return self.canvas

    def _seen(self, frame: Array | None, boxes: Array) -> Array:
        """The boxes of those objects that count in frame (4,), relative to it; all where there is none."""
        if frame is None:
            return boxes
        boxes = boxes.copy()
        boxes[:, 2:6], counts = seen_in(frame, boxes[:, 2:6], self.emit)
        return boxes[counts]

    def _cropped(self, pixels: Array) -> tuple[Array, Window, Array | None]:
        """The crop of pixels (H, W, C), at random in phase TRAIN, else the centre; where it is; and that relative (4,)."""
        (high, wide), (height, width) = self.crop, pixels.shape[:2]
        if not high:
            return pixels, Window(slice(None), slice(None), height, width), None
        if high > height or wide > width:
            raise DataError(f"the crop, {wide} wide and {high} high, is larger than the image, {width} wide and {height} high")
        free = (height - high, width - wide)
        top, left = (int(self.random.integers(n + 1)) if self.random_crop else n // 2 for n in free)
        window = Window(slice(top, top + high), slice(left, left + wide), height, width)
        seen = np.array([left / width, top / height, (left + wide) / width, (top + high) / height])
        return pixels[window.rows, window.columns], window, seen


def cut(pixels: Array, crop: Array) -> Array:
    """The part of pixels (H, W, C) in crop (4,), at least a pixel; edges are cut to whole pixels."""
    height, width = pixels.shape[:2]
    x, y, x_end, y_end = np.clip(crop, 0, 1) * [width, height, width, height]
    left, top = min(int(x), width - 1), min(int(y), height - 1)
    return pixels[top : top + max(int(y_end - y), 1), left : left + max(int(x_end - x), 1)]
