"""Batches of VideoData as SSD and as temporal segment networks have it: the frames of one video, and segments of many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from minicaffe.access import granted
from minicaffe.blob import Array
from minicaffe.data.clips import Clip, as_clip
from minicaffe.data.data_transformer import DataTransformer
from minicaffe.data.image_bytes import Pixels
from minicaffe.data.prefetch import Batch
from minicaffe.data.segments import RGB, SegmentTransformer, offsets, read_segments
from minicaffe.data.shard import Shard
from minicaffe.data.state_fields import MOST, Fields
from minicaffe.data.video import frame_count, read_frames
from minicaffe.errors import DataError
from minicaffe.formats.checksum import checksum
from minicaffe.layers.data.image_lists import ListSource


class FrameSource:
    """Batches of a video's frames, transformed, with labels 0: SSD's. skip: how many frames are left out before each."""

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
            # all ranks pass all frames, and so stay at one place
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
        self.taken, self._frames = taken, self._from_here()

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
    """The fields of video_data_param that segments take."""

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
    """Batches of videos' segments, transformed. A clip's start is the number of its frames."""

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
        """A video (C, H, W), of the segments in the middle."""
        return self.named(listed, self._video, listed, False)

    def _video(self, listed: Clip, drawn: bool) -> Pixels:
        param = self.param
        starts = offsets(listed.start, param.num_segments, param.new_length, self.generator if drawn else None)
        folder = param.root_folder + listed.name
        frames = read_segments(folder, param.pattern, starts, param.new_length, param.modality == RGB)
        stacked = as_clip(frames, param.new_height, param.new_width)  # (3 or 1, frames, H, W)
        video: Pixels = stacked.transpose(1, 0, 2, 3).reshape(-1, *stacked.shape[2:])
        return video
