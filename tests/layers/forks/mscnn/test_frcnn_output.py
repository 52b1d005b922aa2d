"""FrcnnOutput, and how Cascade R-CNN counts overlaps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.layers.proposal.cascade_boxes import overlaps

pytestmark = pytest.mark.usefixtures("device")

ROIS = np.array([[0, 10, 10, 29, 49], [0, 12, 10, 31, 49], [0, 60, 20, 79, 39]], float)
SCORES = np.array([[0.1, 0.6, 0.3], [0.2, 0.7, 0.1], [0.05, 0.05, 0.9]])
SIZE = [[48.0, 75.0]]


def text(inside: str = "", reg: str = "cls_aware: false") -> str:
    return f'type: "FrcnnOutput" frcnn_output_param {{ {inside} }} bbox_reg_param {{ {reg} }}'


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    """Rois 0 and 1 share 18 of 22 columns, 0.818: of class 1 the better stays. Boxes end at the image's size, 75 and 48."""
    (y,) = LayerCase(text("conf_thr: 0.25"), SCORES, np.zeros((3, 8)), ROIS, SIZE, dtype=dtype).forward()
    expected = [[0, *[-1] * 6], [0, 12, 10, 31, 48, 1, 0.7], [0, 60, 20, 75, 39, 2, 0.9], [0, 10, 10, 29, 48, 2, 0.3]]
    assert y.shape == (4, 7, 1, 1) and y.dtype == dtype
    np.testing.assert_allclose(y[:, :, 0, 0], expected, rtol=1e-6)


def test_each_class_has_its_deltas_and_the_best_of_all_are_kept() -> None:
    deltas = np.zeros((3, 12))
    deltas[2, 8:] = 5, 0, 0, 0  # of class 2: half a roi's width to the left, with the stds
    reg = "bbox_mean: -1 bbox_mean: 0 bbox_mean: 0 bbox_mean: 0 bbox_std: 0.1 bbox_std: 0.1 bbox_std: 0.2 bbox_std: 0.2"
    (y,) = LayerCase(text("conf_thr: 0.25 max_det_num: 1", reg), SCORES, deltas, ROIS, SIZE).forward()
    np.testing.assert_allclose(y[1:, :, 0, 0], [[0, 50, 20, 69, 39, 2, 0.9]], rtol=1e-6)


@given(st.integers(0, 10**6), st.integers(0, 9), st.sampled_from(["IOU", "IOMU", "IOFU"]))
def test_no_two_of_a_class_overlap_by_more_than_the_threshold(seed: int, count: int, kind: str) -> None:
    random = np.random.default_rng(seed)
    corners = random.integers(0, 40, (count, 2))
    rois = np.hstack([np.zeros((count, 1)), corners, corners + random.integers(0, 30, (count, 2))])
    scores = random.dirichlet([1, 1, 1], count)
    inside = f'iou_thr: 0.25 nms_type: "{kind}" max_det_num: 5'
    (y,) = LayerCase(text(inside), scores, random.normal(size=(count, 8)) / 9, rois, [[70, 80]]).forward()
    found = y[1:, :, 0, 0]
    assert len(found) <= 5
    for label in (1, 2):
        own = found[found[:, 5] == label]
        assert (np.diff(own[:, 6]) <= 0).all()
        assert not np.triu(overlaps(own[:, 1:5], own[:, 1:5], kind) > 0.25, 1).any()


def test_overlaps() -> None:
    """10 x 10 with 20 x 5 that share 10 x 5; a single shared row is none, a single shared column is one."""
    boxes = np.array([[0, 0, 9, 9.0]])
    others = np.array([[0, 5, 19, 9], [0, 9, 9, 20], [9, 0, 20, 9], [5, 5, 4, 9.0]])
    np.testing.assert_allclose(overlaps(boxes, others)[0], [50 / 150, 0, 10 / 210, 0], rtol=1e-12)
    np.testing.assert_allclose(overlaps(boxes, others[:1], "IOMU"), [[0.5]])
    np.testing.assert_allclose(overlaps(others[:1], boxes, "IOFU"), [[0.5]])


def test_a_second_reshape_and_no_gradient() -> None:
    case = LayerCase(text("conf_thr: 0.65"), SCORES, np.zeros((3, 8)), ROIS, SIZE)
    for blob, columns in zip(case.bottom, (3, 8, 6), strict=False):
        blob.reshape(2, columns, 1, 1)
        blob.data[...] = 0
    assert case.forward()[0].shape == (1, 7, 1, 1)
    assert not any(diff.any() for diff in case.backward(np.ones((1, 7, 1, 1))))


@pytest.mark.parametrize(
    ("inside", "bottoms", "message"),
    [
        ('nms_type: "X"', (SCORES, np.zeros((3, 8)), ROIS, SIZE), 'nms_type must be one of IOU, IOMU, IOFU, got "X"'),
        ("", (SCORES[:, :1], np.zeros((3, 8)), ROIS, SIZE), r"bottom 0 must be probabilities \(R, K\) of K > 1 classes, got"),
        ("", (SCORES, np.zeros((3, 4)), ROIS, SIZE), r"bottom 1 must be \(3, 8\), got shape \(3, 4\)"),
        ("", (SCORES, np.zeros((3, 8)), ROIS[:, :4], SIZE), r"bottom 2 must be \(3, 5 or 6\), got shape \(3, 4\)"),
        ("", (SCORES, np.zeros((3, 8)), ROIS, np.zeros((2, 2))), r"height and width \(1, 2\), got shape \(2, 2\)"),
        ("", (SCORES, np.zeros((3, 8)), ROIS + np.eye(5)[0], SIZE), "takes rois of image 0 .*, got 1, 10, 10, 29, 49"),
        ("", (SCORES, np.zeros((3, 8)), ROIS - [0, 0, 0, 20, 0], SIZE), "with x1 <= x2 and y1 <= y2, got 0, 10, 10, 9, 49"),
    ],
)
def test_errors(inside: str, bottoms: tuple[np.ndarray, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text(inside), *bottoms).forward()
