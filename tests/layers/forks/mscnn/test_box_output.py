"""BoxOutput, and what it shares with BoxGroupOutput."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import TRAIN
from minicaffe.errors import LayerError
from minicaffe.ops import nms

pytestmark = pytest.mark.usefixtures("device")

ONE = "field_w: 20 field_h: 30 downsample_rate: 10"


def text(more: str = ONE, reg: str = "") -> str:
    return f'type: "BoxOutput" box_output_param {{ {more} }} bbox_reg_param {{ {reg} }}'


def maps(*shape: int, score: float = -9) -> np.ndarray:
    """Maps (1, 2 + 4, H, W) with no deltas, every cell's score that far above the background's."""
    x = np.zeros((1, 6, *shape))
    x[:, 1] = score
    return x


def test_by_hand() -> None:
    """The cell at row 3, column 2 has its centre at (25, 35); t_x and t_h stay within 1 / field_xyr and log(field_whr)."""
    x = maps(5, 7)
    x[0, :, 3, 2] = [1, 4, 9, 0.1, np.log(0.8), np.log(1.5)]
    rois, scores = LayerCase(text(ONE + " field_xyr: 2 field_whr: 1.25"), x, tops=2).forward()
    width, height = 20 * 0.8, 30 * 1.25
    centre = 25 + 0.5 * 20, 35 + 0.1 * 30
    row = [0, centre[0] - width / 2, centre[1] - height / 2, centre[0] + width / 2, 50]  # the image is 70 wide and 50 high
    assert row[2] + height > 50
    np.testing.assert_allclose(rois[..., 0, 0], [row], rtol=1e-6)
    np.testing.assert_allclose(scores[..., 0, 0], [[*row, 3]], rtol=1e-6)


def test_the_best_class_counts_and_deltas_are_unnormalised() -> None:
    x = np.zeros((1, 3 + 4, 3, 4))
    x[0, 1:3] = -5
    x[0, :, 1, 2] = [-1, 0, 2, 1, -1, 0.5, -0.5]
    reg = " ".join(f"bbox_mean: {m} bbox_std: {s}" for m, s in ((0, 0.1), (0.1, 0.2), (0, 0.3), (-0.1, 0.4)))
    rois, scores = LayerCase(text(reg=reg), x, tops=2).forward()
    centre, size = (25 + 0.1 * 20, 15 - 0.1 * 30), (20 * np.exp(0.15), 30 * np.exp(-0.3))
    corner = np.maximum(np.subtract(centre, np.divide(size, 2)), 0)
    np.testing.assert_allclose(rois[0, :, 0, 0], [0, *corner, *np.minimum(corner + size, [40, 30])], rtol=1e-6)
    assert scores[0, 5, 0, 0] == 3


def test_nothing_is_one_roi_and_a_second_reshape() -> None:
    case = LayerCase(text(), maps(3, 4), tops=2)
    rois, scores = case.forward()
    assert rois.ravel().tolist() == [0, 1, 1, 10, 10]
    assert scores.ravel().tolist() == [0] * 6
    case.bottom[0].reshape(2, 6, 4, 5)
    case.bottom[0].data[...] = 0
    case.bottom[0].data[1, 1, 2, 3] = 1
    case.bottom[0].data[0, 0] = 1
    rois, scores = case.forward()
    assert rois[0, :, 0, 0].tolist() == [1, 25, 10, 45, 40]
    assert scores.shape == (len(rois), 6, 1, 1)


def test_of_equal_scores_the_last_comes_first_over_all_maps() -> None:
    more = "field_w: 20 field_w: 20 field_h: 20 field_h: 20 downsample_rate: 20 downsample_rate: 20 max_nms_num: 3"
    rois = LayerCase(text(more), maps(2, 2, score=1), maps(2, 2, score=1)).forward()[0]
    assert rois[..., 0, 0].tolist() == [[0, 20, 20, 40, 40], [0, 0, 20, 20, 40], [0, 20, 0, 40, 20]]


@pytest.mark.parametrize(("kind", "kept"), [("IOU", 2), ("IOMU", 1), ("IOFU", 2)])
def test_what_a_shared_area_is_divided_by(kind: str, kept: int) -> None:
    """A large box, the better one, and a small one in it: 0.25 of the union and of the better, all of the smaller."""
    more = f"field_w: 40 field_w: 20 field_h: 40 field_h: 20 downsample_rate: 40 downsample_rate: 40 nms_type: '{kind}'"
    assert len(LayerCase(text(more), maps(1, 1, score=2), maps(1, 1, score=1)).forward()[0]) == kept
    assert len(LayerCase(text(more), maps(1, 1, score=1), maps(1, 1, score=2)).forward()[0]) == 1 + (kind == "IOU")


@given(st.integers(0, 10**6), st.floats(0.1, 0.9), st.sampled_from(["IOU", "IOMU", "IOFU"]))
def test_boxes_lie_in_the_image_best_first_and_overlap_little(seed: int, threshold: float, kind: str) -> None:
    x = np.random.default_rng(seed).normal(size=(2, 3 + 4, 5, 7)).astype(np.float32)
    rois, scores = LayerCase(text(f"{ONE} iou_thr: {threshold} nms_type: '{kind}' min_size: 9"), x, tops=2).forward()
    table = scores[..., 0, 0]
    np.testing.assert_array_equal(table[:, :5], rois[..., 0, 0])
    assert (np.diff(table[:, 0]) >= 0).all()
    if not table.any():
        return
    assert (table[:, 1:3] >= 0).all()
    assert (table[:, 3:5] <= [70 + 1e-4, 50 + 1e-4]).all()
    assert (table[:, 3:5] - table[:, 1:3] >= 9 - 1e-4).all()
    for image in (0, 1):
        mine = table[table[:, 0] == image].astype(np.float64)
        assert (np.diff(mine[:, 5]) <= 0).all()
        for i, first in enumerate(mine):
            for later in mine[i + 1 :]:
                sides = np.minimum(first[3:5], later[3:5]) - np.maximum(first[1:3], later[1:3])
                areas = [np.prod(box[3:5] - box[1:3]) for box in (first, later)]
                shared = np.prod(np.maximum(sides, 0))
                whole = {"IOU": sum(areas) - shared, "IOMU": min(areas), "IOFU": areas[0]}[kind]
                assert shared <= (threshold + 1e-5) * whole


def test_limits_before_and_after_suppression() -> None:
    x = np.random.default_rng(3).normal(size=(1, 6, 6, 8))
    every = LayerCase(text(f"{ONE} iou_thr: 1"), x, tops=2).forward()[1][..., 0, 0]
    first = LayerCase(text(f"{ONE} iou_thr: 0.3 max_nms_num: 11"), x, tops=2).forward()[1][..., 0, 0]
    corners = every[:11, 1:].copy()
    corners[:, 2:4] -= 1  # points to pixels
    np.testing.assert_array_equal(first, every[nms(corners, 0.3)])
    last = LayerCase(text(f"{ONE} iou_thr: 0.3 max_post_nms_num: 2"), x, tops=2).forward()[1]
    assert len(last) == 2


def test_no_gradient() -> None:
    case = LayerCase(text(), maps(3, 4, score=1), phase=TRAIN)
    tops = case.forward()
    assert not case.backward(np.ones(tops[0].shape))[0].any()


@pytest.mark.parametrize(
    ("more", "reg", "shapes", "message"),
    [
        (f"{ONE} nms_type: 'iou'", "", [(1, 6, 2, 3)], 'nms_type must be one of IOU, IOMU, IOFU, got "iou"'),
        (f"{ONE} field_whr: 0", "", [(1, 6, 2, 3)], "field_whr must be > 0, got 0"),
        (f"{ONE} field_xyr: -2", "", [(1, 6, 2, 3)], "field_xyr must be > 0, got -2"),
        (ONE, "", [(1, 6, 2, 3), (1, 6, 1, 2)], "2 bottoms need 2 field_w, got 1"),
        ("field_w: 20 field_h: 0 downsample_rate: 8", "", [(1, 6, 2, 3)], r"field_h must be > 0, got \[0\]"),
        (ONE, "", [(1, 5, 2, 3)], r"must have the shape \(N, K \+ 4, H, W\), with K > 1 classes; got \(1, 5, 2, 3\)"),
        (ONE, "", [(1, 6, 2)], "must have the shape"),
        (f"{ONE} {ONE}", "", [(1, 6, 2, 3), (2, 6, 1, 2)], "bottoms 0 and 1 must differ in H and W only"),
        (ONE, "bbox_mean: 0", [(1, 6, 2, 3)], "bbox_mean and bbox_std must be 4 numbers each, got 1 and 0"),
        (ONE, "bbox_mean: 0 bbox_std: 0 " * 4, [(1, 6, 2, 3)], "bbox_std must be > 0"),
    ],
)
def test_errors(more: str, reg: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text(more, reg), *map(np.zeros, shapes))
