"""Yolov3DetectionOutput."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import kernels
from minicaffe.blob import Array
from minicaffe.errors import LayerError
from minicaffe.layers.forks.yolo.yolo import suppressed, suppressed_rows

pytestmark = pytest.mark.usefixtures("device")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def text(more: str = "mask: 1", maps: int = 1, scales: str = "anchors_scale: 8") -> str:
    sizes = "num_classes: 2 num_box: 1 biases: 99 biases: 99 biases: 4 biases: 8"
    return f'type: "Yolov3DetectionOutput" yolov3_detection_output_param {{ {sizes} mask_group_num: {maps} {scales} {more} }}'


def test_by_hand() -> None:
    """One row of two cells of 8 pixels. The second anchor, 4 x 8 pixels, in the second cell: a row for each class."""
    x = np.full((1, 7, 1, 2), -99.0)
    x[0, :, 0, 1] = [0, 0, np.log(2), 0, 0, np.log(3), 0]
    case = LayerCase(text("mask: 1 nms_threshold: 1.1"), x)
    np.testing.assert_allclose(case.forward()[0][0, 0], [[0, 1, 0.375, 0.5, 0, 1, 1], [0, 2, 0.25, 0.5, 0, 1, 1]])
    assert LayerCase(text(), x).forward()[0].shape == (1, 1, 1, 7), "overlaps go whatever their class"
    assert not case.backward(np.ones((1, 1, 2, 7)))[0].any()


def test_a_gaussian_boxs_score_is_less_by_its_mean_uncertainty() -> None:
    """Uncertainties of 1/2, 0, 0 and 0: 7/8 of the score; each follows its x, y, w or h."""
    x = np.full((1, 11, 1, 2), -99.0)
    x[0, :, 0, 1] = [0, 0, 0, -99, np.log(2), -99, 0, -99, 0, np.log(3), 0]
    case = LayerCase(text("mask: 1 nms_threshold: 1.1 gaussian_box: true"), x)
    rows = [[0, 1, 0.375 * 7 / 8, 0.5, 0, 1, 1], [0, 2, 0.25 * 7 / 8, 0.5, 0, 1, 1]]
    np.testing.assert_allclose(case.forward()[0][0, 0], rows)


def test_each_map_has_its_anchors_and_its_scale() -> None:
    x = np.zeros((1, 7, 1, 1))
    x[0, 4:, 0, 0] = 99, 99, -99
    more = "mask: 0 mask: 1 nms_threshold: 1.1"
    rows = LayerCase(text(more, 2, "anchors_scale: 99 anchors_scale: 16"), x, x).forward()[0][0, 0]
    np.testing.assert_allclose(rows[:, 3:], [[0, 0, 1, 1], [0.375, 0.25, 0.625, 0.75]])


def test_a_score_must_pass_the_threshold() -> None:
    x = np.zeros((1, 7, 1, 1))
    assert LayerCase(text("mask: 0 confidence_threshold: 0.25"), x).forward()[0].tolist() == [[[[0, *[-1] * 6]]]]
    assert LayerCase(text("mask: 0 confidence_threshold: 0.24"), x).forward()[0][0, 0, 0, 2] == 0.25


def test_a_second_reshape() -> None:
    case = LayerCase(text(), np.zeros((1, 7, 1, 1)))
    case.bottom[0].reshape(3, 7, 2, 4)
    case.bottom[0].data[...] = -9
    assert case.forward()[0].tolist() == [[[[i, *[-1] * 6] for i in range(3)]]]


@given(st.integers(0, 999))
def test_a_mirrored_map_gives_mirrored_boxes(seed: int) -> None:
    """With centres in the middle of their cells."""
    x = normal(1, 7, 3, 4, seed=seed)
    x[:, 0] = 0
    one, other = (LayerCase(text(), maps).forward()[0][0, 0] for maps in (x, x[..., ::-1]))
    np.testing.assert_allclose(other[:, [0, 1, 2, 4, 6]], one[:, [0, 1, 2, 4, 6]])
    np.testing.assert_allclose(other[:, [3, 5]], 1 - one[:, [5, 3]], atol=1e-9)


@pytest.mark.parametrize(
    ("more", "maps", "scales", "message"),
    [
        ("mask: 0 gaussian_box: true", 1, "anchors_scale: 8", r"bottom 0 must be .*: 1 boxes of 9 \+ 2 numbers a cell; got"),
        ("mask: 0", 2, "anchors_scale: 8", "mask_group_num is 2 for 1 bottoms"),
        ("mask: 0 mask: 1", 1, "anchors_scale: 8", r"mask must list 1 anchors \(num_box\) for each of 1 bottoms, got 2"),
        ("mask: 0", 1, "", "0 anchors_scale given for 1 bottoms"),
        ("mask: 2", 1, "anchors_scale: 8", "mask names anchor 2; biases give 2"),
        ("mask: 0 biases: 1", 1, "anchors_scale: 8", "biases must be pairs of a width and a height, got 5 numbers"),
    ],
)
def test_errors(more: str, maps: int, scales: str, message: str) -> None:
    with pytest.raises(LayerError, match='Yolov3DetectionOutput layer "layer": ' + message):
        LayerCase(text(more, maps, scales), np.zeros((1, 7, 2, 2)))


def one_by_one(boxes: Array, threshold: float) -> list[int]:
    """Suppression of boxes (n, 4), centre and size, as the original writes it: each row against the kept ones."""
    low, high, kept = boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2, list[int]()
    for i, box in enumerate(boxes):
        for j in kept:
            w, h = np.minimum(high[i], high[j]) - np.maximum(low[i], low[j])
            shared = 0 if w < 0 or h < 0 else w * h
            union = box[2] * box[3] + boxes[j, 2] * boxes[j, 3] - shared
            if union and shared / union >= threshold:
                break
        else:
            kept.append(i)
    return kept


@pytest.mark.parametrize("threshold", [0.3, 0.99999994, 1.0, 1.1])
def test_a_box_of_several_classes_is_suppressed_as_one_by_one(threshold: float) -> None:
    rng = np.random.default_rng(5)
    boxes = rng.uniform(0.1, 0.9, (23, 4)).astype(np.float32)
    boxes[:2, 2] = 0  # without an area: none suppresses another
    of = rng.integers(0, 23, 60)
    wanted = one_by_one(boxes[of], threshold)
    assert suppressed_rows(boxes, of, threshold).tolist() == wanted
    assert suppressed(boxes[of], threshold).tolist() == wanted
    with kernels.using("numpy"):
        assert suppressed(boxes[of], threshold).tolist() == wanted
    assert len(wanted) < 60 or threshold > 1
    assert suppressed_rows(boxes, of[:0], threshold).tolist() == []
