"""LabelsequenceAccuracy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(blank: int) -> str:
    return f'type: "LabelsequenceAccuracy" labelsequence_accuracy_param {{ blank_label: {blank} }}'


def test_by_hand() -> None:
    """Blank 0. Paths 1 1 0 1 and 2 2 1 0 spell 1 1 and 2 1; a third spells 2 where 1 is true."""
    x = np.eye(3)[[[1, 1, 0, 1], [2, 2, 1, 0], [0, 2, 2, 0]]]
    case = LayerCase(text(0), x, [[1, 1, 0], [0, 2, 1], [1, 0, 0]])
    assert case.forward()[0] == pytest.approx(2 / 3)
    assert not any(diff.any() for diff in case.backward(np.ones(())))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(1, 3))
def test_labels_spelt_with_blanks_between_are_right(labels: list[int], times: int) -> None:
    path = [c for label in labels for c in [label] * times + [3]]
    assert LayerCase(text(3), np.eye(4)[[path]], [labels]).forward()[0] == 1
    assert LayerCase(text(3), np.eye(4)[[path]], [[*labels, 0]]).forward()[0] == 0


def test_a_second_reshape_and_no_sequence() -> None:
    case = LayerCase(text(0), np.zeros((2, 4, 3)), np.zeros((2, 3)))
    assert case.forward()[0] == 1
    case.bottom[0].reshape(0, 4, 3)
    case.bottom[1].reshape(0, 2)
    assert case.forward()[0] == 0


@pytest.mark.parametrize(
    ("scores", "labels", "blank", "message"),
    [
        ((2, 3), (2, 3), 0, r"the scores must be \(N, T, C\), got shape \(2, 3\)"),
        ((2, 4, 3), (3, 2), 0, r"the labels must be \(2, L\), got shape \(3, 2\)"),
        ((2, 4, 3), (2, 2), 3, "the blank must be one of the 3 classes, 0 to 2, got 3"),
        ((2, 4, 3), (2, 2), -1, "the blank must be one of the 3 classes, 0 to 2, got -1"),
    ],
)
def test_errors(scores: tuple[int, ...], labels: tuple[int, ...], blank: int, message: str) -> None:
    with pytest.raises(LayerError, match='LabelsequenceAccuracy layer "layer": ' + message):
        LayerCase(text(blank), np.zeros(scores), np.zeros(labels))
