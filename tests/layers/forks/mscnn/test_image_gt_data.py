"""ImageGtData."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, net_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from minicaffe.errors import LayerError
from minicaffe.mode import TEST, TRAIN

SIZE = 32, 48
FILE = """# 0
a0.png
3 32 48
2
1 0  8 8 23 23
3 1  24 2 45 29
1
0 24 8 32
# 1
a1.png
3 32 48
0
0
# 2
a2.png
3 32 48
1
2 0  30 10 41 21
0
"""
FIELDS = "downsample_rate: 8 field_h: 16 field_w: 16 downsample_rate: 4 field_h: 12 field_w: 12 output_gt_boxes: true "


def pixels(i: int) -> np.ndarray:
    """Blue tells the column, green the row, red the image."""
    image = np.full((*SIZE, 3), 10 * i + 5, np.uint8)
    image[:, :, 0], image[:, :, 1] = np.arange(SIZE[1]) + 100, np.arange(SIZE[0])[:, None] + 100
    return image


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p").mkdir()
    for i in range(3):
        Image.fromarray(pixels(i)[:, :, ::-1]).save(f"p/a{i}.png")
    Path("list.txt").write_text(FILE)


def text(more: str = "batch_size: 3", transform: str = "", tops: int = 4) -> str:
    names = " ".join(f'top: "t{i}"' for i in range(tops))
    return (
        f'layer {{ name: "in" type: "ImageGtData" {names} transform_param {{ {transform} }}\n'
        f'image_gt_data_param {{ source: "list.txt" root_folder: "p/" {FIELDS} {more} }} }}'
    )


def test_data_labels_and_boxes_by_hand() -> None:
    data, coarse, fine, boxes = batches(net_of(text("batch_size: 3 scale: 0.5", "mean_value: 4")), 1)[0]
    np.testing.assert_allclose(data, [(pixels(i).transpose(2, 0, 1) - 4.0) / 2 for i in range(3)])
    assert coarse.shape == (3, 6, 4, 6) and fine.shape == (3, 6, 8, 12)
    assert boxes[:, :, 0, 0].tolist() == [[0, 8, 8, 23, 23, 1, 0], [0, 24, 2, 45, 29, 3, 1], [2, 30, 10, 41, 21, 2, 0]]
    # the anchor (4, 4, 20, 20) shares 12 x 12 of the box's 15 x 15 and its own 16 x 16
    np.testing.assert_allclose(coarse[0, :, 1, 1], [0, 0, 0, 0, 0, 144 / (225 + 256 - 144)], rtol=1e-6)
    np.testing.assert_allclose(fine[0, :5, 3, 3], [1, 15.5, 15.5, 15, 15])
    assert fine[0, 5, 6, 0] == 1 and coarse[0, 5, 3, 0] < 0.1, "64 of 144, and 64 of 256, in the region of no interest"
    np.testing.assert_allclose(fine[2, :, 3, 8], [2, 35.5, 15.5, 11, 11, fine[2, 5, 3, 8]])
    assert not coarse[1].any() and not fine[1].any(), "nothing there"


def test_an_image_without_boxes_and_small_boxes() -> None:
    Path("list.txt").write_text(FILE[FILE.index("# 1") : FILE.index("# 2")].replace("# 1", "# 0"))
    boxes = batches(net_of(text("batch_size: 1")), 1)[0][3]
    assert boxes[:, :, 0, 0].tolist() == [[0, 1, 1, 2, 2, 1, 1]]
    Path("list.txt").write_text(FILE)
    boxes = batches(net_of(text("batch_size: 3 min_gt_width: 13 min_gt_height: 16")), 1)[0][3]
    assert boxes[:, 6, 0, 0].tolist() == [0, 1, 1]


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_boxes_stay_at_their_pixels(phase: int) -> None:
    """Through mirror, resize and crop: the pixels at a box's corner tell its place in the image."""
    seen = set()
    more = "batch_size: 3 crop_width: 24 crop_height: 20"
    for data, _, _, boxes in batches(net_of(text(more, "mirror: true"), phase), 6):
        assert data.shape == (3, 3, 20, 24)
        image, rows = data[0].astype(int), boxes[boxes[:, 0, 0, 0] == 0][:, 1:5, 0, 0]
        columns, first = image[0, 0] - 100, image[1, 0, 0] - 100
        mirrored = columns[0] > columns[-1]
        left = SIZE[1] - 1 - columns[0] if mirrored else columns[0]
        expected = np.array([[8, 8, 23, 23], [24, 2, 45, 29]], float)
        if mirrored:
            expected[:, [0, 2]] = SIZE[1] - expected[:, [2, 0]]
        np.testing.assert_allclose(rows, expected - [left, first, left, first])
        seen.add((mirrored, left, first))
    assert len(seen) > 2 and {mirrored for mirrored, _, _ in seen} == {True, False}


def test_scales_and_aspects_are_drawn() -> None:
    more = "batch_size: 3 do_multiple_scale: true min_scale: 8 max_scale: 32 min_whaspect: 0.5 max_whaspect: 2"
    sizes = set()
    for data, _, _, boxes in batches(net_of(text(more), TRAIN), 12):
        assert data.shape == (3, 3, *SIZE) and np.isfinite(data).all()
        width, height = boxes[0, 3:5, 0, 0] - boxes[0, 1:3, 0, 0]
        sizes.add((round(float(width), 3), round(float(height), 3)))
    assert len(sizes) > 4 and (15, 15) in sizes and any(width != height for width, height in sizes)


def test_resize_and_multiples_of_images_with_boxes() -> None:
    data, _, _, boxes = batches(net_of(text("batch_size: 1 resize_width: 96 resize_height: 32")), 1)[0]
    assert data.shape == (1, 3, 32, 96)
    np.testing.assert_allclose(boxes[0, 1:5, 0, 0], [16, 8, 46, 23])
    taken = batches(net_of(text("batch_size: 5 fg_img_multiple: 2")), 1)[0][0]
    assert taken[:, 2, 0, 0].tolist() == [5, 5, 15, 25, 25]


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_a_seed_repeats_and_a_state_resumes(phase: int) -> None:
    more = "batch_size: 2 shuffle: true crop_width: 40 crop_height: 24 do_multiple_scale: true min_scale: 8 max_scale: 32"
    check_repeats_and_resumes(text(more, "mirror: true"), phase, 3)


@given(st.integers(8, 48), st.integers(8, 32))
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_crop_is_a_part_of_the_image(width: int, height: int) -> None:
    data = batches(net_of(text(f"batch_size: 1 crop_width: {width} crop_height: {height}")), 1)[0][0]
    assert data.shape == (1, 3, height, width)
    assert (np.diff(data[0, 0], axis=1) == 1).all() and (np.diff(data[0, 1], axis=0) == 1).all()


@pytest.mark.parametrize(
    ("more", "transform", "tops", "said"),
    [
        ("batch_size: 0", "", 4, "batch_size must be > 0"),
        ("batch_size: 1", "", 3, "has 3 tops, but the data, 2 fields and the boxes make 4"),
        ("batch_size: 1 field_w: 3", "", 4, "give as many of each, got 2 downsample_rate, 2 field_h, 3 field_w"),
        ("batch_size: 1 coord_num: 5", "", 4, "coord_num must be 4, got 5"),
        ("batch_size: 1 crop_width: 60 crop_height: 8", "", 4, "the crop, 60 wide and 8 high, is larger than the image"),
        ("batch_size: 1", "crop_size: 8", 4, "crop_size is not for ImageGtData, which takes mirror, mean_value"),
        ("batch_size: 1 do_multiple_scale: true min_scale: 9 max_scale: 8", "", 4, r"min_scale must be in \[1, 8\], got 9"),
        (
            "batch_size: 1 do_multiple_scale: true min_scale: 8 max_scale: 8 min_whaspect: 1 max_whaspect: 1", "", 4,
            "min_whaspect must be > 0, and max_whaspect larger",
        ),
        (
            "batch_size: 1 do_multiple_scale: true min_scale: 8 max_scale: 8 min_whaspect: 1 max_whaspect: 1e30", "", 4,
            "max_whaspect larger by 0.05, at most by 1e8",
        ),
        ("batch_size: 1 fg_threshold: nan", "", 4, "fg_threshold must be finite, got nan"),
        ("batch_size: 1 fg_img_multiple: 4000000000", "", 4, "the list with fg_img_multiple has 96,000,000,000 bytes"),
    ],
)  # fmt: skip
def test_errors(more: str, transform: str, tops: int, said: str) -> None:
    with pytest.raises(LayerError, match=said):
        batches(net_of(text(more, transform, tops)), 1)


def test_fields_of_size_0_and_a_missing_image() -> None:
    with pytest.raises(LayerError, match="downsample_rate, field_h and field_w must be at least 1"):
        net_of(text("batch_size: 1 downsample_rate: 8 field_h: 0 field_w: 8", tops=5))
    Path("p/a1.png").unlink()
    with pytest.raises(LayerError, match=r"list.txt:9: .*a1.png"):
        batches(net_of(text()), 1)


def test_a_number_of_windows_below_0(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(FILE.replace("3 32 48\n0\n0", "3 32 48\n-2\n0"))
    with pytest.raises(LayerError, match=r"list.txt:12: the number of windows must be >= 0, got -2"):
        net_of(text())
