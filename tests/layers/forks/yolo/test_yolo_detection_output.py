"""YoloDetectionOutput."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def text(more: str = "biases: 1 biases: 2", classes: int = 2, boxes: int = 1) -> str:
    return f'type: "YoloDetectionOutput" yolo_detection_output_param {{ num_classes: {classes} num_box: {boxes} {more} }}'


def cell(*numbers: float) -> np.ndarray:
    """A map of one cell."""
    return np.array(numbers, float).reshape(1, -1, 1, 1)


def test_by_hand() -> None:
    """Centre 0.5; the anchor's size; objectness sigmoid(0), class 2 softmax(0, ln 3)."""
    case = LayerCase(text(), cell(0, 0, 0, 0, 0, 0, np.log(3)))
    np.testing.assert_allclose(case.forward()[0], [[[[0, 2, 0.5 * 0.75, 0, -0.5, 1, 1.5]]]])
    assert not case.backward(np.ones((1, 1, 1, 7)))[0].any()


def test_cells_and_anchors_in_their_order() -> None:
    x = np.full((1, 2, 7, 2, 2), -9.0)
    x[0, 1, :, 1, 0] = [0, 0, np.log(2), 0, 9, 9, -9]  # the second anchor of the cell at row 1, column 0
    (rows,) = LayerCase(text("biases: 9 biases: 9 biases: 0.5 biases: 1", boxes=2), x.reshape(1, 14, 2, 2)).forward()
    np.testing.assert_allclose(rows[0, 0], [[0, 1, 1, 0, 0.5, 0.5, 1]], atol=2e-4)


def test_suppression_of_all_images_and_classes_together() -> None:
    """Two images with the same box, of two classes; equal scores: the first stays."""
    x = np.concatenate([cell(0, 0, 0, 0, 5, 0, 9), cell(0, 0, 0, 0, 5, 9, 0)])
    assert LayerCase(text(), x).forward()[0].shape == (1, 1, 1, 7)
    assert LayerCase(text(), x).forward()[0][0, 0, 0, 1] == 2
    assert LayerCase(text("biases: 1 biases: 1 nms_threshold: 1.1"), x).forward()[0].shape == (1, 1, 2, 7)


def test_a_second_map() -> None:
    x = cell(0, 0, 0, 0, 5, 0, 9)
    far = np.full((1, 7, 3, 3), -9.0)
    far[0, :, 2, 2] = [0, 0, -3, -3, 5, 9, 0]
    case = LayerCase(text(), x, far)
    assert sorted(case.forward()[0][0, 0, :, 1]) == [1, 2]


def test_nothing_found_is_a_row_an_image_and_a_second_reshape() -> None:
    case = LayerCase(text(), cell(0, 0, 0, 0, 0, 0, 0))
    case.bottom[0].reshape(3, 7, 2, 2)
    case.bottom[0].data[...] = -9
    assert case.forward()[0].tolist() == [[[[i, *[-1] * 6] for i in range(3)]]]
    case.bottom[0].reshape(0, 7, 2, 2)
    assert case.forward()[0].shape == (1, 1, 0, 7)


@given(st.integers(0, 999))
def test_what_stays_overlaps_less_than_the_threshold_and_scores_pass(seed: int) -> None:
    more = "biases: 1 biases: 2 confidence_threshold: 0.3 nms_threshold: 0.4"
    rows = LayerCase(text(more), normal(2, 7, 3, 3, seed=seed)).forward()[0][0, 0]
    rows = rows[rows[:, 1] > 0]
    assert (rows[:, 2] >= 0.3).all()
    assert (np.diff(rows[:, 2]) <= 0).all()
    low, high = rows[:, 3:5], rows[:, 5:]
    sides = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)
    shared, area = sides.clip(0).prod(-1), (high - low).prod(-1)
    overlap = shared / (area[:, None] + area - shared)
    assert (overlap[~np.eye(len(rows), dtype=bool)] < 0.4).all()


@pytest.mark.parametrize(
    ("more", "shape", "message"),
    [
        ("biases: 1 biases: 2 biases: 3 biases: 4", (1, 7, 2, 2), "2 anchors given in biases for num_box 1"),
        ("biases: 1", (1, 7, 2, 2), "biases must be pairs of a width and a height, got 1 numbers"),
        ("biases: 1 biases: 2 coords: 5", (1, 7, 2, 2), "coords must be 4, got 5"),
        ("biases: 1 biases: 2", (1, 8, 2, 2), r"bottom 0 must be \(N, 7, H, W\): 1 boxes of 5 \+ 2 numbers a cell; got shape"),
        ("biases: 1 biases: 2", (1, 7, 2, 3), r"bottom 0 must be square maps, got shape \(1, 7, 2, 3\)"),
        ("num_box: 0", (1, 7, 2, 2), "needs num_classes > 0 and num_box > 0"),
    ],
)
def test_errors(more: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match='YoloDetectionOutput layer "layer": ' + message):
        LayerCase(text(more), np.zeros(shape))


def test_maps_of_different_images() -> None:
    with pytest.raises(LayerError, match="bottoms 0 and 1 have 1 and 2 images"):
        LayerCase(text(), np.zeros((1, 7, 2, 2)), np.zeros((2, 7, 2, 2)))
