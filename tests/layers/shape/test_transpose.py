"""Transpose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(*dim: int) -> str:
    return f'type: "Transpose" transpose_param {{ {" ".join(f"dim: {axis}" for axis in dim)} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def test_by_hand() -> None:
    case = LayerCase(text(1, 0), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert case.forward()[0].tolist() == [[1, 4], [2, 5], [3, 6]]
    assert case.backward(np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))[0].tolist() == [[1, 3, 5], [2, 4, 6]]


@given(st.permutations(range(4)))
def test_as_numpy_and_back(dim: list[int]) -> None:
    x = normal(2, 3, 4, 5)
    case = LayerCase(text(*dim), x)
    (y,) = case.forward()
    np.testing.assert_array_equal(y, x.transpose(dim))
    np.testing.assert_array_equal(case.backward(y)[0], x)


def test_gradient() -> None:
    LayerCase(text(3, 0, 2, 1), normal(2, 3, 4, 5)).check_gradient()


@pytest.mark.parametrize("shape", [(5, 7, 3), (0, 4, 2), (2, 3, 0)])
def test_a_second_reshape(shape: tuple[int, ...]) -> None:
    case = LayerCase(text(2, 0, 1), normal(2, 3, 4))
    case.bottom[0].reshape(*shape)
    x = normal(*shape)
    case.bottom[0].data[...] = x
    np.testing.assert_array_equal(case.forward()[0], x.transpose(2, 0, 1))


@pytest.mark.parametrize("dim", [(0, 2), (0, 1, 1), (0, 1, 3), (0, 1, -1), (0, 1, 2, 3), ()])
def test_errors(dim: tuple[int, ...]) -> None:
    message = r'Transpose layer "layer": dim must list each axis of x of shape \(2, 3, 4\) once, 0 to 2; got '
    with pytest.raises(LayerError, match=message):
        LayerCase(text(*dim), np.zeros((2, 3, 4)))
