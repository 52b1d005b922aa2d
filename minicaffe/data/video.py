"""The frames of a video file, with PyAV (the extra video).

FFmpeg's readers of play lists open other files and addresses, so that a file is read as what its name says (FORMATS), never as
what it looks like.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

import numpy as np

from minicaffe import limits
from minicaffe.errors import DataError, install, optional_module
from minicaffe.files import KeptOpen

from .image_bytes import Pixels, check_size

FORMATS = {
    **dict.fromkeys((".mp4", ".m4v", ".mov"), "mov"),
    **dict.fromkeys((".mkv", ".webm"), "matroska"),
    **dict.fromkeys((".mpg", ".mpeg"), "mpeg"),
    ".avi": "avi",
}
"""FFmpeg's name of the format, by suffix."""


def frame_count(path: str | PathLike[str]) -> int:
    """The number of frames that are stored, none of which is decoded. Raises DataError, also for 0, and Error without PyAV."""
    with _opened(path) as (container, stream):
        count: int = sum(packet.size > 0 for packet in container.demux(stream))
    if not count:
        raise DataError(f"{path}: a video without frames")
    return count


def read_frames(path: str | PathLike[str], start: int = 0, stop: int | None = None, step: int = 1) -> Iterator[Pixels]:
    """Every step-th frame from start to before stop (H, W, 3) blue, green, red. Raises DataError where the video ends early,
    after the frames up to there."""
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
    """The container and its first video stream. Raises DataError for whatever FFmpeg refuses, here or in the block."""
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
        raise DataError(f"{path}: cannot read the video: {getattr(error, 'strerror', None) or error}") from error
