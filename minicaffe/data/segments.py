"""Segments of a video whose frames are images in a folder: so many frames in a row of each of so many equal parts.

    FOLDER LENGTH LABEL    a line of the list; the frames are numbered from 1 to LENGTH

Source: the video_data_layer.cpp, io.cpp and data_transformer.cpp of temporal segment networks (Wang et al., 2016).
"""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.blob import Array
from minicaffe.errors import DataError
from minicaffe.files import granted
from minicaffe.mode import TRAIN, Phase
from minicaffe.proto import caffe_pb2

from .data_transformer import read_mean
from .image_bytes import Pixels, read_image, resized

RGB = caffe_pb2.VideoDataParameter.RGB
NAMES = {True: "image_%04d.jpg", False: "flow_%c_%04d.jpg"}
"""The names of frames, in colour and of flow."""
NUMBER = r"%0?\d?d"
RATIOS = (1.0, 0.875, 0.75, 0.66)
FIELDS = ("scale", "mirror", "crop_size", "mean_file", "mean_value")
OWN = ("fix_crop", "more_fix_crop", "multi_scale", "scale_ratios", "max_distort", "is_flow")
"""Fields of transform_param that segments alone take."""


def check_pattern(pattern: str, in_colour: bool) -> str:
    """The pattern of the frames' names, as C's printf takes it; "" is the default. Raises DataError for another form."""
    pattern = pattern or NAMES[in_colour]
    wanted = [NUMBER] if in_colour else ["%c", NUMBER]
    if not re.fullmatch("[^%]*".join(["", *wanted, ""]), pattern):
        form = "one %d, as in %05d" if in_colour else "%c, for x and y, and then one %d, as in %05d"
        raise DataError(f'name_pattern "{pattern}" must have {form}')
    return pattern


def offsets(length: int, segments: int, frames: int, random: np.random.Generator | None) -> list[int]:
    """The frames before each segment's; random: drawn from it, else in the middle. A part that is too short gives 1."""
    part = length // segments
    if part < frames:
        return [1] * segments
    free = part - frames + 1
    return [i * part + (int(random.integers(free)) if random else free // 2) for i in range(segments)]


def read_segments(folder: str, pattern: str, starts: list[int], frames: int, in_colour: bool) -> list[Pixels]:
    """The frames of all segments, one after another: (H, W, 3), or of flow x and y, (H, W, 1) each. Raises DataError."""
    numbers = [start + i for start in starts for i in range(1, frames + 1)]
    names = [pattern % n for n in numbers] if in_colour else [pattern % (way, n) for n in numbers for way in "xy"]
    return [read_image(granted(f"{folder}/{name}"), in_colour) for name in names]


class SegmentTransformer:
    """y = (x - mean) * scale of all channels of a video (C, H, W), cropped and mirrored alike.

    In TRAIN the crop is drawn, with multi_scale of several sizes, scale_ratios of the short side, then resized to crop_size;
    with fix_crop one of 5 places, with more_fix_crop of 13. In TEST it is central. is_flow: mirroring makes x 255 - x.
    mean_value: one, or some that repeat over the channels; mean_file: of the whole video. Raises DataError for other fields of
    transform_param and values that do not fit.
    """

    def __init__(
        self, param: caffe_pb2.TransformationParameter, phase: Phase, generator: np.random.Generator, dtype: DTypeLike
    ) -> None:
        if wrong := [field.name for field, _ in param.ListFields() if field.name not in FIELDS + OWN]:
            raise DataError(f"transform_param.{wrong[0]} is not for segments, which take {', '.join(FIELDS + OWN)}")
        if not all(0 < ratio <= 1 for ratio in param.scale_ratios):
            raise DataError("scale_ratios must be above 0, at most 1")
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.param, self.generator, self.is_train = param, generator, phase == TRAIN
        self.mean = read_mean(param, self.dtype)

    def shape(self, video: tuple[int, ...]) -> tuple[int, ...]:
        """The transformed shape of a video (C, H, W). Raises DataError if it is smaller than the crop."""
        crop, (channels, height, width) = self.param.crop_size, video
        if min(height, width) < crop:
            raise DataError(f"crop_size {crop} is too large for frames of {width} x {height}")
        if self.mean is not None:
            if self.param.mean_file and self.mean.shape != video:
                raise DataError(f"mean_file {self.param.mean_file} has shape {self.mean.shape}, the video has {video}")
            if channels % len(self.mean):
                raise DataError(f"{len(self.mean)} mean_value given for {channels} channels, which is no multiple")
        return (channels, crop, crop) if crop else video

    def transform(self, video: Pixels, out: Array) -> None:
        """Write the transformed video to out, of shape()'s shape."""
        if self.shape(video.shape) != out.shape:
            raise DataError(f"the video gives {self.shape(video.shape)}, but the batch began with {out.shape}")
        flip = self.param.mirror and bool(self.generator.integers(2))
        crop, window = self.param.crop_size, (slice(None), slice(None))
        if crop:
            high, wide = self._size(video.shape)
            top, left = self._place(video.shape[1] - high, video.shape[2] - wide)
            window = slice(top, top + high), slice(left, left + wide)
        part = video[:, window[0], window[1]]
        if part.shape != out.shape:
            part = resized(part.transpose(1, 2, 0), crop, crop).transpose(2, 0, 1)
        out[...] = part
        if flip and self.param.is_flow:
            out[::2] = 255 - out[::2]
        if self.mean is not None:
            out -= self._mean_of(out.shape, window)
        if self.param.scale != 1:
            out *= self.dtype.type(self.param.scale)
        if flip:
            out[...] = out[..., ::-1].copy()

    def _size(self, video: tuple[int, ...]) -> tuple[int, int]:
        """The crop's height and width."""
        crop, short = self.param.crop_size, min(video[1:])
        if not (self.is_train and self.param.multi_scale):
            return crop, crop
        lengths = [int(np.float32(short) * np.float32(ratio)) for ratio in self.param.scale_ratios or RATIOS]
        lengths = [crop if abs(length - crop) < 3 else length for length in lengths]
        near = [(i, j) for i, j in product(range(len(lengths)), repeat=2) if abs(i - j) <= self.param.max_distort]
        if not near or min(lengths) < 1 or max(lengths) > short:
            raise DataError(f"scale_ratios and max_distort leave no crop of frames whose short side is {short}")
        i, j = near[int(self.generator.integers(len(near)))]
        return lengths[i], lengths[j]

    def _place(self, down: int, right: int) -> tuple[int, int]:
        """The crop's first row and column, of which there are down + 1 and right + 1."""
        if not self.is_train:
            return down // 2, right // 2
        if not self.param.fix_crop:
            return int(self.generator.integers(down + 1)), int(self.generator.integers(right + 1))
        places = [*product((0, 4), repeat=2), (2, 2)]
        if self.param.more_fix_crop:
            places += [(0, 2), (4, 2), (2, 0), (2, 4), *product((1, 3), repeat=2)]
        y, x = places[int(self.generator.integers(len(places)))]
        return y * (down // 4), x * (right // 4)

    def _mean_of(self, shape: tuple[int, ...], window: tuple[slice, slice]) -> Array:
        """The mean of a crop (C, H, W); of multi_scale the mean's first rows and columns, as in the original."""
        assert self.mean is not None
        if not self.param.mean_file:
            return np.tile(self.mean, (shape[0] // len(self.mean), 1, 1))
        if self.param.multi_scale and self.param.crop_size:
            return self.mean[:, : shape[1], : shape[2]]
        return self.mean[:, window[0], window[1]]
