"""DetectionGroupAccuracy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(more: str = "", fields: str = "field_w: 20 field_h: 10 field_w: 8 field_h: 16") -> str:
    inside = f"cls_num: 2 stride: 10 {fields} {more}"
    return f'type: "DetectionGroupAccuracy" detection_group_accuracy_param {{ {inside} }} loss_param {{ ignore_label: -1 }}'


def bottoms() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A map of 1 x 3 cells, of two fields: an object in field 0 of cell 1, another in field 1 of cell 2, one cell ignored."""
    labels = np.zeros((2, 6, 1, 3))
    labels[0, :, 0, 1] = 1, 15, 5, 20, 10, 0.9
    labels[1, :, 0, 2] = 1, 25, 5, 16, 16, 0.5
    labels[1, 0, 0, 0], labels[1, 5, 0, 1] = -1, 0.7
    return np.zeros((2, 2, 1, 3)), np.zeros((2, 4, 1, 3)), labels


def test_by_hand() -> None:
    """Field 0 of cell 1 is its box, field 1 of cell 2 is half as wide: 8 / 16. All scores tell background: 2 of 4 are right."""
    (classes, overlap) = LayerCase(text(), *bottoms(), tops=2).forward()
    assert classes.ravel().tolist() == [0.5, 0] and overlap.item() == pytest.approx(0.75, rel=1e-6)
    scores, deltas, labels = bottoms()
    scores[0, 1, 0, 1], deltas[1, 2, 0, 2] = 1, 9  # the width is bounded to twice the field's
    (classes, overlap) = LayerCase(text("field_whr: 2"), scores, deltas, labels, tops=2).forward()
    assert classes.ravel().tolist() == [0.75, 0.5] and overlap.item() == pytest.approx(1, rel=1e-6)


@given(st.integers(0, 99))
def test_true_scores_are_right(seed: int) -> None:
    random = np.random.default_rng(seed)
    labels = np.ones((2, 6, 2, 3)) * 20
    labels[:, 0], labels[:, 5] = random.integers(0, 2, (2, 2, 3)), 0.1
    scores = np.stack([labels[:, 0] == 0, labels[:, 0] == 1], axis=1)
    (classes,) = LayerCase(text(), scores, np.zeros((2, 4, 2, 3)), labels).forward()
    assert classes[0, 0, 0, 0] == 1 and classes[0, 0, 0, 1] == (1 if labels[:, 0].any() else -1)


def test_nothing_counts_a_second_reshape_and_no_gradient() -> None:
    case = LayerCase(text(), *bottoms(), tops=2)
    for blob in case.bottom:
        blob.reshape(4, blob.shape[1], 2, 1)
        blob.data[...] = -1
    classes, overlap = case.forward()
    assert classes.ravel().tolist() == [-1, -1] and overlap.item() == -1
    assert not any(diff.any() for diff in case.backward(np.ones((1, 1, 1, 2)), np.ones((1, 1, 1, 1))))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (text(fields="field_w: 3"), "needs as many field_w as field_h, at least one; got 1 field_w and 0 field_h"),
        (text(fields="field_w: 3 field_h: 0"), "needs field_w, field_h, stride and cls_num > 0"),
        (text("field_whr: 0"), "needs field_whr and field_xyr > 0"),
        (text("cls_num: 3 objectness: true"), "objectness needs cls_num 2, got 3"),
        (text("cls_num: 3"), r"bottom 0 must be \(N \* 2, 3, H, W\), and H and W alike; got \(2, 2, 1, 3\)"),
    ],
)
def test_errors(kind: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(kind, *bottoms())
