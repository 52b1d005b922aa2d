"""GeneralTripletLoss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


TEXT = 'type: "GeneralTripletLoss" general_triplet_loss_param {{ {} }}'
D = np.array([[1.0, 1.5, 4.0], [3.0, 0.5, 2.0]])
LABELS = [0.0, 2.0]


def test_by_hand() -> None:
    """Margin 1: 0.5 in the first row; 1 + 2 - 0.5 in the second."""
    case = LayerCase(TEXT.format("margin: 1"), D, LABELS, tops=2)
    loss, distances = case.forward()
    assert loss == pytest.approx((0.5 + 2.5) / 2)
    assert distances.tolist() == [(1 + 2) / 2, (1.5 + 4 + 3 + 0.5) / 4]
    assert case.backward(np.array(2.0), np.zeros(2))[0].tolist() == [[1, -1, 0], [0, -1, 1]]


def test_the_hardest_and_the_positive_first() -> None:
    assert LayerCase(TEXT.format("margin: 3 hardest_only: true"), D, LABELS).forward()[0] == pytest.approx((2.5 + 4.5) / 2)
    assert LayerCase(TEXT.format("margin: 3 positive_first: true"), D, LABELS).forward()[0] == pytest.approx(2.5 / 2)


@pytest.mark.parametrize(
    "param", ["", "margin: 0.7 negative_weight: 2", "hardest_only: true margin: 2", "positive_first: true"]
)
def test_gradient(param: str) -> None:
    LayerCase(TEXT.format(param), np.abs(normal(5, 4)) * 1.3, [0.0, 3.0, 1.0, 2.0, 1.0]).check_gradient()


@given(st.floats(-5, 5))
def test_moving_all_distances_changes_nothing(by: float) -> None:
    one, other = (LayerCase(TEXT.format(""), D + move, LABELS).forward()[0] for move in (0, by))
    assert other == pytest.approx(one, abs=1e-9)


def test_bad_labels() -> None:
    with pytest.raises(LayerError, match="label 3 at position 1"):
        LayerCase(TEXT.format(""), D, [0.0, 3.0]).forward()


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (TEXT.format(""), [(2, 1), (2,)], "at least two classes"),
        (TEXT.format(""), [(2, 3), (3,)], "labels"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
