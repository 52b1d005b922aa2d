"""Clips: so many frames of a video, listed in a text file, read and transformed together.

    PATH START LABEL    a line of the list; PATH LABEL where the start is drawn from a video file

Source: C3D's video_data_layer.cpp, image_io.cpp and data_transformer.cpp (Tran et al., 2015).
"""

from __future__ import annotations

from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.blob import Array
from minicaffe.errors import DataError, WeightsError
from minicaffe.files import granted
from minicaffe.formats.weights import read_binaryproto
from minicaffe.mode import TRAIN, Phase
from minicaffe.proto import caffe_pb2

from .image_bytes import Pixels, read_image, resized
from .image_list import label_number, text_lines
from .video import frame_count, read_frames

FRAME = "{folder}/{number:06}.jpg"
"""The name of a frame in a folder of frames."""
FIELDS = ("scale", "mirror", "crop_size", "mean_file", "mean_value")
"""Of transform_param, those that clips take."""


class Clip(NamedTuple):
    """A clip of a list: its video or folder of frames, its first frame (or, where starts are drawn in a folder, the number of
    frames), its labels, and its line number, from 1."""

    name: str
    start: int
    labels: tuple[int, ...]
    line: int

    @property
    def label(self) -> str:
        """The rest of the line."""
        return " ".join([str(self.start), ",".join(map(str, self.labels))])


def read_clips(path: str | PathLike[str], has_start: bool, several: bool) -> list[Clip]:
    """The clips of a list; blank lines are skipped. several: LABEL is a list such as 3,7. Raises DataError, with the line."""
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
    """The frames (H, W, 3) of a video from start on, every step-th. Raises DataError where the video ends early."""
    check_length(path, frame_count(path), start, length, step)
    return list(read_frames(path, start, start + length * step, step))


def check_length(path: str, count: int, start: int, length: int, step: int) -> None:
    """Raises DataError unless a video of count frames has the clip."""
    if start + length * step > count:
        steps = f" of {step} frames each" * (step > 1)
        raise DataError(f"{path}: the video ends early: {count} frames, but {length}{steps} from frame {start} on are wanted")


def read_folder(folder: str, start: int, length: int, step: int) -> list[Pixels]:
    """The frames (H, W, 3) of a folder from number start on, every step-th. Raises DataError for one that cannot be read."""
    names = (FRAME.format(folder=folder, number=start + i * step) for i in range(length))
    return [read_image(granted(name)) for name in names]


def as_clip(frames: list[Pixels], height: int, width: int) -> Pixels:
    """Frames as one array (3, L, H, W), resized where a size is given. Raises DataError for frames of several sizes."""
    sized = [resized(frame, height, width) if height else frame for frame in frames]
    if len({frame.shape for frame in sized}) > 1:
        raise DataError("the frames have several sizes: give new_height and new_width")
    clip: Pixels = np.stack(sized).transpose(3, 0, 1, 2)
    return clip


class ClipTransformer:
    """y = (x - mean) * scale of clips (3, L, H, W), cropped and mirrored at random, all frames alike.

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
        """The transformed shape of a clip of this shape."""
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
        """The mean of the whole clip (3, L, H, W)."""
        assert self.mean is not None
        if self.param.mean_file and self.mean.shape != clip.shape:
            raise DataError(f"mean_file {self.param.mean_file} has shape {self.mean.shape}, the clip has {clip.shape}")
        if not self.param.mean_file and len(self.mean) not in (1, len(clip)):
            raise DataError(f"{len(self.mean)} mean_value given for {len(clip)} channels: give one, or one for each")
        return np.broadcast_to(self.mean, clip.shape)
