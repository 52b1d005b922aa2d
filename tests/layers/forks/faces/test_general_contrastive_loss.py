"""GeneralContrastiveLoss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

X = np.array([[0.5, 0.25, 2], [0.75, 1.5, 0.5]])
LABELS = [0, 1]


def loss(inside: str = "", x: np.ndarray = X, labels: object = LABELS, tops: int = 2) -> LayerCase:
    weights = "loss_weight: 1 " * tops
    return LayerCase(
        f'type: "GeneralContrastiveLoss" {weights} general_contrastive_loss_param {{ {inside} }}', x, labels, tops=tops
    )


@pytest.mark.parametrize(
    ("inside", "value", "slope"),
    [
        ("", 0.5 + 0.75 + 1.5 + 0.25 + 0.5, [[1, -1, 0], [-1, 1, -1]]),
        ("positive_margin: 0.75 positive_outlier_thresh: 0.5", 0.75 + 0.5 + 0.25 + 0.5, [[0, -1, 0], [-1, 0, -1]]),
        ("positive_weight: 2 negative_weight: -4", 4 + 4 * 1.5, [[2, -4, 0], [-4, 2, -4]]),
        ("negative_margin: 0.5", 0.5 + 0.25 + 1.5, [[1, -1, 0], [0, 1, 0]]),
        ("positive_first: true", 0.5 + 0.75 + 1.5, [[1, -1, 0], [0, 1, 0]]),
        ("max_negative_only: true", 0.5 + 0.75 + 1.5 + 0.5, [[1, -1, 0], [0, 1, -1]]),
        ("max_positive_only: true", 0.5 + 0.75 + 0.25 + 0.5, [[1, -1, 0], [-1, 0, -1]]),
        (
            "exp_negative_weight: true",
            2 + np.exp(-0.25) + np.exp(-0.75) + np.exp(-0.5),
            [[1, -np.exp(-0.25), 0], [-np.exp(-0.75), 1, -np.exp(-0.5)]],
        ),
    ],
)
def test_by_hand(inside: str, value: float, slope: list[list[float]]) -> None:
    case = loss(inside, tops=1)
    np.testing.assert_allclose(case.forward()[0], value / 2)
    dx, dlabels = case.backward()
    np.testing.assert_allclose(dx, np.array(slope) / 2)
    assert not dlabels.any()


def test_of_class_0_the_largest_negative_must_beat_the_own_term() -> None:
    (value,) = loss("max_negative_only: true", np.array([[0.9, 0.5, 0.25]]), [0], tops=1).forward()
    np.testing.assert_allclose(value, 0.9)  # 0.75 is the largest; the search began at the own term, 0.9


def test_the_mean_distances() -> None:
    np.testing.assert_allclose(loss().forward()[1], [1, (0.75 + 0.25 + 0.5) / 4])


def test_the_margin_that_grows_by_the_mean_of_own() -> None:
    case = loss("add_intra_mae: true max_negative_margin: 0.015")
    (first, means), (second, later) = case.forward(), case.forward()
    np.testing.assert_allclose(means, [1, 0.375, 0.01], rtol=1e-6)
    np.testing.assert_allclose(later, [1, 0.375 + 3 * 0.01 / 4, 0.015], rtol=1e-6)
    np.testing.assert_allclose(second - first, 3 * 0.01 / 2)
    assert case.layer.stateful and not loss().layer.stateful


@given(st.permutations(range(3)))
def test_the_order_of_classes_does_not_matter(order: list[int]) -> None:
    labels = [order.index(label) for label in LABELS]
    np.testing.assert_allclose(loss(x=X[:, order], labels=labels, tops=1).forward()[0], loss(tops=1).forward()[0])


@pytest.mark.parametrize(
    "inside", ["", "exp_negative_weight: true", "max_negative_only: true max_positive_only: true", "positive_first: true"]
)
def test_gradient(inside: str) -> None:
    x = np.random.default_rng(3).uniform(0.1, 1.9, (4, 5))
    loss(inside + " positive_margin: 0.3 positive_outlier_thresh: 0.9", x, [0, 4, 2, 1], tops=1).check_gradient()


def test_a_second_reshape_and_no_gradient_unasked() -> None:
    case = loss()
    case.bottom[0].reshape(1, 2)
    case.bottom[1].reshape(1)
    case.bottom[0].data[...], case.bottom[1].data[...] = [[0.25, 0.5]], 1
    np.testing.assert_allclose(case.forward()[0], 0.5 + 0.75)
    case.bottom[0].diff[...] = 7
    assert (case.backward(propagate_down=[False, False])[0] == 7).all()


def test_errors() -> None:
    with pytest.raises(LayerError, match="normalize_negative changes the gradient alone"):
        loss("normalize_negative: 1")
    with pytest.raises(LayerError, match="need 2 labels"):
        loss(labels=[0, 1, 2])
    with pytest.raises(LayerError, match="3"):
        loss(labels=[0, 3]).forward()
