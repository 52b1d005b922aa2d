"""CenterLoss."""

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


TEXT = 'type: "CenterLoss" loss_weight: 1 center_loss_param {{ num_output: {} {} }}'


def test_by_hand() -> None:
    """Two images of class 1 at (1, 0) and (3, 4), one of class 0 at (0, 2); centres (0, 1) and (1, 0)."""
    case = LayerCase(TEXT.format(3, ""), [[1.0, 0.0], [3.0, 4.0], [0.0, 2.0]], [1.0, 1.0, 0.0])
    case.layer.blobs[0].data[...] = [[0, 1], [1, 0], [5, 5]]
    assert case.forward()[0] == pytest.approx((0 + 4 + 16 + 1) / 6)
    dx = case.backward(np.array(3.0))[0]
    assert dx.tolist() == [[0, 0], [2, 4], [0, 1]]
    # the sum of c - x over 1 + their number, without the loss weight
    np.testing.assert_allclose(case.layer.blobs[0].diff, [[0, -0.5], [-2 / 3, -4 / 3], [0, 0]])


def test_l1() -> None:
    case = LayerCase(TEXT.format(1, 'distance_type: "L1"'), [[1.0, -3.0]], [0.0])
    assert case.forward()[0] == pytest.approx(4)
    assert case.backward(np.array(1.0))[0].tolist() == [[1, -1]]
    assert case.layer.blobs[0].diff.tolist() == [[-0.5, 0.5]]


@pytest.mark.parametrize("kind", ["L1", "L2"])
def test_gradient(kind: str) -> None:
    """Of the features: what the centres get is no gradient, on purpose."""
    case = LayerCase(
        TEXT.format(3, f'distance_type: "{kind}" center_filler {{ type: "gaussian" std: 1 }}'),
        normal(4, 2, 3),
        [0.0, 2.0, 1.0, 2.0],
    )
    case.layer.param_propagate_down = [False]
    case.check_gradient()


@given(st.integers(1, 5), st.integers(1, 4))
def test_features_at_their_centres_have_no_loss(n: int, features: int) -> None:
    centres, labels = normal(3, features), np.arange(n) % 3
    case = LayerCase(TEXT.format(3, ""), centres[labels], labels.astype(float))
    case.layer.blobs[0].data[...] = centres
    assert case.forward()[0] == 0 and not case.backward(np.array(1.0))[0].any() and not case.layer.blobs[0].diff.any()


def test_loss_weight_is_zero_unless_given() -> None:
    assert LayerCase('type: "CenterLoss" center_loss_param { num_output: 2 }', normal(2, 3), [0.0, 1.0]).layer.loss_weights == [
        0
    ]


def test_a_label_beyond_the_centres() -> None:
    with pytest.raises(LayerError, match="label 3 at position 1"):
        LayerCase(TEXT.format(3, ""), normal(2, 3), [0.0, 3.0]).forward()


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (TEXT.format(0, ""), [(2, 3), (2,)], "num_output must be > 0"),
        (TEXT.format(3, 'distance_type: "L3"'), [(2, 3), (2,)], "distance_type must be L1 or L2, got L3"),
        (TEXT.format(3, ""), [(2, 3), (3,)], "labels"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
