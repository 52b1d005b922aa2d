"""VideoData: listed clips of videos or frame folders (C3D), one video's frames (SSD), or temporal segment networks' segments.

Source: the video_data_layer.cpp of C3D v1.1 and of v1.0, whose VIDEO_DATA has its fields in image_data_param, of SSD, and of
yjxiong/caffe.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.clips import (
    RGB,
    Clip,
    ClipTransformer,
    SegmentTransformer,
    as_clip,
    check_length,
    check_pattern,
    frame_count,
    offsets,
    read_clips,
    read_folder,
    read_frames,
    read_segments,
    read_video,
)
from minicaffe.data.data_transformer import DataTransformer, warn_of_no_effect
from minicaffe.data.image_bytes import Pixels
from minicaffe.data.prefetch import Batch
from minicaffe.data.shard import Shard, current_shard
from minicaffe.data.state_fields import MOST, Fields
from minicaffe.errors import DataError
from minicaffe.files import granted
from minicaffe.forked import Forked
from minicaffe.formats.arrays import checksum
from minicaffe.formats.forks import Kind
from minicaffe.layers.data.image_data import ListSource, check_list_fields, check_skip
from minicaffe.layers.data.prefetching import PrefetchingLayer, ShapedSource, check_segment_fields
from minicaffe.mode import TRAIN
from minicaffe.proto import caffe_pb2


class FrameSource:
    """SSD's batches of a video's frames, transformed, with labels 0. skip: frames left out before each."""

    def __init__(self, file: str, size: int, skip: int, transformer: DataTransformer, shard: Shard, tops: int) -> None:
        self.file, self.size, self.step = file, size, skip + 1
        self.transformer, self.shard, self.tops, self.taken = transformer, shard, tops, 0
        self.count = frame_count(granted(file))
        self._frames = self._from_here()
        shard.rank_stream(transformer.generator)

    def shapes(self) -> list[tuple[int, ...]]:
        frame = self.first()
        return [(self.size, *self.transformer.shape(frame.shape[2], *frame.shape[:2])), (self.size,)][: self.tops]

    def first(self) -> Pixels:
        return next(read_frames(granted(self.file), 0, 1))

    def next_batch(self) -> Batch:
        data: Array | None = None
        for i in range(self.size):
            # All ranks read all frames, to stay at the same place.
            frame = [self._next() for _ in range(self.shard.count)][self.shard.rank].transpose(2, 0, 1)
            if data is None:
                data = np.empty((self.size, *self.transformer.shape(*frame.shape)), self.transformer.dtype)
            self.transformer.transform(frame, data[i])
        assert data is not None, "a batch has frames"
        return (data, np.zeros(self.size, self.transformer.dtype))[: self.tops]

    def state(self) -> dict[str, Any]:
        return {"frames": self.taken, **self.shard.state(self.transformer.generator)}

    def restore(self, state: dict[str, Any]) -> None:
        taken = Fields(state).whole("frames", 0, MOST)
        if taken * self.step > self.count:
            raise ValueError(f'"frames": {taken} frames were taken, but {self.file} has {self.count}')
        self.shard.restore(self.transformer.generator, state)
        self.taken = taken
        self._frames = self._from_here()

    def fingerprint(self) -> dict[str, Any]:
        return {"frames": self.count, "first frame": checksum(self.first())}

    def _from_here(self) -> Any:
        return read_frames(granted(self.file), (self.taken + 1) * self.step - 1, self.count, self.step)

    def _next(self) -> Pixels:
        frame: Pixels | None = next(self._frames, None)
        if frame is None:
            raise DataError(f"{self.file}: the video has ended: {self.taken} frames were taken of {self.count}")
        self.taken += 1
        return frame


@dataclass
class SegmentParam:
    """The fields of video_data_param for segments."""

    source: str
    batch_size: int
    shuffle: bool
    new_height: int
    new_width: int
    root_folder: str
    new_length: int
    num_segments: int
    modality: int
    pattern: str
    rand_skip: int = 0
    is_color: bool = True


class SegmentSource(ListSource[Clip]):
    """Batches of videos' segments, transformed. A clip's start is its number of frames."""

    param: SegmentParam

    def __init__(
        self, videos: list[Clip], param: SegmentParam, transformer: SegmentTransformer, shard: Shard, tops: int
    ) -> None:
        super().__init__(videos, param, transformer.generator, shard)
        self.transformer, self.tops = transformer, tops

    def shapes(self) -> list[tuple[int, ...]]:
        first = self.images[0]
        shape = self.named(first, self.transformer.shape, self.pixels(first).shape)
        return [(self.param.batch_size, *shape), (self.param.batch_size, 1, 1, 1)][: self.tops]

    def next_batch(self) -> Batch:
        arrays: list[Array] = []
        for i in range(self.param.batch_size):
            listed = self.next_listed()
            video = self.named(listed, self._video, listed, self.transformer.is_train)
            if not arrays:
                shape, size = self.named(listed, self.transformer.shape, video.shape), self.param.batch_size
                arrays = [np.empty((size, *shape), self.transformer.dtype), np.empty((size, 1, 1, 1), self.transformer.dtype)]
            self.named(listed, self.transformer.transform, video, arrays[0][i])
            arrays[1][i] = listed.labels[0]
        return tuple(arrays[: self.tops])

    def pixels(self, listed: Clip) -> Pixels:
        """Return a video (C, H, W), with each segment's middle frames."""
        return self.named(listed, self._video, listed, False)

    def _video(self, listed: Clip, drawn: bool) -> Pixels:
        param = self.param
        starts = offsets(listed.start, param.num_segments, param.new_length, self.generator if drawn else None)
        folder = param.root_folder + listed.name
        frames = read_segments(folder, param.pattern, starts, param.new_length, param.modality == RGB)
        stacked = as_clip(frames, param.new_height, param.new_width)  # (3 or 1, frames, H, W)
        video: Pixels = stacked.transpose(1, 0, 2, 3).reshape(-1, *stacked.shape[2:])
        return video


C3D, SSD, TSN = "C3D", "SSD", "temporal segment networks"
FIELDS = {
    C3D: (
        *("use_image", "use_temporal_jitter", "sampling_rate", "max_sampling_rate", "use_sampling_rate_jitter"),
        *("use_multiple_label", "num_of_labels"),
    ),
    SSD: ("video_type", "device_id", "video_file", "skip_frames"),
    TSN: ("num_segments", "modality", "name_pattern"),
}
"""Fields of video_data_param that identify the fork."""


class VideoData(Forked, PrefetchingLayer):
    """The clips that video_data_param.source lists, `PATH START LABEL` on each line, again and again.

    No bottom. top: data (batch_size, 3, new_length, H, W), blue, green, red, resized to new_height x new_width where these are
    given, then transformed as transform_param says (scale, mirror, crop_size, mean_file, mean_value), all frames of a clip
    alike; optionally labels (batch_size,), or with use_multiple_label (batch_size, num_of_labels), 1 for each of a line's, 3,7.
    PATH: a video file (PyAV, the extra video), whose first frame is 0; with use_image a folder of 000001.jpg, 000002.jpg, ...
    sampling_rate n: every n-th frame; use_sampling_rate_jitter: drawn from 1 to max_sampling_rate. use_temporal_jitter: the
    start is drawn: of a video, whose lines are `PATH LABEL`; of a folder, whose START is its number of frames, in TRAIN only,
    else 0. C3D v1.0's fields stand in image_data_param, with one mean_value; its labels are (batch_size, 1, 1, 1, 1).
    SSD's: data (data_param.batch_size, 3, H, W), the frames of video_file in order, skip_frames left out before each,
    transformed as Data's images are; labels 0. After the last frame it is a LayerError that the video has ended.
    Temporal segment networks': lines FOLDER LENGTH LABEL; data (batch_size, C, H, W), C = 3 new_length num_segments, or with
    modality: FLOW 2 new_length num_segments, x and y in turn; labels (batch_size, 1, 1, 1). new_length frames of each of
    num_segments equal parts, at a place that is drawn in TRAIN and central in TEST; name_pattern: the frames' names. From
    transform_param also multi_scale, scale_ratios, max_distort, fix_crop, more_fix_crop, is_flow.
    The kind follows from the fields, else from the net's fork, else from whether the list's first path is a folder.
    Raises LayerError, with the list's line, for a line of other words, a video or frame that cannot be read, and a video that
    ends early: in TRAIN too, where C3D takes the next clip; for a mean that does not fit, and for SSD's video_type: WEBCAM.
    """

    type = "VideoData"
    num_top = (1, 2)
    param_block = ("video_data_param", "image_data_param", "data_param", "transform_param")
    takes_segments = True
    kinds = (
        Kind(C3D, ("c3d", "c3dv1"), "use_image, sampling_rate or the like; lists videos"),
        Kind(SSD, ("ssd", "refinedet", "nv17", "beniz"), "video_file"),
        Kind(TSN, ("tsn",), "num_segments, modality or name_pattern; lists folders"),
    )

    def make_source(self, tops: int, generator: np.random.Generator) -> ShapedSource:
        kind = self._kind()
        if kind == C3D:
            return self._clips(tops, generator)
        return self._frames(tops, generator) if kind == SSD else self._segments(tops, generator)

    def _kind(self) -> str:
        param = self.param.video_data_param
        given = {field.name for field, _ in param.ListFields()}
        found = {kind: [name for name in names if name in given] for kind, names in FIELDS.items()}
        told = [kind for kind, names in found.items() if names]
        if len(told) > 1:
            one, other = (f"{found[kind][0]}, which is {kind}'s" for kind in told[:2])
            raise self.error(f"video_data_param has {one}, and {other}", "video_data_param")
        if told:
            return self.choose(told[0], f"video_data_param has {found[told[0]][0]}")
        if not self.param.HasField("video_data_param"):
            return self.choose(C3D, "image_data_param")
        if fork := self.choose_by_fork():
            return fork
        if not param.source:
            raise self.error("needs a source, or SSD's video_file", "video_data_param")
        first = read_clips(granted(param.source), True, False)[0]
        if os.path.isdir(param.root_folder + first.name):
            return self.choose(TSN, "its list's first path is a folder")
        return self.choose(C3D, "its list's first path is no folder")

    def _frames(self, tops: int, generator: np.random.Generator) -> FrameSource:
        param = self.param.video_data_param
        if param.video_type != caffe_pb2.VideoDataParameter.VIDEO:
            raise self.error("cameras are not built in: give video_type: VIDEO and a video_file", "video_data_param.video_type")
        if not param.video_file:
            raise self.error("needs a video_file", "video_data_param.video_file")
        size = self.positive(self.param.data_param.batch_size, "data_param.batch_size")
        check_segment_fields(self)
        warn_of_no_effect(self, boxes=False)
        transformer = DataTransformer(self.param.transform_param, self.phase, generator, self.dtype)
        return FrameSource(param.video_file, size, param.skip_frames, transformer, current_shard(self.phase), tops)

    def _segments(self, tops: int, generator: np.random.Generator) -> SegmentSource:
        given, block = self.param.video_data_param, "video_data_param"
        check_list_fields(self, block)
        length = self.positive(given.new_length, f"{block}.new_length") if given.HasField("new_length") else 1
        self.positive(given.num_segments, f"{block}.num_segments")
        names = ("source", "batch_size", "shuffle", "new_height", "new_width", "root_folder", "num_segments", "modality")
        pattern = check_pattern(given.name_pattern, given.modality == RGB)
        param = SegmentParam(pattern=pattern, new_length=length, **{name: getattr(given, name) for name in names})
        transformer = SegmentTransformer(self.param.transform_param, self.phase, generator, self.dtype)
        videos = read_clips(granted(param.source), True, False)
        return SegmentSource(videos, param, transformer, current_shard(self.phase), tops)

    def _clips(self, tops: int, generator: np.random.Generator) -> ClipSource:
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
        """Return the checked fields of the block. Raises LayerError."""
        is_old = not self.param.HasField("video_data_param")
        new, old = self.param.video_data_param, self.param.image_data_param
        given, block = (old, "image_data_param") if is_old else (new, "video_data_param")
        if not given.source:
            raise self.error("needs a source", block)
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
    """The common fields of both parameter blocks.

    most_rate: the greatest rate drawn (0: none is drawn); several: how many labels a line may have (0: one); old: C3D v1.0's.
    """

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

    def check(self, listed: Clip) -> None:
        """Do nothing: decoding every clip would take too long."""

    def pixels(self, listed: Clip) -> Pixels:
        """Return a clip (3, L, H, W) as the layer reads it, from the first frame if its start is drawn."""
        return self.named(listed, self._clip, listed, False)

    def _clip(self, listed: Clip, drawn: bool) -> Pixels:
        """Return a clip (3, L, H, W). drawn: draw its start and rate at random if they are random."""
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
