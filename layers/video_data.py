"""VideoData: clips of videos, or of folders of frames, that a text file lists.

Source: the video_data_layer.cpp of C3D v1.1 and of v1.0, whose VIDEO_DATA has its fields in image_data_param.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from minicaffe.access import granted
from minicaffe.blob import Array
from minicaffe.data.clips import Clip, ClipTransformer, as_clip, check_length, read_clips, read_folder, read_video
from minicaffe.data.image_bytes import Pixels
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import Shard
from minicaffe.data.video import frame_count
from minicaffe.errors import DataError
from minicaffe.mode import TRAIN
from minicaffe.proto import caffe_pb2

from .reading.image_lists import ListSource, check_list_fields, check_skip
from .reading.prefetching import PrefetchingLayer


class VideoData(PrefetchingLayer):
    """The clips that video_data_param.source lists, `PATH START LABEL` on each line, from the first again after the last.

    No bottom. top: data (batch_size, 3, new_length, H, W), blue, green, red, resized to new_height x new_width where these are
    given, then transformed as transform_param says (scale, mirror, crop_size, mean_file, mean_value), all frames of a clip
    alike; optionally labels (batch_size,), or with use_multiple_label (batch_size, num_of_labels), 1 for each of a line's, 3,7.
    PATH: a video file (PyAV, the extra video), whose first frame is 0; with use_image a folder of 000001.jpg, 000002.jpg, ...
    sampling_rate: every so many-th frame; use_sampling_rate_jitter: drawn from 1 to max_sampling_rate. use_temporal_jitter: the
    start is drawn: of a video, whose lines are `PATH LABEL`; of a folder, whose START is its number of frames, in TRAIN only,
    else 0. C3D v1.0's fields stand in image_data_param, with one mean_value; its labels are (batch_size, 1, 1, 1, 1).
    Raises LayerError, with the list's line, for a line of other words, a video or frame that cannot be read, and a video that
    ends early: in TRAIN too, where the original takes the next clip; for a mean that does not fit, and for SSD's VideoData.
    """

    type = "VideoData"
    num_top = (1, 2)
    param_block = ("video_data_param", "image_data_param", "transform_param")

    def make_source(self, tops: int, generator: np.random.Generator) -> ClipSource:
        param, transform = self._read_param(), caffe_pb2.TransformationParameter()
        transform.CopyFrom(self.param.transform_param)
        old = self.param.image_data_param
        if param.old and transform.mirror and not transform.crop_size:
            raise self.error("mirror needs a crop_size", "transform_param.mirror")
        if param.old and old.HasField("mean_value") and not transform.mean_file:
            transform.mean_value[:] = [old.mean_value]
        clips = read_clips(granted(param.source), param.use_image or not param.use_temporal_jitter, param.several > 0)
        if param.several and (wrong := [clip for clip in clips if not all(0 <= i < param.several for i in clip.labels)]):
            raise self.error(f"{param.source}:{wrong[0].line}: the labels {wrong[0].labels} are not all below num_of_labels")
        shard = check_skip(self, "image_data_param" if param.old else "video_data_param", clips)
        transformer = ClipTransformer(transform, self.phase, generator, self.dtype, last=not param.old)
        return ClipSource(clips, param, transformer, shard, tops)

    def _read_param(self) -> ClipParam:
        """The checked fields of the block. Raises LayerError."""
        is_old = not self.param.HasField("video_data_param")
        new, old = self.param.video_data_param, self.param.image_data_param
        given, block = (old, "image_data_param") if is_old else (new, "video_data_param")
        if not given.source:
            raise self.error("needs a source: C3D's VideoData is built in, SSD's is not", block)
        check_list_fields(self, block)
        for name in ("new_length", "sampling_rate"):
            self.positive(getattr(given, name), f"{block}.{name}")
        most = 0
        if new.use_sampling_rate_jitter:
            most = self.positive(new.max_sampling_rate, "video_data_param.max_sampling_rate")
        several = self.positive(new.num_of_labels, "video_data_param.num_of_labels") if new.use_multiple_label else 0
        names = [
            *("source", "batch_size", "rand_skip", "shuffle", "new_height", "new_width", "root_folder", "new_length"),
            *("use_image", "use_temporal_jitter", "sampling_rate"),
        ]
        values = {name: getattr(given, name) for name in names}
        return ClipParam(most_rate=most, several=several, old=is_old, train=self.phase == TRAIN, **values)


@dataclass
class ClipParam:
    """The fields of either block. most_rate: the greatest that is drawn (0: none is); several: how many labels a line may have
    (0: one); old: C3D v1.0's."""

    source: str
    batch_size: int
    rand_skip: int
    shuffle: bool
    new_height: int
    new_width: int
    root_folder: str
    new_length: int
    use_image: bool
    use_temporal_jitter: bool
    sampling_rate: int
    most_rate: int
    several: int
    old: bool
    train: bool
    is_color: bool = True


class ClipSource(ListSource[Clip]):
    """Batches of clips, transformed."""

    param: ClipParam

    def __init__(self, clips: list[Clip], param: ClipParam, transformer: ClipTransformer, shard: Shard, tops: int) -> None:
        super().__init__(clips, param, transformer.generator, shard)
        self.transformer, self.tops = transformer, tops

    def shapes(self) -> list[tuple[int, ...]]:
        return self._shapes(self.images[0], self.pixels(self.images[0]))[: self.tops]

    def _shapes(self, listed: Clip, clip: Pixels) -> list[tuple[int, ...]]:
        size, param = self.param.batch_size, self.param
        labels = (size, param.several) if param.several else (size, 1, 1, 1, 1) if param.old else (size,)
        return [(size, *self.named(listed, self.transformer.shape, clip.shape)), labels]

    def next_batch(self) -> Batch:
        arrays: list[Array] = []
        for i in range(self.param.batch_size):
            listed = self.next_listed()
            clip = self.named(listed, self._clip, listed, True)
            arrays = arrays or [np.zeros(shape, self.transformer.dtype) for shape in self._shapes(listed, clip)]
            self.named(listed, self.transformer.transform, clip, arrays[0][i])
            if self.param.several:
                arrays[1][i, list(listed.labels)] = 1
            else:
                arrays[1][i] = listed.labels[0]
        return tuple(arrays[: self.tops])

    def pixels(self, listed: Clip) -> Pixels:
        """A clip as the layer reads it (3, L, H, W), from the first frame where the start is drawn."""
        return self.named(listed, self._clip, listed, False)

    def _clip(self, listed: Clip, drawn: bool) -> Pixels:
        """A clip (3, L, H, W). drawn: its start and rate are drawn where they are to be."""
        param, path = self.param, self.param.root_folder + listed.name
        step = int(self.generator.integers(param.most_rate)) + 1 if drawn and param.most_rate else param.sampling_rate
        start, length = listed.start, param.new_length
        if param.use_image:
            if param.use_temporal_jitter:
                check_length(path, listed.start, 0, length, step)
                free = listed.start - length * step + 1
                start = 1 + (int(self.generator.integers(free)) if drawn else 0) if param.train else 0
            frames = read_folder(path, start, length, step)
        else:
            if os.path.isdir(path):
                raise DataError(f"{path} is a folder, for use_image: true")
            if param.use_temporal_jitter and drawn:
                count = frame_count(granted(path))
                check_length(path, count, 0, length, step)
                start = int(self.generator.integers(count - length * step + 1))
            frames = read_video(granted(path), start, length, step)
        return as_clip(frames, param.new_height, param.new_width)
