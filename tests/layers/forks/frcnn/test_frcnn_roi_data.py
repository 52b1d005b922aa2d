"""FrcnnRoiData."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from minicaffe import Net
from minicaffe.data.resizing import averaged
from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.forks.frcnn.frcnn_roi_data import scale_factor
from minicaffe.mode import TEST, TRAIN

LIST = """# 0
a0.png
2
1 2 1 7 9 0
2 0 3 30 4 1
# 1
a1.png
1
3 4 2 15 6 0
"""
SETTINGS = {
    "scales": "10", "max_size": "40", "use_flipped": "1", "pixel_means": "1, 2, 3.5", "rng_seed": "3", "n_classes": "4",
}  # fmt: skip
TEXT = """layer { name: "in" type: "FrcnnRoiData" top: "data" top: "im_info" top: "gt_boxes"
  window_data_param { source: "list.txt" config: "config.json" root_folder: "p/" cache_images: true } }"""


def pixels(i: int) -> np.ndarray:
    """Blue tells the column, green the row, red the image."""
    image = np.full((10, 16, 3), 10 * i, np.uint8)
    image[:, :, 0], image[:, :, 1] = np.arange(16), np.arange(10)[:, None]
    return image


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p").mkdir()
    for i in range(2):
        Image.fromarray(pixels(i)[:, :, ::-1]).save(f"p/a{i}.png")
    Path("list.txt").write_text(LIST)
    configure()


def configure(**more: str | None) -> None:
    Path("config.json").write_text(json.dumps({key: v for key, v in (SETTINGS | more).items() if v is not None}))


def net(phase: int = TEST, fork: str = "dxy") -> Net:
    return Net(parse_net(TEXT, file="data.prototxt"), phase, fork=fork)


def by_image(made: Net, count: int = 2) -> dict[int, list[np.ndarray]]:
    """The batches by their images."""
    return {round(float(batch[0][0, 2, 0, 0] + 3.5)) // 10: batch for batch in batches(made, count)}


def test_data_sizes_and_boxes_by_hand() -> None:
    made = net()
    assert [blob.shape for blob in made.blobs.values()] == [(1, 3, 10, 40), (1, 3, 1, 1), (1, 5, 1, 1)]
    found = by_image(made)
    for i in range(2):
        data, info, _ = found[i]
        np.testing.assert_allclose(data[0], pixels(i).transpose(2, 0, 1) - np.reshape([1, 2, 3.5], (3, 1, 1)))
        assert info.reshape(-1).tolist() == [10, 16, 1]
    assert found[0][2].reshape(-1, 5).tolist() == [[2, 1, 7, 9, 1]], "the other box is difficult"
    assert found[1][2].shape == (1, 5, 1, 1) and found[1][2].reshape(-1).tolist() == [4, 2, 15, 6, 3]


def test_makefiles_keeps_difficult_boxes_within_the_image() -> None:
    assert by_image(net(fork="mkfrcnn"))[0][2].reshape(-1, 5).tolist() == [[2, 1, 7, 9, 1], [0, 3, 15, 4, 2]]


@pytest.mark.parametrize(("short", "most", "scale"), [("5", "40", 0.5), ("10", "8", 0.5), ("20", "40", 2.0), ("20", "24", 1.5)])
def test_scales(short: str, most: str, scale: float) -> None:
    configure(scales=short, max_size=most)
    data, info, boxes = by_image(net())[1]
    assert data.shape == (1, 3, 10 * scale, 16 * scale) and info.reshape(-1).tolist() == [10 * scale, 16 * scale, scale]
    np.testing.assert_allclose(boxes.reshape(-1), [4 * scale, 2 * scale, 15 * scale, 6 * scale, 3])


def test_makefiles_shrinks_by_areas_and_pads() -> None:
    configure(scales="5", im_size_align="4")
    data, info, boxes = by_image(net(fork=""))[1]
    means = pixels(1).reshape(5, 2, 8, 2, 3).mean(axis=(1, 3)).transpose(2, 0, 1) - np.reshape([1, 2, 3.5], (3, 1, 1))
    assert data.shape == (1, 3, 8, 8) and info.reshape(-1).tolist() == [8, 8, 0.5]
    np.testing.assert_allclose(data[0, :, :5], means)
    assert not data[:, :, 5:].any() and boxes.reshape(-1).tolist() == [2, 1, 7.5, 3, 3]


def test_the_last_row() -> None:
    """At a scale of 1 / 8 the image has one row: y2 = 9 / 8 is beyond it, and caffe-faster-rcnn leaves it."""
    configure(max_size="2")
    assert by_image_size(net()) == [1, 2, 1.125] and by_image_size(net(fork="mkfrcnn")) == [1, 2, 0]


def by_image_size(made: Net) -> list[float]:
    """Height, width, and y2 of the first image's first box."""
    data, _, boxes = next(batch for batch in batches(made, 2) if batch[2][0, 4] == 1)
    return [*data.shape[2:], float(boxes[0, 3, 0, 0])]


def test_a_part_of_an_area_at_the_end() -> None:
    """Parts 1 / 0.4 = 2.5 long of 9: the last has 1.5."""
    found = averaged(np.arange(9.0).reshape(9, 1, 1), 4, 1, scale=0.4)[:, 0, 0]
    np.testing.assert_allclose(found, [(0 + 1 + 1) / 2.5, (1 + 3 + 4) / 2.5, (5 + 6 + 3.5) / 2.5, (3.5 + 8) / 1.5])


@pytest.mark.parametrize(("way", "level"), [("1", "brightness"), ("2", "colours")])
def test_equalised_histograms(way: str, level: str) -> None:
    configure(use_hist_equalize=way, pixel_means="0,0,0")
    batches_ = [batch for batch in batches(net(fork=""), 2) if batch[2][0, 4] == 3]
    assert batches_[0][0].max() > 200, "of values up to 15"
    if level == "colours":
        np.testing.assert_array_equal(batches_[0][0][0, 1, :, 0], np.round(np.arange(10) * 255 / 9))


def test_half_of_the_images_are_mirrored_in_train() -> None:
    seen = set()
    for data, _, boxes in batches(net(TRAIN), 12):
        mirrored = bool(data[0, 0, 0, 0] > 0)
        image = round(float(data[0, 2, 0, 0] + 3.5)) // 10
        x1, _, x2, _ = [(2, 1, 7, 9), (4, 2, 15, 6)][image]
        assert boxes[0, [0, 2], 0, 0].tolist() == ([15 - x2, 15 - x1] if mirrored else [x1, x2])
        seen.add((image, mirrored))
    assert len(seen) == 4
    configure(use_flipped="0")
    assert all(data[0, 0, 0, 0] < 0 for data, _, _ in batches(net(TRAIN), 6))


def test_each_epoch_has_every_image_and_the_seed_is_the_settings() -> None:
    taken = [round(float(batch[0][0, 2, 0, 0] + 3.5)) // 10 for batch in batches(net(), 20)]
    assert all({*taken[i : i + 2]} == {0, 1} for i in range(0, 20, 2)) and len({*zip(taken[::2], taken[1::2])}) == 2
    assert taken == [round(float(batch[0][0, 2, 0, 0] + 3.5)) // 10 for batch in batches(net(), 20)]


def test_ranks_must_have_the_same_settings() -> None:
    one = net().layers[0].data_fingerprint()
    configure(max_size="39")
    other = net().layers[0].data_fingerprint()
    assert [key for key in one if one[key] != other[key]] == ["settings"]


def test_it_resumes() -> None:
    configure(scales="10,14", use_hist_equalize="0")
    check_repeats_and_resumes(TEXT, TRAIN)


@given(st.integers(1, 99), st.integers(1, 99), st.integers(1, 50), st.integers(1, 200))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_side_is_longer(height: int, width: int, short: int, most: int) -> None:
    scale = float(scale_factor((height, width), short, most))
    assert scale * max(height, width) <= most * (1 + 1e-6) and scale * min(height, width) <= short * (1 + 1e-6)
    assert np.isclose(scale * max(height, width), most) or np.isclose(scale * min(height, width), short)


def test_an_image_of_difficult_boxes_alone() -> None:
    Path("list.txt").write_text("# 0\na0.png\n1\n1 2 1 7 9 1\n")
    assert batches(net(), 1)[0][2].shape == (0, 5, 1, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "list.txt: the list is empty"),
        ("1 a.png", 'list.txt:1: expected "#", got "1"'),
        ("# 0\na0.png\n1\n4 0 0 1 1 0", "list.txt:4: a box has class 4; they are 1 to 3"),
        ("# 0\na0.png\n1\n0 0 0 1 1 0", "list.txt:4: a box has class 0"),
        ("# 0\na0.png\n1\n1 5 0 4 1 0", "list.txt:4: the box 5 0 4 1 has no pixels"),
        ("# 0\na0.png\n1\n1 0 0 1 1\n# 1\na1.png\n0", "list.txt:4: the box CLASS X1 Y1 X2 Y2 lacks its sixth number"),
        ("# 0\na0.png\n2\n1 0 0 1 1 0", "list.txt: the file ends before a box's class"),
        ("# 0\na0.png\n-2", "list.txt:3: the number of boxes must be >= 0, got -2"),
    ],
)
def test_lists(text: str, message: str) -> None:
    Path("list.txt").write_text(text)
    with pytest.raises(LayerError, match=message.replace("(", r"\(")):
        net()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"scales": None}, 'config.json: "scales" is missing'),
        ({"scales": "a"}, '"scales" must be numbers with commas between, got "a"'),
        ({"pixel_means": "1, 2"}, '"pixel_means" must be 3 finite numbers, got "1, 2"'),
        ({"rng_seed": "1.5"}, '"rng_seed" must be a whole number, got 1.5'),
        ({"max_size": "inf"}, '"max_size" must be 1 finite number, got "inf"'),
        ({"n_classes": "1"}, "n_classes must be at least 2"),
        ({"scales": "5, 0"}, "scales and max_size at least 1"),
        ({"data_jitter": "0.2"}, "config.json has data_jitter, which is not built"),
        ({"data_rand_scale": "1.2"}, "config.json has data_rand_scale, which is not built"),
        ({"data_rand_rotate": "1"}, "config.json has data_rand_rotate, which is not built"),
        ({"use_haze_free": "1"}, "config.json has use_haze_free, which is not built"),
        ({"IMS_PER_BATCH": "1"}, "config.json has IMS_PER_BATCH, which is not built"),
    ],
)
def test_settings(values: dict[str, str | None], message: str) -> None:
    configure(**values)
    with pytest.raises(LayerError, match=message):
        net(TRAIN)


def test_errors() -> None:
    with pytest.raises(LayerError, match=r"it may be caffe-faster-rcnn's .*--fork dxy.* or makefile/frcnn's"):
        net(fork="")
    for text, message in (("[]", "the settings must be an object"), ("{", "the settings are not JSON")):
        Path("config.json").write_text(text)
        with pytest.raises(LayerError, match=message):
            net()
    configure()
    Path("list.txt").write_text("# 0\na0.png\n0\n")
    with pytest.raises(LayerError, match=r"list.txt:2: a0.png has no box"):
        net(fork="mkfrcnn")
    Path("list.txt").write_text("# 0\nmissing.png\n1\n1 0 0 1 1 0")
    with pytest.raises(LayerError, match=r"list.txt:2: p/missing.png"):
        net().forward()
    with pytest.raises(LayerError, match="needs a source and a config"):
        Net(parse_net(TEXT.replace('config: "config.json"', "")), fork="dxy")
