"""ChannelNorm."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    case = LayerCase('type: "ChannelNorm"', [[[3.0, 0.0], [4.0, 0.0]]], dtype=dtype)
    assert case.forward()[0].tolist() == [[[5, 0]]]
    assert case.backward(np.array([[[10.0, 1.0]]]))[0].tolist() == [[[6, 0], [8, 0]]]


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 7), (4, 3)])
def test_gradient(shape: tuple[int, ...]) -> None:
    LayerCase('type: "ChannelNorm"', normal(*shape)).check_gradient()


@given(st.integers(-8, 8), st.permutations(range(3)))
def test_it_scales_with_x_and_does_not_know_the_order_of_channels(factor: int, order: list[int]) -> None:
    x = normal(2, 3, 5)
    (y,), (other,) = (LayerCase('type: "ChannelNorm"', array).forward() for array in (x, factor * x[:, order]))
    np.testing.assert_allclose(other, abs(factor) * y, rtol=1e-12)


def test_no_gradient_where_none_is_asked_for() -> None:
    case = LayerCase('type: "ChannelNorm"', normal(2, 3, 5))
    case.forward()
    case.bottom[0].diff[...] = 7
    assert (case.backward(np.ones((2, 1, 5)), propagate_down=[False])[0] == 7).all()


@pytest.mark.parametrize("shape", [(5, 4, 3), (0, 4, 3), (5, 4, 0)])
def test_a_second_reshape(shape: tuple[int, ...]) -> None:
    case = LayerCase('type: "ChannelNorm"', normal(2, 3, 4))
    case.bottom[0].reshape(*shape)
    case.bottom[0].data[...] = 2
    assert (case.forward()[0] == np.full((shape[0], 1, shape[2]), 4)).all()
    assert case.backward(np.ones((shape[0], 1, shape[2])))[0].tolist() == np.full(shape, 0.5).tolist()


def test_errors() -> None:
    with pytest.raises(LayerError, match=r"x must have at least two axes, got shape \(3,\)"):
        LayerCase('type: "ChannelNorm"', np.zeros(3))
