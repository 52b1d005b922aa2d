"""WarpCTCLoss. The sums over ways are tested in test_ctc_loss.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def loss(*bottoms: Any, more: str = "", fork: str = "caffeocr") -> LayerCase:
    return LayerCase(f'type: "WarpCTCLoss" ctc_loss_param {{ {more} }}', *bottoms, fork=fork)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


X = normal(5, 3, 4)
LABELS = [[2.0, 2], [0, 1], [3, 0]]
"""(N, L), padded with the blank, 0."""


def test_by_hand() -> None:
    """Two steps, blank and a, all equally likely: aa, a_ and _a of four ways spell a. Without labels: the one way of blanks."""
    case = loss(np.zeros((2, 2, 2)), [[1.0], [0]], fork="")
    assert case.forward()[0] == pytest.approx((-math.log(3 / 4) - math.log(1 / 4)) / 2)
    dx, labels = case.backward(np.array(4.0))
    np.testing.assert_allclose(dx[:, 0], [[2 * (0.5 - 1 / 3), 2 * (0.5 - 2 / 3)]] * 2)
    np.testing.assert_allclose(dx[:, 1], [[-1, 1]] * 2)
    assert not labels.any()


def test_the_three_forms_agree() -> None:
    """Indicators and labels counted without the blank; lengths of both. Then a sequence of three steps alone."""
    (two,) = loss(X, LABELS).forward()
    padded = [[1.0, 0, 2], [1, -1, -1], [-1, 7, 7], [-1, -1, -1], [-1, -1, -1]]
    (three,) = loss(X, np.r_[np.zeros((1, 3)), np.ones((4, 3))], padded).forward()
    (four,) = loss(X, [5.0, 5, 5], [2.0, 1, 1], [[2.0, 1, 3], [2, 9, 9]]).forward()
    np.testing.assert_allclose([three, four], [two, two])
    short = loss(X[:, :1], [[0.0], [1], [1], [0], [1]], [[0.0], [-1], [-1], [-1], [-1]]).forward()[0]
    np.testing.assert_allclose(short, loss(X[:3, :1], [[1.0]]).forward()[0])


def test_a_sequence_of_one_step_without_labels_counts_as_0() -> None:
    bottoms = X[:2, :2], [[0.0, 0], [1, 0]], [[0.0, -1], [-1, -1]]
    np.testing.assert_allclose(loss(*bottoms).forward()[0], loss(X[:2, :1], [[1.0]]).forward()[0] / 2)


def test_another_blank() -> None:
    order = [1, 2, 3, 0]  # the blank last
    np.testing.assert_allclose(
        loss(X[..., order], [[1.0, 1], [0, 3], [2, 3]], more="blank_index: 3").forward()[0], loss(X, LABELS).forward()[0]
    )


@settings(deadline=None, max_examples=10)
@given(st.permutations(range(3)))
def test_the_order_of_sequences_does_not_matter(order: list[int]) -> None:
    labels = np.array(LABELS)[order]
    np.testing.assert_allclose(loss(X[:, order], labels).forward()[0], loss(X, LABELS).forward()[0])


def test_gradient_and_a_second_reshape() -> None:
    case = loss(X, LABELS)
    case.check_gradient()
    case.bottom[0].reshape(2, 1, 4)
    case.bottom[0].data[...] = X[:2, :1]
    case.bottom[1].reshape(1, 1)
    case.bottom[1].data[...] = 3
    np.testing.assert_allclose(case.forward()[0], loss(X[:2, :1], [[3.0]]).forward()[0])


ON, LENGTHS = np.ones((5, 3)), np.full(3, 5.0)


@pytest.mark.parametrize(
    ("bottoms", "message"),
    [
        ((X, np.zeros((2, 3))), r"the labels must be \(3, L\), got shape \(2, 3\)"),
        ((X, np.full((3, 2), 4.0)), "sequence 0: label 4 is not one of the 4 classes"),
        ((X, np.full((3, 6), 2.0)), "sequence 0: 6 labels and 5 blanks between equal ones do not fit its 5 time steps"),
        ((X, ON[:4], -ON), r"the indicators must be \(T, N\) as the scores, \(5, 3\), got shape \(4, 3\)"),
        ((X, ON, -ON), "sequence 0 of 5 time steps has no labels"),
        ((X, ON, ON * 3), "sequence 0: label 3 is not one of the 3 classes"),
        ((X, ON, np.ones((5, 2))), r"the labels must be \(L, 3\), got shape \(5, 2\)"),
        ((X, LENGTHS, LENGTHS[:2], ON), "a length for each of 3 sequences is needed, got 2"),
        ((X, LENGTHS + 1, LENGTHS, ON), "a length must be 0 to 5, got 6"),
        ((X, LENGTHS, LENGTHS / 2, ON), "a length must be 0 to 5, got 2.5"),
        ((X, LENGTHS, LENGTHS / 5, ON * 0), "sequence 0 has the blank, 0, as a label"),
    ],
)
def test_errors(bottoms: tuple[np.ndarray, ...], message: str) -> None:
    with pytest.raises(LayerError, match='WarpCTCLoss layer "layer": ' + message):
        loss(*bottoms).forward()


def test_errors_of_parameters_and_forks() -> None:
    with pytest.raises(LayerError, match="the blank must be one of the 4 classes, 0 to 3, got -1"):
        loss(X, LABELS, more="blank_index: -1")
    with pytest.raises(LayerError, match=r"it may be caffe_ocr.* or ChWick.*, and the files do not show which"):
        loss(X, ON, -ON, fork="")
    with pytest.raises(LayerError, match="ChWick's WarpCTCLoss is not built in"):
        loss(X, ON, -ON, fork="ctc")
