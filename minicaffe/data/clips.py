"""Clips and segments of videos: frames of a video file (by PyAV, the extra video) or of a folder of images.

    PATH START LABEL       a line of a list of clips; PATH LABEL where the start is drawn from a video file
    FOLDER LENGTH LABEL    a line of a list of segments; the frames are numbered from 1 to LENGTH

FFmpeg's readers of play lists open other files and addresses. A file is therefore read as the format that its name says
(FORMATS), never as the one that its content suggests. Source: C3D's video_data_layer.cpp, image_io.cpp and data_transformer.cpp
(Tran et al., 2015); the same files and io.cpp of temporal segment networks (Wang et al., 2016).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from minicaffe import limits
from minicaffe.blob import Array
from minicaffe.data.data_transformer import read_mean
from minicaffe.data.image_bytes import Pixels, check_size, read_image, resized
from minicaffe.data.image_list import label_number, text_lines
from minicaffe.errors import DataError, WeightsError, install, optional_module, unread
from minicaffe.files import KeptOpen, granted
from minicaffe.formats.weights import read_binaryproto
from minicaffe.mode import TRAIN, Phase
from minicaffe.proto import caffe_pb2

FORMATS = {
    **dict.fromkeys((".mp4", ".m4v", ".mov"), "mov"),
    **dict.fromkeys((".mkv", ".webm"), "matroska"),
    **dict.fromkeys((".mpg", ".mpeg"), "mpeg"),
    ".avi": "avi",
}
"""FFmpeg's name of the format, by suffix."""


def frame_count(path: str | PathLike[str]) -> int:
    """Return the number of stored frames, without decoding any.

    Raises DataError, also for 0, and Error without PyAV.
    """
    with _opened(path) as (container, stream):
        count: int = sum(packet.size > 0 for packet in container.demux(stream))
    if not count:
        raise DataError(f"{path}: a video without frames")
    return count


def read_frames(path: str | PathLike[str], start: int = 0, stop: int | None = None, step: int = 1) -> Iterator[Pixels]:
    """Yield every step-th frame (H, W, 3), blue, green, red, from start to before stop.

    Raises DataError where the video ends early, after the frames up to there.
    """
    wanted, at = iter(range(start, frame_count(path) if stop is None else stop, step)), -1
    following = next(wanted, None)
    with _opened(path) as (container, stream):
        for at, frame in enumerate(container.decode(stream)):
            if following is None:
                return
            if at == following:
                check_size(f"{path}: frame {at}", frame.height, frame.width)
                yield np.ascontiguousarray(frame.to_ndarray(format="bgr24"))
                following = next(wanted, None)
    if following is not None:
        raise DataError(f"{path}: the video ends before frame {following}: {at + 1} frames can be decoded")


@contextmanager
def _opened(path: str | PathLike[str]) -> Iterator[tuple[Any, Any]]:
    """Open the container and its first video stream. Raises DataError for whatever FFmpeg refuses, here or in the block."""
    av = optional_module("av", f"{path}: videos need PyAV: {install('video')}")
    kind = FORMATS.get(os.path.splitext(path)[1].lower())
    if kind is None:
        raise DataError(f"{path}: not a video that can be read ({', '.join(FORMATS)})")
    try:
        with KeptOpen(open(path, "rb")) as file, av.open(file, format=kind, metadata_errors="replace") as container:
            if not container.streams.video:
                raise DataError(f"{path}: no video in this file")
            stream = container.streams.video[0]
            if stream.codec_context is None:
                raise DataError(f"{path}: FFmpeg has no decoder of its video: convert it, as with ffmpeg -i FILE new.mp4")
            stream.codec_context.options = {"max_pixels": str(limits.pixels)}
            yield container, stream
    except (av.FFmpegError, OSError, ValueError) as error:
        raise DataError(unread(str(path), "cannot read the video", error)) from error


FRAME = "{folder}/{number:06}.jpg"
"""The name of a frame in a folder of frames."""
FIELDS = ("scale", "mirror", "crop_size", "mean_file", "mean_value")
"""Of transform_param, those that clips take."""


class Clip(NamedTuple):
    """A clip of a list: its video or folder of frames, its first frame, its labels, and its line number, from 1.

    start: where starts are drawn in a folder, the number of frames.
    """

    name: str
    start: int
    labels: tuple[int, ...]
    line: int

    @property
    def label(self) -> str:
        """The rest of the line."""
        return " ".join([str(self.start), ",".join(map(str, self.labels))])


def read_clips(path: str | PathLike[str], has_start: bool, several: bool) -> list[Clip]:
    """Return the clips of a list; blank lines are skipped.

    several: LABEL is a list such as 3,7. Raises DataError, with the line.
    """
    clips = []
    for number, line in enumerate(text_lines(path), 1):
        words = line.split()
        if not words:
            continue
        if len(words) != 2 + has_start:
            wanted = "PATH START LABEL" if has_start else "PATH LABEL"
            raise DataError(f'{path}:{number}: "{line.strip()}" is not {wanted}')
        place = f"{path}:{number}"
        start = label_number(words[1], f"{place}: the start") if has_start else 0
        if start < 0:
            raise DataError(f"{place}: a clip cannot start at frame {start}")
        labels = words[-1].split(",") if several else words[-1:]
        clips.append(Clip(words[0], start, tuple(label_number(label, place) for label in labels), number))
    if not clips:
        raise DataError(f"{path}: the list has no clip")
    return clips


def read_video(path: str, start: int, length: int, step: int) -> list[Pixels]:
    """Return `length` frames (H, W, 3) of a video, every step-th from start on. Raises DataError if the video ends early."""
    check_length(path, frame_count(path), start, length, step)
    return list(read_frames(path, start, start + length * step, step))


def check_length(path: str, count: int, start: int, length: int, step: int) -> None:
    """Raise DataError unless a video of count frames has the clip."""
    if start + length * step > count:
        steps = f" of {step} frames each" * (step > 1)
        raise DataError(f"{path}: the video has {count} frames, but the clip needs {length}{steps} from frame {start} on")


def read_folder(folder: str, start: int, length: int, step: int) -> list[Pixels]:
    """Return `length` frames (H, W, 3) of a folder, every step-th from number start on.

    Raises DataError for one that cannot be read.
    """
    names = (FRAME.format(folder=folder, number=start + i * step) for i in range(length))
    return [read_image(granted(name)) for name in names]


def as_clip(frames: list[Pixels], height: int, width: int) -> Pixels:
    """Return frames as one array (3, L, H, W), resized where a size is given. Raises DataError for frames of several sizes."""
    sized = [resized(frame, height, width) if height else frame for frame in frames]
    if len({frame.shape for frame in sized}) > 1:
        raise DataError("the frames have several sizes: give new_height and new_width")
    clip: Pixels = np.stack(sized).transpose(3, 0, 1, 2)
    return clip


class ClipTransformer:
    """The transformation of clips (3, L, H, W): y = (x - mean) * scale, cropped and mirrored at random, all frames alike.

    The crop is central in TEST. mean_file: a clip's mean (1, 3, L, H, W). last: whether the last place may be cropped too; C3D
    v1.0 never does. Raises DataError for other fields of transform_param, a mean that does not fit and a clip smaller than the
    crop.
    """

    def __init__(
        self,
        param: caffe_pb2.TransformationParameter,
        phase: Phase,
        generator: np.random.Generator,
        dtype: DTypeLike,
        last: bool,
    ) -> None:
        for field, _ in param.ListFields():
            if field.name not in FIELDS:
                raise DataError(f"transform_param.{field.name} is not for clips, which take {', '.join(FIELDS)}")
        if param.mean_file and param.mean_value:
            raise DataError("mean_file and mean_value cannot both be given")
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self.param, self.generator, self.last = param, generator, last
        self.random_crop = phase == TRAIN
        self.mean = self._read_mean()

    def _read_mean(self) -> Array | None:
        if self.param.mean_value:
            return np.array(self.param.mean_value, self.dtype).reshape(-1, 1, 1, 1)
        if not self.param.mean_file:
            return None
        try:
            mean = read_binaryproto(granted(self.param.mean_file))
        except (WeightsError, OSError) as error:
            raise DataError(f"mean_file: {error}") from error
        if mean.ndim != 5 or mean.shape[0] != 1:
            raise DataError(f"mean_file {self.param.mean_file}: holds shape {mean.shape}, not one clip (1, 3, L, H, W)")
        return np.asarray(mean[0], self.dtype)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the transformed shape of a clip of this shape."""
        crop = self.param.crop_size
        if min(shape[2:]) < crop + (not self.last and crop > 0):
            raise DataError(f"crop_size {crop} is too large for frames of {shape[3]} x {shape[2]}")
        return (*shape[:2], crop, crop) if crop else shape

    def transform(self, clip: Pixels, out: Array) -> None:
        """Write the transformed clip to out, of shape()'s shape."""
        if self.shape(clip.shape) != out.shape:
            raise DataError(f"the clip gives {self.shape(clip.shape)}, but the batch began with {out.shape}")
        flip = self.param.mirror and bool(self.generator.integers(2))
        window: tuple[slice, ...] = (slice(None),) * 4
        if crop := self.param.crop_size:
            free = [size - crop for size in clip.shape[2:]]
            first = [int(self.generator.integers(n + self.last)) if self.random_crop else n // 2 for n in free]
            window = (slice(None), slice(None), *(slice(at, at + crop) for at in first))
        out[...] = clip[window]
        if self.mean is not None:
            out -= self._mean_of(clip)[window]
        if self.param.scale != 1:
            out *= self.dtype.type(self.param.scale)
        if flip:
            out[...] = out[..., ::-1].copy()

    def _mean_of(self, clip: Pixels) -> Array:
        """Return the mean in the shape of the whole clip (3, L, H, W)."""
        assert self.mean is not None
        if self.param.mean_file and self.mean.shape != clip.shape:
            raise DataError(f"mean_file {self.param.mean_file} has shape {self.mean.shape}, the clip has {clip.shape}")
        if not self.param.mean_file and len(self.mean) not in (1, len(clip)):
            raise DataError(f"{len(self.mean)} mean_value given for {len(clip)} channels: give one, or one for each")
        return np.broadcast_to(self.mean, clip.shape)


RGB = caffe_pb2.VideoDataParameter.RGB
NAMES = {True: "image_%04d.jpg", False: "flow_%c_%04d.jpg"}
"""The names of frames, in colour and of flow."""
NUMBER = r"%0?\d?d"
RATIOS = (1.0, 0.875, 0.75, 0.66)
OWN = ("fix_crop", "more_fix_crop", "multi_scale", "scale_ratios", "max_distort", "is_flow")
"""Fields of transform_param that segments alone take."""


def check_pattern(pattern: str, in_colour: bool) -> str:
    """Return the pattern of the frames' names, as C's printf takes it; "" means the default.

    Raises DataError for another form.
    """
    pattern = pattern or NAMES[in_colour]
    wanted = [NUMBER] if in_colour else ["%c", NUMBER]
    if not re.fullmatch("[^%]*".join(["", *wanted, ""]), pattern):
        form = "one %d, as in %05d" if in_colour else "%c, for x and y, and then one %d, as in %05d"
        raise DataError(f'name_pattern "{pattern}" must have {form}')
    return pattern


def offsets(length: int, segments: int, frames: int, random: np.random.Generator | None) -> list[int]:
    """Return the number of the frame before each segment. A part of the video that is too short gives 1.

    random: draws the segment's place in its part; None puts it in the middle.
    """
    part = length // segments
    if part < frames:
        return [1] * segments
    free = part - frames + 1
    return [i * part + (int(random.integers(free)) if random else free // 2) for i in range(segments)]


def read_segments(folder: str, pattern: str, starts: list[int], frames: int, in_colour: bool) -> list[Pixels]:
    """Return the frames of all segments in order, (H, W, 3), or of flow x and y, (H, W, 1) each. Raises DataError."""
    numbers = [start + i for start in starts for i in range(1, frames + 1)]
    names = [pattern % n for n in numbers] if in_colour else [pattern % (way, n) for n in numbers for way in "xy"]
    return [read_image(granted(f"{folder}/{name}"), in_colour) for name in names]


class SegmentTransformer:
    """The transformation of videos (C, H, W): y = (x - mean) * scale, all channels cropped and mirrored alike.

    In TRAIN the crop is drawn. With multi_scale it has one of several sizes, scale_ratios of the short side, and is then
    resized to crop_size. With fix_crop it is at one of 5 places, with more_fix_crop of 13. In TEST it is central. is_flow:
    mirroring makes x 255 - x. mean_value: one, or some that repeat over the channels; mean_file: of the whole video. Raises
    DataError for other fields of transform_param and values that do not fit.
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
        """Return the transformed shape of a video (C, H, W). Raises DataError if it is smaller than the crop."""
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
        """Return the crop's height and width."""
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
        """Return the crop's first row and column, from 0 to down and from 0 to right."""
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
        """Return the mean of a crop (C, H, W). With multi_scale it is the mean's first rows and columns, as in the original."""
        assert self.mean is not None
        if not self.param.mean_file:
            return np.tile(self.mean, (shape[0] // len(self.mean), 1, 1))
        if self.param.multi_scale and self.param.crop_size:
            return self.mean[:, : shape[1], : shape[2]]
        return self.mean[:, window[0], window[1]]
