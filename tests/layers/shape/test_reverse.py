"""Reverse."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(axis: int) -> str:
    return f'type: "Reverse" reverse_param {{ axis: {axis} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def test_by_hand() -> None:
    case = LayerCase(text(1), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert case.forward()[0].tolist() == [[3, 2, 1], [6, 5, 4]]
    assert case.backward(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))[0].tolist() == [[3, 2, 1], [6, 5, 4]]
    assert LayerCase('type: "Reverse"', [1.0, 2.0, 3.0]).forward()[0].tolist() == [3, 2, 1]


@given(st.integers(-4, 3))
def test_twice_is_once_back(axis: int) -> None:
    x = normal(2, 3, 4, 5)
    case = LayerCase(text(axis), x)
    (y,) = case.forward()
    np.testing.assert_array_equal(y, np.flip(x, axis))
    np.testing.assert_array_equal(case.backward(y)[0], x)


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_gradient(axis: int) -> None:
    LayerCase(text(axis), normal(2, 3, 4)).check_gradient()


@pytest.mark.parametrize("shape", [(5, 2, 3), (0, 4), (2, 0, 3)])
def test_a_second_reshape(shape: tuple[int, ...]) -> None:
    case = LayerCase(text(1), normal(2, 4))
    case.bottom[0].reshape(*shape)
    x = normal(*shape)
    case.bottom[0].data[...] = x
    np.testing.assert_array_equal(case.forward()[0], x[:, ::-1])
    np.testing.assert_array_equal(case.backward(x)[0], x[:, ::-1])


def test_errors() -> None:
    with pytest.raises(LayerError, match=r'Reverse layer "layer": axis 2 is out of range for shape \(2, 3\)'):
        LayerCase(text(2), np.zeros((2, 3)))
