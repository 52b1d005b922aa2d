"""SegAccuracy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str = "") -> str:
    return f'type: "SegAccuracy" seg_accuracy_param {{ {inside} }}'


def scores(found: list[int], classes: int) -> np.ndarray:
    """(1, classes, 1, pixels), the highest at found."""
    return np.eye(classes)[found].T.reshape(1, classes, 1, len(found))


def labels(*values: float) -> np.ndarray:
    return np.array(values).reshape(1, 1, 1, len(values))


def test_by_hand() -> None:
    """Class 0: 1 of 2 found, 1 of 3 in the union; 1: 1 of 1, 1 of 2; 2: neither there nor found, 1 by the fork's rule."""
    case = LayerCase(text(), scores([0, 1, 1, 0], 3), labels(0, 0, 1, 1))
    np.testing.assert_allclose(case.forward()[0].ravel(), [2 / 4, (1 / 2 + 1 / 2) / 2, (1 / 3 + 1 / 3 + 1) / 3])
    assert case.top[0].shape == (1, 1, 1, 3)
    assert not any(diff.any() for diff in case.backward(np.ones((1, 1, 1, 3))))


def test_ignored_labels_and_equal_scores() -> None:
    case = LayerCase(text("ignore_label: 2 ignore_label: 255"), scores([0, 1, 1, 0], 3), labels(0, 2, 255, 0))
    assert case.forward()[0].ravel().tolist() == [1, 1, 1]
    tied = LayerCase(text(), np.zeros((1, 3, 1, 2)), labels(2, 0))
    assert tied.forward()[0].ravel()[0] == 0.5
    nothing = LayerCase(text("ignore_label: 0"), scores([0], 2), labels(0))
    assert nothing.forward()[0].ravel().tolist() == [0, 0, 1]


@pytest.mark.parametrize(("reset", "accuracy"), [("true", [1, 0]), ("false", [1, 0.5])])
def test_reset(reset: str, accuracy: list[float]) -> None:
    case = LayerCase(text(f"reset: {reset}"), scores([0, 1], 2), labels(0, 1))
    got = [case.forward()[0].flat[0]]
    case.bottom[1].data[...] = labels(1, 0)
    assert [*got, case.forward()[0].flat[0]] == accuracy


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_it_agrees_with_plain_loops(pairs: list[tuple[int, int]]) -> None:
    case = LayerCase(text(), scores([found for _, found in pairs], 4), labels(*(true for true, _ in pairs)))
    recall, iou = [], []
    for c in range(4):
        true, found = ({i for i, pair in enumerate(pairs) if pair[side] == c} for side in (0, 1))
        if true:
            recall.append(len(true & found) / len(true))
        iou.append(len(true & found) / len(true | found) if true | found else 1)
    accuracy = sum(true == found for true, found in pairs) / len(pairs)
    np.testing.assert_allclose(case.forward()[0].ravel(), [accuracy, np.mean(recall), np.mean(iou)])


def test_a_second_reshape() -> None:
    case = LayerCase(text(), scores([0, 1], 2), labels(0, 1))
    case.bottom[0].reshape(2, 2, 3, 1)
    case.bottom[1].reshape(2, 1, 3, 1)
    case.bottom[0].data[...] = [[[[0]] * 3, [[1]] * 3]] * 2
    case.bottom[1].data[...] = 1
    assert case.forward()[0].ravel().tolist() == [1, 1, 1]
    case.bottom[0].reshape(2, 4, 3, 1)
    with pytest.raises(LayerError, match="it counts 2 classes, the bottom has 4"):
        case.forward()


@pytest.mark.parametrize(
    ("x", "t", "message"),
    [
        ((1, 2, 3, 4), (1, 1, 3, 5), "need 12 labels"),
        ((2, 2, 3, 4), (1, 2, 3, 4), "the same first axis"),
        ((3,), (3,), "axis 1 is out of range"),
    ],
)
def test_errors(x: tuple[int, ...], t: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text(), np.zeros(x), np.zeros(t))


@pytest.mark.parametrize("label", [2.0, -1.0, 0.5])
def test_a_label_that_is_no_class(label: float) -> None:
    with pytest.raises(LayerError, match=f"label {label:g} at position 1 is not a"):
        LayerCase(text("ignore_label: 255"), scores([0, 1], 2), labels(0, label)).forward()
