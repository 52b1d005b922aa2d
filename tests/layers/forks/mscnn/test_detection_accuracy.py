"""DetectionAccuracy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(more: str = "", size: str = "field_w: 20 field_h: 10 downsample_rate: 10", classes: int = 2) -> str:
    inside = f"cls_num: {classes} {size} {more}"
    return f'type: "DetectionAccuracy" detection_accuracy_param {{ {inside} }} loss_param {{ ignore_label: -1 }}'


def bottoms(classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    """Two maps of 1 x 3 cells: an object in cell 1 of image 0, another in cell 2 of image 1, one cell ignored."""
    labels = np.zeros((2, 6, 1, 3))
    labels[0, :, 0, 1] = 1, 15, 5, 20, 10, 0.9
    labels[1, :, 0, 2] = 1, 25, 5, 40, 10, 0.5
    labels[1, 0, 0, 0], labels[1, 5, 0, 1] = -1, 0.7
    return np.zeros((2, classes + 4, 1, 3)), labels


def test_by_hand() -> None:
    """Cell 1's field is its box, cell 2's is half as wide. Of equal scores the last class, 1, is told: 2 of 4 are right."""
    (classes, overlap) = LayerCase(text(), *bottoms(), tops=2).forward()
    assert classes.ravel().tolist() == [0.5, 1] and overlap.item() == pytest.approx(0.75, rel=1e-6)
    x, labels = bottoms()
    x[:, 0] = 1
    x[0, 0, 0, 1], x[1, 4, 0, 2] = -1, 9  # the width is bounded to twice the field's
    (classes, overlap) = LayerCase(text("field_whr: 2"), x, labels, tops=2).forward()
    assert classes.ravel().tolist() == [0.75, 0.5] and overlap.item() == pytest.approx(1, rel=1e-6)


def test_the_deltas_count_as_they_are() -> None:
    scale = "bbox_reg_param { bbox_mean: 1 bbox_mean: 1 bbox_mean: 1 bbox_mean: 1 }"
    assert LayerCase(f"{text()} {scale}", *bottoms(), tops=2).forward()[1].item() == pytest.approx(0.75, rel=1e-6)


@given(st.integers(1, 4), st.permutations(range(4)))
def test_the_fraction_among_the_highest_scores(top_k: int, order: list[int]) -> None:
    x, labels = bottoms(4)
    x[:, :4] = np.array(order).reshape(4, 1, 1)
    labels[:, 0] = 2
    (classes,) = LayerCase(text(f"top_k: {top_k}", classes=4), x, labels).forward()
    assert classes.ravel().tolist() == [float(3 - order[2] < top_k)] * 2


def test_nothing_counts_a_second_reshape_and_no_gradient() -> None:
    case = LayerCase(text(), *bottoms(), tops=2)
    for blob in case.bottom:
        blob.reshape(3, blob.shape[1], 2, 1)
        blob.data[...] = -1
    classes, overlap = case.forward()
    assert classes.ravel().tolist() == [-1, -1] and overlap.item() == -1
    assert not any(diff.any() for diff in case.backward(np.ones((1, 1, 1, 2)), np.ones((1, 1, 1, 1))))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (text(size="field_w: 3 field_h: 2"), "needs field_w, field_h, downsample_rate and cls_num > 0"),
        (text("field_whr: 0"), "needs field_whr and field_xyr > 0"),
        (text("objectness: true", classes=3), "objectness needs cls_num 2, got 3"),
        (text("coord_num: 5"), "coord_num must be 4, got 5"),
        (text("top_k: 3"), "top_k must be from 1 to cls_num 2, got 3"),
        (text(classes=3), r"bottom 0 must be \(N, 7, H, W\), and H and W alike; got \(2, 6, 1, 3\)"),
    ],
)
def test_errors(kind: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(kind, *bottoms())
