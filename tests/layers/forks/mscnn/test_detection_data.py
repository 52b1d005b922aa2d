"""DetectionData."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from batches import batches, check_repeats_and_resumes, net_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from minicaffe.errors import LayerError
from minicaffe.mode import TEST, TRAIN

SIZES = [(32, 48), (48, 32), (32, 40), (64, 32)]
FILE = """# 0
a0.png
3 32 48
2
1 0 0  8 8 23 23
3 1 1  24 2 45 29
1
0 24 8 32
# 1
a1.png
3 48 32
1
2 0 0 4 10 15 21
0
# 2
a2.png
3 32 40
0
0
# 3
a3.png
3 64 32
1
1 0 1  2 2 30 60
0
"""
FIELDS = "stride: 8 field_h: 16 field_w: 16 stride: 4 field_h: 12 field_w: 12 output_gt_boxes: true "


def pixels(i: int) -> np.ndarray:
    """Blue tells the column, green the row, red the image."""
    height, width = SIZES[i]
    image = np.full((height, width, 3), 10 * i + 5, np.uint8)
    image[:, :, 0], image[:, :, 1] = np.arange(width) + 100, np.arange(height)[:, None] + 100
    return image


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p").mkdir()
    for i in range(4):
        Image.fromarray(pixels(i)[:, :, ::-1]).save(f"p/a{i}.png")
    Path("list.txt").write_text(FILE)


def text(more: str = "batch_size: 1", transform: str = "", tops: int = 4, fields: str = FIELDS) -> str:
    names = " ".join(f'top: "t{i}"' for i in range(tops))
    return (
        f'layer {{ name: "in" type: "DetectionData" {names} transform_param {{ {transform} }}\n'
        f'detection_data_param {{ source: "list.txt" root_folder: "p/" {fields} {more} }} }}'
    )


def test_data_labels_and_boxes_by_hand() -> None:
    data, coarse, fine, boxes = batches(net_of(text("batch_size: 1", "mean_value: 4 scale: 0.5")), 1)[0]
    np.testing.assert_allclose(data[0], (pixels(0).transpose(2, 0, 1) - 4.0) / 2)
    assert coarse.shape == (1, 6, 4, 6) and fine.shape == (1, 6, 8, 12)
    assert boxes[:, :, 0, 0].tolist() == [[0, 8, 8, 23, 23, 1, 0, 0], [0, 24, 2, 45, 29, 3, 1, 1]]
    # the anchor (4, 4, 20, 20) shares 13 x 13 of the box's 16 x 16 and its own 17 x 17
    overlap = 169 / (256 + 289 - 169)
    np.testing.assert_allclose(coarse[0, :, 1, 1], [0, 0, 0, 0, 0, overlap], rtol=1e-6)
    np.testing.assert_allclose(fine[0, :5, 3, 3], [1, 15.5, 15.5, 16, 16])
    assert fine[0, 5, 6, 0] == 1, "81 of 169 pixels in the region of no interest"


def test_no_boxes_no_fields_and_no_boxes_asked_for() -> None:
    taken = batches(net_of(text("batch_size: 1 output_gt_boxes: true", tops=2, fields="")), 3)
    assert taken[2][1][:, :, 0, 0].tolist() == [[-1] * 8]
    assert [data.shape[2:] for data, _ in taken] == SIZES[:3]
    assert len(batches(net_of(text(tops=1, fields="")), 1)[0]) == 1


def test_sizes() -> None:
    """short_size and long_size: the frame is the batch's first image's way round; 0.25 of it in one batch of two."""
    taken = batches(net_of(text("batch_size: 1 short_size: 64 long_size: 96", tops=4)), 2)
    assert [data.shape for data, *_ in taken] == [(1, 3, 64, 96), (1, 3, 96, 64)]
    np.testing.assert_allclose(taken[0][3][0, 1:5, 0, 0], [16, 16, 46, 46])
    (data, *_), *_ = batches(net_of(text("batch_size: 2 resize_ratio: 0.5")), 1)
    assert data.shape == (2, 3, 16, 24)
    (data, *_), *_ = batches(net_of(text("batch_size: 2 resize_width: 40 resize_height: 64")), 1)
    assert data.shape == (2, 3, 64, 40)
    (data, *_), *_ = batches(net_of(text("batch_size: 1 crop_short_size: 16 crop_long_size: 24")), 1)
    assert data.shape == (1, 3, 16, 24)
    found = {
        data.shape[2:]
        for data, *_ in batches(
            net_of(text("batch_size: 4 short_size: 64 long_size: 96 template_ratio: 1 template_ratio: 0.5")), 8
        )
    }
    assert found == {(64, 96), (32, 64)}  # 48 is rounded to 64


def test_a_smaller_image_is_padded_and_what_is_beyond_it_is_ignored() -> None:
    Path("list.txt").write_text(FILE[: FILE.index("# 1")])
    more = "batch_size: 1 crop_width: 80 crop_height: 64"
    for data, coarse, _, boxes in batches(net_of(text(more)), 4):
        rows, columns = (np.flatnonzero(data[0, 2].any(axis=axis)) for axis in (1, 0))
        assert (len(rows), len(columns)) == (32, 48) and 6 <= rows[0] <= 25 and 6 <= columns[0] <= 25
        np.testing.assert_allclose(boxes[0, 1:3, 0, 0], [columns[0] + 8, rows[0] + 8])
        outside = np.ones((8, 10), bool)
        top, left = int(rows[0] / 8 + 0.5), int(columns[0] / 8 + 0.5)
        outside[top : top + 4, left : left + 6] = False
        assert (coarse[0, 5][outside] == 1).all() and (coarse[0, 0][outside] == 0).all()
        assert (coarse[0, 5][~outside] < 1).any()


@pytest.mark.parametrize(
    ("more", "count"), [("anchor_ignore_margin_ratio: 0.1", 2), ("anchor_ignore_iou_thr: 0.95", 2), ("", 0)]
)
def test_anchors_that_reach_too_far_out_are_ignored(more: str, count: int) -> None:
    Path("list.txt").write_text(FILE[FILE.index("# 2") : FILE.index("# 3")].replace("# 2", "# 0"))
    label = batches(net_of(text(f"batch_size: 1 {more}")), 1)[0][1][0, 5]
    assert label.shape == (4, 5)
    inside = label[1:-1, 1:-1] if count else label
    assert not inside.any() and label.sum() == label.size - inside.size


def test_scales_are_drawn() -> None:
    low_high = "low_scale_ratio: 0.5 high_scale_ratio: 2 min_whaspect: 0.5 max_whaspect: 2"
    Path("list.txt").write_text(FILE[: FILE.index("# 1")])
    for more in (low_high, "min_scale: 8 max_scale: 32"):
        sizes = set()
        for data, _, _, boxes in batches(
            net_of(text(f"batch_size: 1 multiscale_prob: 0.7 crop_width: 48 crop_height: 32 {more}")), 12
        ):
            assert data.shape == (1, 3, 32, 48)
            width, height = boxes[0, 3:5, 0, 0] - boxes[0, 1:3, 0, 0]
            sizes.add((round(float(width), 3), round(float(height), 3)))
        assert (15, 15) in sizes and len(sizes) > 5
        assert all(7 / 1.5 <= width <= 32 * 1.5 for width, _ in sizes)
        assert any(abs(width - height) > 0.1 for width, height in sizes) == (more == low_high)


@pytest.mark.parametrize(("kind", "runs"), [("random", 99), ("random_aspect", 2), ("random_mix_aspect", 4)])
def test_shuffles(kind: str, runs: int) -> None:
    more = f'batch_size: 4 resize_width: 32 resize_height: 32 mix_group_size: 1 shuffle: "{kind}"'
    orders = [tuple(data[:, 2, 0, 0].astype(int) // 10) for data, *_ in batches(net_of(text(more, tops=1, fields="")), 8)]
    assert len(set(orders)) > 2 and all(sorted(order) == [0, 1, 2, 3] for order in orders)
    for order in orders:
        upright = [SIZES[i][0] >= SIZES[i][1] for i in order]
        changes = 1 + sum(a != b for a, b in pairwise(upright))
        assert runs in (changes, 99)


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_a_seed_repeats_and_a_state_resumes(phase: int) -> None:
    more = (
        'batch_size: 2 shuffle: "random_aspect" crop_width: 40 crop_height: 24 low_scale_ratio: 0.5 high_scale_ratio: 3'
        " template_ratio: 1 template_ratio: 0.5 distort_param { brightness_prob: 0.5 brightness_delta: 32 hue_prob: 0.5 }"
    )
    check_repeats_and_resumes(text(more, "mirror: true"), phase, 3)


@given(st.integers(8, 40), st.integers(8, 40), st.booleans())
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_boxes_stay_at_their_pixels(width: int, height: int, mirror: bool) -> None:
    more = f"batch_size: 1 crop_width: {width} crop_height: {height}"
    data, _, _, boxes = batches(net_of(text(more, f"mirror: {str(mirror).lower()}")), 1)[0]
    column, row = (int(np.flatnonzero(data[0, 2].any(axis=axis))[0]) for axis in (0, 1))
    x = int(data[0, 0, row, column]) - 100
    mirrored = data[0, 0, row, column] > data[0, 0, row, column + 1]
    left = (48 - 23 if mirrored else 8) - (47 - x if mirrored else x) + column
    assert boxes[0, 1, 0, 0] == left and boxes[0, 2, 0, 0] == 8 - (int(data[0, 1, row, column]) - 100) + row


@pytest.mark.parametrize(
    ("more", "transform", "said"),
    [
        ("batch_size: 0", "", "batch_size must be > 0"),
        ('batch_size: 1 shuffle: "often"', "", 'shuffle "often" is none of random, random_aspect, random_mix_aspect'),
        ("batch_size: 1 short_size: 9", "", "give both short_size and long_size, or neither"),
        ("batch_size: 1 short_size: 9 long_size: 8", "", "short_size must be at most long_size"),
        ("batch_size: 1 crop_width: 0 crop_height: 9", "", "crop_height and crop_width must be > 0"),
        ("batch_size: 1 resize_ratio: 2 short_size: 9 long_size: 10", "", "give one of resize_ratio and short_size"),
        (
            "batch_size: 1 min_scale: 2 max_scale: 3 low_scale_ratio: 1 high_scale_ratio: 2",
            "",
            "give one of min_scale and low_scale",
        ),
        ("batch_size: 1 distort_param { hue_delta: -1 }", "", "distort_param.hue_delta must be >= 0"),
        ("batch_size: 1 mix_group_size: 0", "", "mix_group_size must be > 0"),
        ("batch_size: 1 stride: 3", "", "give as many of each, got 3 stride, 2 field_h, 2 field_w"),
        ("batch_size: 1 resize_ratio: 0.001", "", "list.txt:1: a0.png: an image of 32 x 48 pixels would be resized to 0 x 0"),
        ("batch_size: 1 resize_ratio: inf", "", "resize_ratio must be finite, got inf"),
        ("batch_size: 1 template_ratio: 1 template_ratio: nan", "", "template_ratio must be finite, got nan"),
        ("batch_size: 1", "crop_size: 3", "crop_size is not for DetectionData, which takes mirror, scale, mean_value"),
    ],
)
def test_errors(more: str, transform: str, said: str) -> None:
    with pytest.raises(LayerError, match=said):
        net_of(text(more, transform))
