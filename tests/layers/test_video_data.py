"""VideoData."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, net_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from minicaffe.data.image_bytes import resized
from minicaffe.errors import LayerError
from minicaffe.formats.weights import write_binaryproto
from minicaffe.formats.wire import encoded, header
from minicaffe.mode import TEST, TRAIN, Phase


def frame(video: int, number: int) -> np.ndarray:
    """A frame (H, W, 3), blue first, whose values name it: stored without loss in a PNG named .jpg."""
    place = 10 * np.arange(5)[:, None, None] + np.arange(7)[:, None]
    return (place + 50 * video + 3 * number + np.arange(3)).astype(np.uint8)


def clip(video: int, start: int, length: int = 2, step: int = 1) -> np.ndarray:
    """(3, L, H, W)."""
    return np.stack([frame(video, start + i * step) for i in range(length)]).transpose(3, 0, 1, 2)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for video in range(3):
        Path(f"clips/v{video}").mkdir(parents=True)
        for number in range(1, 7):
            Image.fromarray(frame(video, number)[:, :, ::-1]).save(f"clips/v{video}/{number:06}.jpg", "PNG")
    Path("list.txt").write_text("v0 1 4\n\nv1 3 2\nv2 5 9\n")
    return tmp_path


def text(
    more: str = "batch_size: 2", transform: str = "", tops: str = 'top: "data" top: "label"', source: str = "list.txt"
) -> str:
    length = "" if "new_length" in more else "new_length: 2"
    return (
        f'layer {{ name: "in" type: "VideoData" {tops} transform_param {{ {transform} }}\n'
        f'video_data_param {{ source: "{source}" root_folder: "clips/" use_image: true {length} {more} }} }}'
    )


def old(more: str = "batch_size: 2") -> str:
    return (
        'layers { name: "in" type: VIDEO_DATA top: "data" top: "label"\n'
        f'image_data_param {{ source: "list.txt" root_folder: "clips/" use_image: true new_length: 2 {more} }} }}'
    )


def test_clips_and_labels_go_around() -> None:
    taken = batches(net_of(text()), 2)
    np.testing.assert_array_equal(taken[0][0], [clip(0, 1), clip(1, 3)])
    np.testing.assert_array_equal(taken[1][0], [clip(2, 5), clip(0, 1)])
    assert [labels.tolist() for _, labels in taken] == [[4, 2], [9, 4]]
    assert len(batches(net_of(text(tops='top: "data"')), 1)[0]) == 1


def test_sampling_rate_size_scale_and_mean() -> None:
    (data, _), *_ = batches(
        net_of(text("batch_size: 1 sampling_rate: 3 new_height: 4 new_width: 6", "scale: 0.5 mean_value: 3")), 1
    )
    expected = np.stack([resized(frame(0, number), 4, 6) for number in (1, 4)]).transpose(3, 0, 1, 2)
    np.testing.assert_allclose(data[0], 0.5 * (expected.astype(float) - 3))


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_all_frames_of_a_clip_are_cropped_and_mirrored_alike(phase: Phase) -> None:
    """A value is its place's, so that it tells where it comes from; the mean of the whole clip is cropped with it."""
    mean = np.arange(2 * 3 * 35, dtype=np.float32).reshape(1, 3, 2, 5, 7) / 8
    write_binaryproto(Path("mean.binaryproto"), mean)
    seen = set()
    for data, _ in batches(net_of(text("batch_size: 3", 'crop_size: 4 mirror: true mean_file: "mean.binaryproto"'), phase), 8):
        for one, whole in zip(data, (clip(0, 1), clip(1, 3), clip(2, 5)), strict=True):
            part = whole - mean[0]
            found = [
                (top, left, flip)
                for top in range(2)
                for left in range(4)
                for flip in (1, -1)
                if np.array_equal(part[:, :, top : top + 4, left : left + 4][..., ::flip].astype(np.float32), one)
            ]
            assert len(found) == 1
            seen |= set(found)
        if phase == TEST:
            break
    assert len(seen) > 6 if phase == TRAIN else {(top, left) for top, left, _ in seen} == {(0, 1)}


def test_starts_and_rates_are_drawn() -> None:
    Path("list.txt").write_text("v0 6 4\nv1 6 2\nv2 6 9\n")
    whole = {
        clip(video, start, 2, step).tobytes(): (start, step) for video in range(3) for start in range(7) for step in (1, 2)
    }
    more = "batch_size: 3 use_temporal_jitter: true use_sampling_rate_jitter: true max_sampling_rate: 2"
    taken = batches(net_of(text(more), TRAIN), 12)
    found = {whole[one.astype(np.uint8).tobytes()] for data, _ in taken for one in data}
    assert found <= {(start, step) for step in (1, 2) for start in range(1, 8 - 2 * step)} and len(found) > 5
    for video in range(3):
        Image.fromarray(frame(video, 0)[:, :, ::-1]).save(f"clips/v{video}/000000.jpg", "PNG")
    (data, _), *_ = batches(net_of(text("batch_size: 1 use_temporal_jitter: true"), TEST), 1)
    np.testing.assert_array_equal(data[0], clip(0, 0))


def test_several_labels() -> None:
    Path("list.txt").write_text("v0 1 0,2\nv1 3 3\n")
    _, labels = batches(net_of(text("batch_size: 2 use_multiple_label: true num_of_labels: 4")), 1)[0]
    assert labels.tolist() == [[1, 0, 1, 0], [0, 0, 0, 1]]
    with pytest.raises(LayerError, match=r"list.txt:2: the labels \(3,\) are not all below num_of_labels"):
        net_of(text("batch_size: 2 use_multiple_label: true num_of_labels: 3"))


def test_c3d_v1_0() -> None:
    """VIDEO_DATA: the fields are image_data_param's, and the last place is never cropped."""
    (data, labels), *_ = batches(net_of(old("batch_size: 3 mean_value: 2 scale: 0.5")), 1)
    np.testing.assert_allclose(data, [(x.astype(float) - 2) / 2 for x in (clip(0, 1), clip(1, 3), clip(2, 5))])
    assert labels.shape == (3, 1, 1, 1, 1) and labels.ravel().tolist() == [4, 2, 9]
    wholes = [clip(0, 1), clip(1, 3), clip(2, 5)] * 5
    taken = batches(net_of(old("batch_size: 1 crop_size: 4"), TRAIN), len(wholes))
    places = {float(data[0, 0, 0, 0, 0]) - whole[0, 0, 0, 0] for (data, _), whole in zip(taken, wholes, strict=True)}
    assert places == {0, 1, 2}, "ten times the row and the column of the crop, of which there are 0 to 1 and 0 to 3"
    blob = b"".join(encoded(i + 1 << 3) + encoded(n) for i, n in enumerate((1, 3, 2, 5, 7)))
    Path("mean.binaryproto").write_bytes(blob + header(6, 4 * 210) + np.full(210, 2, "<f4").tobytes())
    (data, _), *_ = batches(net_of(old('batch_size: 1 mean_file: "mean.binaryproto"')), 1)
    np.testing.assert_allclose(data[0], clip(0, 1) - 2.0)
    for more, said in (("mirror: true", "mirror needs a crop_size"), ("crop_size: 5", "crop_size 5 is too large")):
        with pytest.raises(LayerError, match=said):
            net_of(old(f"batch_size: 1 {more}"))


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_a_seed_repeats_and_a_state_resumes(phase: Phase) -> None:
    Path("list.txt").write_text("v0 6 4\nv1 6 2\nv2 5 9\n")
    for video in range(3):
        Image.fromarray(frame(video, 0)[:, :, ::-1]).save(f"clips/v{video}/000000.jpg", "PNG")
    more = (
        "batch_size: 2 shuffle: true rand_skip: 2 use_temporal_jitter: true use_sampling_rate_jitter: true max_sampling_rate: 2"
    )
    check_repeats_and_resumes(text(more, "crop_size: 4 mirror: true"), phase, 3)


@given(st.integers(1, 3), st.integers(1, 2))
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_clip_is_every_so_many_th_frame(length: int, rate: int) -> None:
    Path("one.txt").write_text("v1 1 0\n")
    (data, _), *_ = batches(net_of(text(f"batch_size: 1 new_length: {length} sampling_rate: {rate}", source="one.txt")), 1)
    np.testing.assert_array_equal(data[0], clip(1, 1, length, rate))


def test_video_files() -> None:
    av = pytest.importorskip("av", reason="PyAV (the extra video) is not installed")
    with av.open("clips/a.avi", "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 48, 32, "yuv420p", 4_000_000
        for grey in range(20, 200, 30):
            pixels = np.full((32, 48, 3), grey, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    Path("list.txt").write_text("a.avi 1 3\n")
    video = text("batch_size: 1 sampling_rate: 2").replace("use_image: true", "")
    (data, labels), *_ = batches(net_of(video), 1)
    np.testing.assert_allclose(data.mean((0, 1, 3, 4)), [50, 110], atol=8)
    assert data.shape == (1, 3, 2, 32, 48) and labels.tolist() == [3]
    Path("list.txt").write_text("a.avi 4 3\n")
    with pytest.raises(
        LayerError, match=r"list.txt:1: clips/a.avi: the video ends early: 6 frames, but 2 of 2 frames each from frame 4"
    ):
        net_of(video)
    Path("list.txt").write_text("a.avi 3\n")
    starts = {
        round(float(data[0, 0, 0].mean()), -1)
        for data, _ in batches(net_of(video.replace("sampling_rate: 2", "use_temporal_jitter: true"), TRAIN), 12)
    }
    assert len(starts) > 2


@pytest.mark.parametrize(
    ("lines", "more", "transform", "said"),
    [
        ("v0 1 4\nv1 4\n", "", "", r'list.txt:2: "v1 4" is not PATH START LABEL'),
        ("v0 1 cat\n", "", "", 'list.txt:1: the label "cat" is not a whole number'),
        ("v0 -1 4\n", "", "", "list.txt:1: a clip cannot start at frame -1"),
        ("\n", "", "", "list.txt: the list has no clip"),
        ("v0 6 4\n", "", "", r"list.txt:1: clips/v0/000007.jpg"),
        ("v0 3 4\n", "use_temporal_jitter: true new_length: 4", "", "the video ends early: 3 frames, but 4 from frame 0 on"),
        ("v0 1 4\n", "new_length: 0", "", "new_length must be > 0, got 0"),
        ("v0 1 4\n", "sampling_rate: 0", "", "sampling_rate must be > 0, got 0"),
        ("v0 1 4\n", "rand_skip: 2", "", "rand_skip 2 is more than the 1 images listed"),
        ("v0 1 4\n", "", "crop_size: 6", "crop_size 6 is too large for frames of 7 x 5"),
        ("v0 1 4\n", "", "mean_value: 1 mean_value: 2", "2 mean_value given for 3 channels"),
        (
            "v0 1 4\n",
            "",
            "crop_h: 2 crop_w: 2",
            "transform_param.crop_w is not for clips|transform_param.crop_h is not for clips",
        ),
        ("v0 1 4\n", "", 'mean_file: "m.binaryproto"', r"holds shape \(3, 5, 7\), not one clip"),
        ("v0 1 4\n", "", 'mean_file: "clip.binaryproto"', r"has shape \(3, 4, 5, 7\), the clip has \(3, 2, 5, 7\)"),
    ],
)
def test_errors(lines: str, more: str, transform: str, said: str) -> None:
    Path("list.txt").write_text(lines)
    write_binaryproto(Path("m.binaryproto"), np.zeros((3, 5, 7)))
    write_binaryproto(Path("clip.binaryproto"), np.zeros((1, 3, 4, 5, 7)))
    with pytest.raises(LayerError, match=said):
        batches(net_of(text(f"batch_size: 1 {more}", transform)), 1)


def test_frames_of_several_sizes_a_folder_and_other_kinds() -> None:
    Image.fromarray(frame(0, 1)[:4]).save("clips/v0/000002.jpg", "PNG")
    with pytest.raises(LayerError, match=r"list.txt:1: v0: the frames have several sizes: give new_height and new_width"):
        net_of(text())
    with pytest.raises(LayerError, match="clips/v0 is a folder, for use_image: true"):
        net_of(text().replace("use_image: true", ""))
    with pytest.raises(LayerError, match="C3D's VideoData is built in, SSD's is not"):
        net_of('layer { name: "in" type: "VideoData" top: "data" video_data_param { video_type: VIDEO video_file: "a.avi" } }')
    with pytest.raises(LayerError, match="new_length is C3D's, for VIDEO_DATA layers"):
        net_of(old().replace("VIDEO_DATA", "IMAGE_DATA"))
