"""The frames of videos."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from minicaffe import limits
from minicaffe.data.clips import frame_count, read_frames
from minicaffe.errors import DataError
from minicaffe.scaling.batch.find import find_sources

av = pytest.importorskip("av", reason="PyAV (the extra video) is not installed")

HEIGHT, WIDTH, COUNT = 48, 64, 7
GREYS = range(20, 20 + 30 * COUNT, 30)
"""Of each frame; red in its left half besides."""


def written(path: Path, codec: str = "mpeg4", count: int = COUNT) -> Path:
    with av.open(path, "w") as container:
        stream = container.add_stream(codec, rate=Fraction(10))
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = WIDTH, HEIGHT, "yuv420p", 4_000_000
        for grey in GREYS[:count]:
            pixels = np.full((HEIGHT, WIDTH, 3), grey, np.uint8)
            pixels[:, : WIDTH // 2, 0] = 255
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("name", ["a.mp4", "a.MOV", "a.mkv", "a.avi", "a.mpg"])
def test_frames(name: str, tmp_path: Path) -> None:
    path = written(tmp_path / name, "mpeg2video" if name.endswith("mpg") else "mpeg4", 3)
    assert frame_count(path) == 3
    frames = list(read_frames(path))
    assert [frame.shape for frame in frames] == [(HEIGHT, WIDTH, 3)] * 3
    for frame, grey in zip(frames, GREYS, strict=False):
        np.testing.assert_allclose(frame[:, WIDTH // 2 + 4 :].mean((0, 1)), grey, atol=8)
        blue, _, red = frame[:, : WIDTH // 2 - 4].mean((0, 1))
        assert red > blue + 30


@pytest.mark.parametrize(("start", "stop", "step"), [(0, COUNT, 3), (2, 5, 1), (4, COUNT, 5), (3, 3, 1)])
def test_some_frames(start: int, stop: int, step: int, tmp_path: Path) -> None:
    frames = read_frames(written(tmp_path / "a.mp4"), start, stop, step)
    greys = [float(frame[:, -8:].mean()) for frame in frames]
    np.testing.assert_allclose(greys, [GREYS[i] for i in range(start, stop, step)], atol=8)


def test_a_video_is_a_source_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(Path("clip.mp4"))
    found = find_sources(["clip.mp4"], 2)
    assert list(found.names()) == [f"clip.mp4/{i:06}" for i in (0, 2, 4, 6)]
    part = found.cut(1, 3)
    assert [picture.name for picture in part.pictures()] == ["clip.mp4/000002", "clip.mp4/000004"]
    greys = [float(picture.pixels()[:, -8:].mean()) for picture in part.pictures()]
    np.testing.assert_allclose(greys, [GREYS[2], GREYS[4]], atol=8)
    assert found.digest() != find_sources(["clip.mp4"], 3).digest()


def test_videos_of_a_folder_and_of_a_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, count in (("b.avi", 2), ("a.mp4", 3)):
        Path("clips").mkdir(exist_ok=True)
        written(Path("clips", name), count=count)
    names = ["clips/a.mp4/000000", "clips/a.mp4/000002", "clips/b.avi/000000"]
    assert list(find_sources(["clips"], 2).names()) == names
    assert list(find_sources(["clips/*.*"], 2).names()) == names


def test_a_video_that_ends_early(tmp_path: Path) -> None:
    """The frames up to there are read, each of the others has the error."""
    path = written(tmp_path / "clip.mkv")
    found = find_sources([str(path)])
    cut = path.read_bytes()[: path.stat().st_size * 2 // 3]
    path.write_bytes(cut)
    pictures = list(found.pictures())
    good = [picture for picture in pictures if not isinstance(picture.data, Exception)]
    assert len(pictures) == COUNT and 0 < len(good) < COUNT
    with pytest.raises(DataError, match=r"clip.mkv: (the video ends before frame|cannot read the video)"):
        pictures[-1].pixels()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.mp4", b"", "cannot read the video"),
        ("a.mkv", b"\x1aE\xdf\xa3" + bytes(200), "cannot read the video|no video in this file"),
        ("a.avi", b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n", "cannot read the video"),
        ("a.mp4", b"ffconcat version 1.0\nfile other.mp4\n", "cannot read the video"),
        ("a.gif", b"GIF89a", r"not a video that can be read \(.mp4"),
    ],
)
def test_bad_files(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        frame_count(tmp_path / name)


def test_a_video_that_ffmpeg_has_no_decoder_for(tmp_path: Path) -> None:
    path = written(tmp_path / "a.mkv", count=2)
    content = path.read_bytes()
    at = content.index(b"V_MPEG4")
    path.write_bytes(content[:at] + b"V_NONE4" + content[at + 7 :])
    with pytest.raises(DataError, match=r"a\.mkv: FFmpeg has no decoder of its video: convert it"):
        frame_count(path)


def test_frames_of_too_many_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.mp4", count=2)
    monkeypatch.setattr(limits, "pixels", HEIGHT * WIDTH - 1)
    with pytest.raises(DataError, match=r"a.mp4"):
        list(read_frames(path))


def test_without_frames(tmp_path: Path) -> None:
    with av.open(tmp_path / "a.avi", "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
    with pytest.raises(DataError, match=r"a.avi: no video in this file"):
        frame_count(tmp_path / "a.avi")
