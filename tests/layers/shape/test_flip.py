"""Flip."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(width: bool, height: bool) -> str:
    return f'type: "Flip" flip_param {{ flip_width: {str(width).lower()} flip_height: {str(height).lower()} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.parametrize(
    ("param", "wanted"),
    [
        ('type: "Flip"', [[3, 2, 1], [6, 5, 4]]),
        (text(False, True), [[4, 5, 6], [1, 2, 3]]),
        (text(True, True), [[6, 5, 4], [3, 2, 1]]),
        (text(False, False), [[1, 2, 3], [4, 5, 6]]),
    ],
)
def test_by_hand(param: str, wanted: list[list[int]]) -> None:
    x = np.array([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]])
    case = LayerCase(param, x)
    assert case.forward()[0][0, 0].tolist() == wanted
    assert case.backward(x)[0][0, 0].tolist() == wanted


@given(st.booleans(), st.booleans())
def test_twice_is_once_back(width: bool, height: bool) -> None:
    x = normal(2, 3, 4, 5)
    case = LayerCase(text(width, height), x)
    np.testing.assert_array_equal(case.backward(case.forward()[0])[0], x)


@pytest.mark.parametrize("width", [True, False])
def test_gradient(width: bool) -> None:
    LayerCase(text(width, True), normal(2, 3, 4, 5)).check_gradient()


def test_a_second_reshape() -> None:
    case, x = LayerCase('type: "Flip"', normal(2, 3, 4, 5)), normal(3, 2, 5, 1)
    case.bottom[0].reshape(*x.shape)
    case.bottom[0].data[...] = x
    np.testing.assert_array_equal(case.forward()[0], x)


def test_errors() -> None:
    with pytest.raises(LayerError, match=r"x must be \(N, C, H, W\), got shape \(2, 3\)"):
        LayerCase('type: "Flip"', np.zeros((2, 3)))
