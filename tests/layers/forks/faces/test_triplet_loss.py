"""TripletLoss."""

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


def test_by_hand() -> None:
    """|a - p|^2 - |a - n|^2 + 1: 4 - 1 + 1, and -8, which does not count."""
    case = LayerCase('type: "TripletLoss"', [[0.0, 0.0], [1.0, 1.0]], [[2.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [1.0, 4.0]])
    assert case.forward()[0] == pytest.approx(4 / 4)
    da, dp, dn = case.backward(np.array(1.0))
    assert da.tolist() == [[-1, 0.5], [0, 0]] and dp.tolist() == [[1, 0], [0, 0]] and dn.tolist() == [[0, -0.5], [0, 0]]


@pytest.mark.parametrize("margin", [0.3, 5])
def test_gradient(margin: float) -> None:
    a, p, n = (normal(4, 3 + k)[:, :3] for k in range(3))
    LayerCase(f'type: "TripletLoss" triplet_loss_param {{ margin: {margin} }}', a, p, n).check_gradient()


@given(st.integers(1, 4), st.integers(1, 4), st.floats(-3, 3))
def test_moving_all_changes_nothing(n: int, channels: int, by: float) -> None:
    blobs = [normal(n, channels + k)[:, :channels] for k in range(3)]
    one, other = (LayerCase('type: "TripletLoss"', *(x + move for x in blobs)).forward()[0] for move in (0, by))
    assert other == pytest.approx(one, abs=1e-9)


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ('type: "TripletLoss"', [(2, 3), (2, 3), (2, 4)], "bottoms 0 and 2 must have the same shape"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
