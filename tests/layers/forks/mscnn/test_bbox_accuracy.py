"""BboxAccuracy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "BboxAccuracy" bbox_reg_param { cls_aware: false }'
ROIS = np.array([[0, 0, 0, 9, 9], [0, 0, 0, 9, 9], [0, 0, 0, 9, 9]], float)
MATCHES = np.array([[3, 5, 0, 14, 9, 0.4], [1, 0, 0, 9, 9, 1], [0, 0, 0, 0, 0, 0]], float)


def test_by_hand() -> None:
    """Roi 0 is half of its box's width away, and its delta moves it there; roi 1 is a true box, roi 2 background."""
    deltas = np.zeros((3, 8))
    deltas[0, 4] = 0.5
    after, before = LayerCase(TEXT, deltas, ROIS, MATCHES, tops=2).forward()
    assert after.shape == (1, 1, 1, 1)
    assert (after.item(), before.item()) == pytest.approx((1, 50 / 150), rel=1e-6)


def test_each_class_has_its_deltas() -> None:
    deltas = np.zeros((3, 16))
    deltas[0, 12] = 0.25
    text = f'type: "BboxAccuracy" bbox_reg_param {{ {"bbox_mean: 0 " * 4} {"bbox_std: 2 " * 4} }}'
    (after,) = LayerCase(text, deltas, ROIS, MATCHES).forward()
    assert after.item() == pytest.approx(1, rel=1e-6)


@given(st.integers(1, 9), st.integers(0, 5))
def test_the_mean_of_equal_rois_is_that_of_one(count: int, more: int) -> None:
    rois, matches = np.repeat(ROIS[:1], count + more, axis=0), np.repeat(MATCHES[:1], count + more, axis=0)
    matches[count:, 0] = 0
    assert LayerCase(TEXT, np.zeros((count + more, 8)), rois, matches).forward()[0].item() == pytest.approx(1 / 3)


def test_nothing_counts_a_second_reshape_and_no_gradient() -> None:
    case = LayerCase(TEXT, np.zeros((3, 8)), ROIS, MATCHES)
    for blob, columns in zip(case.bottom, (8, 5, 6)):
        blob.reshape(2, columns, 1, 1)
        blob.data[...] = 0
    assert case.forward()[0].item() == -1
    assert not any(diff.any() for diff in case.backward(np.ones((1, 1, 1, 1))))


@pytest.mark.parametrize(
    ("text", "bottoms", "message"),
    [
        (TEXT, (np.zeros((3, 12)), ROIS, MATCHES), r"bottom 0 must be \(3, 8\), got shape \(3, 12\)"),
        (TEXT, (np.zeros((3, 8)), ROIS[:2], MATCHES), r"bottom 1 must be \(3, 5\), got shape \(2, 5\)"),
        (TEXT, (np.zeros((3, 8)), ROIS, MATCHES[:, :5]), r"bottom 2 must be \(3, 6\), got shape \(3, 5\)"),
        ('type: "BboxAccuracy"', (np.zeros((3, 8)), ROIS, MATCHES), "class 3 has no deltas: there are those of 2"),
    ],
)
def test_errors(text: str, bottoms: tuple[np.ndarray, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *bottoms).forward()
