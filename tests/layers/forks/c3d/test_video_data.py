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
        LayerError, match=r"list.txt:1: clips/a.avi: the video has 6 frames, but the clip needs 2 of 2 frames each from frame 4"
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
        (
            "v0 3 4\n",
            "use_temporal_jitter: true new_length: 4",
            "",
            "the video has 3 frames, but the clip needs 4 from frame 0 on",
        ),
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
        net_of(text("batch_size: 2 sampling_rate: 1").replace("use_image: true", ""))
    with pytest.raises(LayerError, match="new_length is C3D's, for VIDEO_DATA layers"):
        net_of(old().replace("VIDEO_DATA", "IMAGE_DATA"))


# SSD's.


@pytest.fixture
def film() -> str:
    """Seven frames (32, 48), each brighter than the one before."""
    av = pytest.importorskip("av", reason="PyAV (the extra video) is not installed")
    with av.open("film.avi", "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt, stream.bit_rate = 48, 32, "yuv420p", 4_000_000
        for grey in range(20, 220, 30):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((32, 48, 3), grey, np.uint8), format="rgb24")))
        container.mux(stream.encode())
    return (
        'layer { name: "in" type: "VideoData" top: "data" top: "label" transform_param { scale: 0.5 crop_size: 16 %s }\n'
        'data_param { batch_size: 2 } video_data_param { video_type: VIDEO video_file: "film.avi" %s } }'
    )


def test_ssds_frames_until_the_video_ends(film: str) -> None:
    made = net_of(film % ("", ""))
    assert made.forks["in"].whose == "SSD"
    taken = batches(made, 3)
    assert taken[0][0].shape == (2, 3, 16, 16) and taken[0][1].tolist() == [0, 0]
    greys = [float(one.mean()) * 2 for data, _ in taken for one in data]
    np.testing.assert_allclose(greys, np.arange(20, 200, 30), atol=8)
    with pytest.raises(LayerError, match=r"film.avi: the video has ended: 7 frames were taken of 7"):
        made.forward()


def test_ssds_skipped_frames_and_resuming(film: str) -> None:
    (data, _), *_ = batches(net_of(film % ("", "skip_frames: 2")), 1)
    np.testing.assert_allclose(data.mean((1, 2, 3)) * 2, [80, 170], atol=8)
    check_repeats_and_resumes((film % ("mirror: true", "")).replace("batch_size: 2", "batch_size: 1"), TRAIN, 3)


def test_ssds_errors(film: str) -> None:
    for old_text, new_text, said in (
        ("video_type: VIDEO", "", "cameras are not built in: give video_type: VIDEO and a video_file"),
        ('video_file: "film.avi"', "", "needs a video_file"),
        ("film.avi", "none.avi", "none.avi: no such file"),
        ("batch_size: 2", "", "batch_size must be > 0, got 0"),
        ("scale: 0.5", "fix_crop: true", "fix_crop is built in for VideoData of temporal segment networks alone"),
        (
            "video_type: VIDEO",
            "video_type: VIDEO use_image: true",
            "has use_image, which is C3D's, and video_type, which is SSD's",
        ),
    ):
        with pytest.raises(LayerError, match=said):
            net_of((film % ("", "")).replace(old_text, new_text))


# Temporal segment networks'.


def segments(more: str = "", transform: str = "", modality: str = "RGB") -> str:
    return (
        f'layer {{ name: "in" type: "VideoData" top: "data" top: "label" transform_param {{ {transform} }}\n'
        f'video_data_param {{ source: "list.txt" root_folder: "clips/" modality: {modality} {more} }} }}'
    )


@pytest.fixture
def frames() -> None:
    """Six frames of each video, image_0001.jpg and so on, and of flow, whose y is 100 more than x."""
    Path("list.txt").write_text("v0 6 4\nv1 6 2\n")
    for video in range(2):
        for number in range(1, 7):
            Image.fromarray(frame(video, number)[:, :, ::-1]).save(f"clips/v{video}/image_{number:04}.jpg", "PNG")
            for way, more in (("x", 0), ("y", 100)):
                Image.fromarray(flow(video, number) + more).save(f"clips/v{video}/flow_{way}_{number:04}.jpg", "PNG")


def flow(video: int, number: int) -> np.ndarray:
    return (10 * video + number + np.arange(7) + np.zeros((5, 1))).astype(np.uint8)


@pytest.mark.usefixtures("frames")
def test_segments_in_the_middle() -> None:
    """Two parts of three frames: of each the second and third, for (3 - 2 + 1) // 2 frames come before."""
    made = net_of(
        segments("batch_size: 2 num_segments: 2 new_length: 2", "scale: 0.5 mean_value: 1 mean_value: 2 mean_value: 3")
    )
    assert made.forks["in"].whose == "temporal segment networks"
    (data, labels), *_ = batches(made, 1)
    for video in range(2):
        whole = np.concatenate([frame(video, number).transpose(2, 0, 1) for number in (2, 3, 5, 6)])
        np.testing.assert_allclose(data[video], (whole - np.tile([1.0, 2, 3], 4)[:, None, None]) / 2)
    assert labels.shape == (2, 1, 1, 1) and labels.ravel().tolist() == [4, 2]


@pytest.mark.usefixtures("frames")
def test_segments_are_drawn_in_train() -> None:
    seen = set()
    for data, _ in batches(net_of(segments("batch_size: 1 num_segments: 2"), TRAIN), 24):
        first = [round(float(data[0, at, 0, 0])) % 50 // 3 for at in (0, 3)]
        assert first[0] in (1, 2, 3) and first[1] in (4, 5, 6)
        seen.add(tuple(first))
    assert len(seen) > 5


@pytest.mark.usefixtures("frames")
def test_flow_has_x_and_y_in_turn_and_mirroring_turns_x() -> None:
    (data, _), *_ = batches(net_of(segments("batch_size: 1 new_length: 2", modality="FLOW")), 1)
    # (6 - 2 + 1) // 2 = 2 frames come before
    np.testing.assert_array_equal(data[0], [flow(0, 3), flow(0, 3) + 100, flow(0, 4), flow(0, 4) + 100])
    for data, _ in batches(net_of(segments("batch_size: 1", "mirror: true is_flow: true", "FLOW")), 9):
        x, y = data[0]
        way = 1 if x[0, 0] < 128 else -1
        whole = (y - 100)[:, ::way]
        np.testing.assert_array_equal(x, whole if way == 1 else 255 - whole[:, ::-1])
        assert whole[0].tolist() == sorted(whole[0])


@pytest.mark.usefixtures("frames")
def test_kinds_of_video_data_without_own_fields() -> None:
    bare = segments("batch_size: 1 new_length: 2").replace("modality: RGB", "")
    assert str(net_of(bare).forks["in"]).endswith("its list's first path is a folder")
    Path("list.txt").write_text("none.avi 1 4\n")
    with pytest.raises(LayerError, match=r"none.avi: (no such file|videos need PyAV)"):
        net_of(bare)


@pytest.mark.usefixtures("frames")
def test_segments_repeat_and_resume() -> None:
    more = "batch_size: 2 num_segments: 2 shuffle: true"
    crop = "crop_size: 4 mirror: true multi_scale: true scale_ratios: 1 scale_ratios: 0.4 fix_crop: true more_fix_crop: true"
    check_repeats_and_resumes(segments(more, crop), TRAIN, 3)


@pytest.mark.usefixtures("frames")
@pytest.mark.parametrize(
    ("lines", "more", "transform", "said"),
    [
        ("v0 6\n", "", "", r'list.txt:1: "v0 6" is not PATH START LABEL'),
        ("v0 9 4\n", "new_length: 8", "", "list.txt:1: clips/v0/image_0007.jpg: no such file"),
        ("v0 6 4\n", "num_segments: 0", "", "num_segments must be > 0, got 0"),
        ("v0 6 4\n", "new_length: 0", "", "new_length must be > 0, got 0"),
        ("v0 6 4\n", 'name_pattern: "a.jpg"', "", 'name_pattern "a.jpg" must have one %d, as in %05d'),
        ("v0 6 4\n", 'name_pattern: "%999999d"', "", "must have one %d"),
        ("v0 6 4\n", "", "crop_size: 6", "crop_size 6 is too large for frames of 7 x 5"),
        ("v0 6 4\n", "", "mean_value: 1 mean_value: 2", "2 mean_value given for 3 channels, which is no multiple"),
        ("v0 6 4\n", "", "force_gray: true", "transform_param.force_gray is not for segments"),
        ("v0 6 4\n", "", "scale_ratios: 1.5", "scale_ratios must be above 0, at most 1"),
        ("v0 6 4\n", "sampling_rate: 2", "", "has sampling_rate, which is C3D's, and modality"),
    ],
)
def test_errors_of_segments(lines: str, more: str, transform: str, said: str) -> None:
    Path("list.txt").write_text(lines)
    with pytest.raises(LayerError, match=said):
        batches(net_of(segments(f"batch_size: 1 {more}", transform)), 1)


def test_other_data_layers_refuse_the_fields_of_segments() -> None:
    with pytest.raises(LayerError, match="multi_scale is built in for VideoData of temporal segment networks alone"):
        net_of('layer { name: "in" type: "ImageData" top: "d" top: "l" transform_param { multi_scale: true } }')
