"""DecodeBBox."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import TEST, TRAIN
from minicaffe.data.boxes import bbox_transform
from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "DecodeBBox"'
ROIS = np.array([[0, 10, 20, 49, 39], [1, 5, 6, 14, 25], [0, 7, 7, 7, 7]], float)


def test_by_hand() -> None:
    """A roi of 40 x 20 pixels about (30, 30): moved by a quarter of its size, and half as wide; nothing moves the others."""
    deltas = np.zeros((3, 8))
    deltas[:, :4] = 99  # the background's
    deltas[0, 4:] = 0.25, -0.25, np.log(0.5), 0
    rois = LayerCase(TEXT, deltas, ROIS).forward()[0]
    assert rois.shape == (3, 5, 1, 1)
    np.testing.assert_allclose(rois[..., 0, 0], [[0, 30, 15, 49, 34], *ROIS[1:]], rtol=1e-6)


def test_means_and_stds() -> None:
    reg = "bbox_reg_param { bbox_mean: 0 bbox_mean: 0.1 bbox_mean: 0 bbox_mean: 0 "
    reg += "bbox_std: 0.1 bbox_std: 0.2 bbox_std: 1 bbox_std: 1 cls_aware: false }"
    deltas = np.zeros((3, 8))
    deltas[0, 4:6] = 2.5, -1.75
    rois = LayerCase(f"{TEXT} {reg}", deltas, ROIS).forward()[0]
    np.testing.assert_allclose(rois[0, :, 0, 0], [0, 20, 15, 59, 34], rtol=1e-6)


def test_training_drops_true_boxes_and_reversed_rois() -> None:
    overlaps = np.zeros((3, 6))
    overlaps[:, 5] = 0.95, 0.94, 0.5
    rois = ROIS.copy()
    rois[2, 3] = 4  # ends before its start
    case = LayerCase(TEXT, np.zeros((3, 8)), rois, overlaps, phase=TRAIN)
    assert case.forward()[0][..., 0, 0].tolist() == ROIS[1:2].tolist()
    case = LayerCase(f"{TEXT} decode_bbox_param {{ gt_iou_thr: 0.5 }}", np.zeros((3, 8)), rois, overlaps, phase=TRAIN)
    assert case.forward()[0].shape == (0, 5, 1, 1)
    assert len(LayerCase(TEXT, np.zeros((3, 8)), rois, phase=TRAIN).forward()[0]) == 2
    assert len(LayerCase(TEXT, np.zeros((3, 8)), rois, phase=TEST).forward()[0]) == 3


def test_makefiles_takes_the_deltas_of_each_rois_class() -> None:
    """Classes 1; 3, the last above class 1, not the best one; 2. A roi of 40 x 20 pixels at 10, 20 ends at 50, 40."""
    scores = np.array([[0.9, 0.3, 0.2, 0.1], [0, 0.1, 0.6, 0.3], [0, 0.1, 0.8, 0.1]])
    deltas = np.full((3, 16), 99.0)
    deltas[0, 4:8] = deltas[1, 12:] = 0
    deltas[2, 8:12] = 0.5, -0.5, np.log(2), np.log(3)
    case = LayerCase(TEXT, deltas, scores, ROIS)
    np.testing.assert_allclose(case.forward()[0][..., 0, 0], [[0, 10, 20, 50, 40], [1, 5, 6, 15, 26], [0, 7, 5.5, 9, 8.5]])
    assert str(case.layer.choice) == "DecodeBBox of makefile/frcnn: deltas and scores of 4 classes"
    reversed_roi = ROIS.copy()
    reversed_roi[1, 3] = 1
    trained = LayerCase(TEXT, deltas, scores, reversed_roi, phase=TRAIN).forward()[0]
    assert trained[..., 0, 0, 0].tolist() == [0, 0]
    with pytest.raises(LayerError, match=r"bottom 2 must have 5 values a roi, got shape \(3, 4\)"):
        LayerCase(TEXT, deltas, scores, np.zeros((3, 4)))


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_it_inverts_the_regression_targets(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    corners = random.uniform(0, 200, (2, count, 2))
    boxes, targets = (np.hstack([corner, corner + random.uniform(5, 90, (count, 2))]) for corner in corners)
    deltas = np.hstack([random.normal(size=(count, 4)), bbox_transform(boxes, targets)])
    images = random.integers(0, 3, (count, 1)).astype(float)
    rois = LayerCase(TEXT, deltas, np.hstack([images, boxes]), dtype=np.float64).forward()[0]
    np.testing.assert_allclose(rois[..., 0, 0], np.hstack([images, targets]), rtol=1e-9, atol=1e-9)


def test_a_second_reshape_and_no_gradient() -> None:
    case = LayerCase(TEXT, np.zeros((3, 8)), ROIS)
    for blob, columns in zip(case.bottom, (8, 5), strict=True):
        blob.reshape(2, columns, 1, 1)
        blob.data[...] = 1
    assert case.forward()[0].shape == (2, 5, 1, 1)
    assert not any(diff.any() for diff in case.backward(np.ones((2, 5, 1, 1))))


@pytest.mark.parametrize(
    ("shapes", "phase", "message"),
    [
        ([(3, 4), (3, 5)], TEST, r"bottom 0 must have 8 values a roi, got shape \(3, 4\)"),
        ([(3, 8), (3, 4)], TEST, r"bottom 1 must have 5 values a roi, got shape \(3, 4\)"),
        ([(3, 8), (2, 5)], TEST, "bottoms 0 and 1 are of 3 and 2 rois"),
        ([(3, 8), (3, 5), (3,)], TRAIN, r"bottom 2 must have one overlap at least a roi, got shape \(3,\)"),
        ([(3, 8), (3, 5), (2, 5)], TRAIN, "bottoms 0 and 2 are of 3 and 2 rois"),
        ([(3, 8), (3, 5), (3, 5)], TEST, "takes the matched boxes, bottom 2, in phase TRAIN only"),
    ],
)
def test_errors(shapes: list[tuple[int, ...]], phase, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(TEXT, *map(np.zeros, shapes), phase=phase)
