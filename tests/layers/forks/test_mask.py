"""Mask."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "Mask"'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def test_by_hand() -> None:
    """Two channels of a map of 2 x 3; three pixels are kept, row by row."""
    x = np.arange(12.0).reshape(1, 2, 2, 3)
    case = LayerCase(TEXT, x, [[[[0, 1, 1], [1, 0, 0]]]])
    assert case.top[0].shape == (6, 2, 1, 1)
    assert case.forward()[0].tolist() == [[[[1]], [[7]]], [[[2]], [[8]]], [[[3]], [[9]]]]
    dx, dmask = case.backward(np.array([10.0, 70, 20, 80, 30, 90]).reshape(3, 2, 1, 1))
    assert dx.tolist() == [[[[0, 10, 20], [30, 0, 0]], [[0, 70, 80], [90, 0, 0]]]]
    assert not dmask.any()


@given(st.lists(st.booleans(), min_size=12, max_size=12))
def test_it_selects_what_indexing_selects(kept: list[bool]) -> None:
    x, mask = normal(1, 5, 3, 4), np.reshape(kept, (1, 1, 3, 4))
    (y,) = LayerCase(TEXT, x, mask).forward()
    np.testing.assert_array_equal(y[:, :, 0, 0], x[0][:, mask[0, 0]].T)


@pytest.mark.parametrize("mask", [[0, 1, 0, 1, 1, 0], [1] * 6, [0, 0, 0, 0, 0, 1]])
def test_gradient(mask: list[int]) -> None:
    LayerCase(TEXT, normal(1, 4, 2, 3), np.reshape(mask, (1, 1, 2, 3))).check_gradient()


def test_a_second_reshape_and_no_gradient_unasked() -> None:
    case = LayerCase(TEXT, normal(1, 4, 2, 3), np.ones((1, 1, 2, 3)))
    case.forward()
    case.bottom[0].reshape(1, 2, 5, 1)
    case.bottom[1].reshape(1, 1, 5, 1)
    case.bottom[1].data[...] = [[[[0], [1], [0], [1], [0]]]]
    case.bottom[0].data[...] = np.arange(10.0).reshape(1, 2, 5, 1)
    assert case.forward()[0].tolist() == [[[[1]], [[6]]], [[[3]], [[8]]]]
    case.bottom[0].diff[...] = 7
    assert (case.backward(np.ones((2, 2, 1, 1)), propagate_down=[False, False])[0] == 7).all()


@pytest.mark.parametrize(
    ("x", "mask", "message"),
    [
        ((2, 3, 4, 5), (2, 1, 4, 5), r"x must be \(1, C, H, W\), got shape \(2, 3, 4, 5\)"),
        ((1, 3, 4), (1, 1, 4), r"x must be \(1, C, H, W\)"),
        ((1, 3, 4, 5), (1, 1, 5, 4), r"the mask must be \(1, 1, 4, 5\), got shape \(1, 1, 5, 4\)"),
    ],
)
def test_errors_of_shapes(x: tuple[int, ...], mask: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(TEXT, np.zeros(x), np.ones(mask))


def test_error_of_a_mask_of_other_numbers() -> None:
    with pytest.raises(LayerError, match="the mask must hold zeros and ones, got 2"):
        LayerCase(TEXT, np.zeros((1, 3, 1, 2)), [[[[1, 2]]]]).forward()
