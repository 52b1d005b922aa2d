"""BoxGroupOutput."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.ops import nms

pytestmark = pytest.mark.usefixtures("device")

GROUP = "box_group_param { field_w: 20 field_w: 30 field_h: 40 field_h: 16 stride: 10 }"


def text(more: str = GROUP) -> str:
    return f'type: "BoxGroupOutput" box_group_output_param {{ {more} }}'


def nothing(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (2 G, 2, H, W), all of the background, and no deltas, for two images of two fields."""
    probabilities = np.zeros((4, 2, *shape))
    probabilities[:, 0] = 1
    return probabilities, np.zeros((4, 4, *shape))


def test_by_hand() -> None:
    """Image 1, field 1 (30 x 16), row 2, column 3: the centre is (35, 25); the last column and row belong to the box."""
    probabilities, deltas = nothing(5, 7)
    probabilities[3, :, 2, 3] = 0.25, 0.75
    deltas[3, :, 2, 3] = 0.1, -0.25, np.log(1.2), 0
    rois, scores = LayerCase(text(f"fg_thr: 0.5 {GROUP}"), probabilities, deltas, tops=2).forward()
    row = [1, 38 - 18, 21 - 8, 38 + 18 - 1, 21 + 8 - 1]
    np.testing.assert_allclose(rois[..., 0, 0], [row], rtol=1e-6)
    np.testing.assert_allclose(scores[..., 0, 0], [[*row, 0.75]], rtol=1e-6)


def test_the_end_is_clipped_to_the_images_size_and_sides_count_inclusively() -> None:
    probabilities, deltas = nothing(3, 4)
    probabilities[0, 0, 2, 3] = 0
    rois = LayerCase(text(f"fg_thr: 0.5 min_size: 16 {GROUP}"), probabilities, deltas).forward()[0]
    assert rois[..., 0, 0].tolist() == [[0, 25, 5, 40, 30]]  # 16 wide
    rois = LayerCase(text(f"fg_thr: 0.5 min_size: 16.5 {GROUP}"), probabilities, deltas).forward()[0]
    assert rois[..., 0, 0].tolist() == [[0, 1, 1, 10, 10]]


def test_two_maps_and_a_second_reshape() -> None:
    second = "box_group_param { field_w: 50 field_h: 60 stride: 20 }"
    probabilities, deltas = nothing(3, 4)
    coarse = np.ones((2, 2, 2, 2)), np.zeros((2, 4, 2, 2))
    case = LayerCase(text(f"fg_thr: 0.5 {GROUP} {second}"), probabilities, deltas, *coarse, tops=2)
    assert case.forward()[0].ravel().tolist() == [0, 1, 1, 10, 10]
    case.bottom[2].data[1, 0, 0, 1] = 0.25
    case.bottom[0].data[1, 0, 1, 1] = 0.125
    scores = case.forward()[1][..., 0, 0]
    assert scores.tolist() == [[0, 0, 7, 29, 22, 0.875], [1, 5, 0, 40, 39, 0.75]]
    for blob, (count, channels) in zip(case.bottom, ((2, 2), (2, 4), (1, 2), (1, 4)), strict=True):
        blob.reshape(count, channels, 2, 5)
        blob.data[...] = 1
    assert case.forward()[0].shape == (1, 5, 1, 1)


@given(st.integers(0, 10**6), st.floats(0.1, 0.9))
def test_boxes_lie_in_the_image_best_first_and_overlap_little(seed: int, threshold: float) -> None:
    rng = np.random.default_rng(seed)
    probabilities, deltas = rng.uniform(size=(4, 3, 5, 7)), rng.normal(size=(4, 4, 5, 7))
    more = f"fg_thr: 0.3 iou_thr: {threshold} min_size: 9 {GROUP}"
    rois, scores = LayerCase(text(more), probabilities, deltas, tops=2, dtype=np.float32).forward()
    table = scores[..., 0, 0].astype(np.float64)
    np.testing.assert_array_equal(table[:, :5], rois[..., 0, 0])
    assert set(table[:, 0]) == {0, 1} and (np.diff(table[:, 0]) >= 0).all()
    assert (table[:, 1:3] >= 0).all() and (table[:, 3:5] <= [70, 50]).all()
    assert (table[:, 3:5] - table[:, 1:3] + 1 >= 9 - 1e-4).all()
    for image in (0, 1):
        mine = table[table[:, 0] == image]
        assert (np.diff(mine[:, 5]) <= 0).all() and (mine[:, 5] >= 0.3).all()
        assert np.isin(mine[:, 5].astype(np.float32), 1 - probabilities[2 * image : 2 * image + 2, 0].astype(np.float32)).all()
        assert len(nms(mine[:, 1:], threshold + 1e-4)) == len(mine)


@pytest.mark.parametrize(
    ("more", "shapes", "message"),
    [
        (
            GROUP,
            [(2, 2, 3, 4)] * 3,
            "takes two bottoms, probabilities and deltas, for each box_group_param, got 3 bottoms, for 1",
        ),
        ("box_group_param { field_w: 2 stride: 8 }", [(1, 2, 3, 4), (1, 4, 3, 4)], "got 1 field_w and 0 field_h"),
        (
            "box_group_param { field_w: 2 field_h: 3 }",
            [(1, 2, 3, 4), (1, 4, 3, 4)],
            "must have stride, field_w and field_h > 0",
        ),
        (GROUP, [(3, 2, 3, 4), (3, 4, 3, 4)], r"must have the shape \(N \* 2, K, H, W\), as there are 2 fields"),
        (GROUP, [(4, 2, 3, 4), (4, 4, 3, 5)], r"bottom 1 must have the shape \(4, 4, 3, 4\)"),
    ],
)
def test_errors(more: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text(more), *map(np.zeros, shapes))
