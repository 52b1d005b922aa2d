"""Permute."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(*order: int) -> str:
    return f'type: "Permute" permute_param {{ {" ".join(f"order: {axis}" for axis in order)} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def test_by_hand() -> None:
    case = LayerCase(text(0, 2, 1), [[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]])
    np.testing.assert_array_equal(case.forward()[0], [[[1, 4], [2, 5], [3, 6]]])
    (dx,) = case.backward(np.array([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]))
    np.testing.assert_array_equal(dx, [[[1, 3, 5], [2, 4, 6]]])


def test_axes_left_out_follow() -> None:
    x = normal(2, 3, 4, 5)
    np.testing.assert_array_equal(LayerCase(text(2), x).forward()[0], x.transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(LayerCase(text(), x).forward()[0], x)


@given(st.permutations(range(4)))
def test_as_transpose_and_back(order: list[int]) -> None:
    x = normal(2, 3, 4, 5)
    case = LayerCase(text(*order), x)
    (y,) = case.forward()
    np.testing.assert_array_equal(y, x.transpose(order))
    np.testing.assert_array_equal(case.backward(y)[0], x)
    np.testing.assert_array_equal(case.bottom[0].data, x)


def test_gradient() -> None:
    LayerCase(text(0, 2, 3, 1), normal(2, 3, 4, 5)).check_gradient()


def test_second_reshape_and_no_images() -> None:
    case = LayerCase(text(0, 2, 3, 1), normal(2, 3, 4, 5))
    case.bottom[0].reshape(0, 3, 7, 5)
    assert case.forward()[0].shape == (0, 7, 5, 3)
    assert case.backward()[0].shape == (0, 3, 7, 5)


@pytest.mark.parametrize(
    ("order", "message"),
    [((0, 4), r"order has axis 4; x of shape \(2, 3, 4, 5\) has 4"), ((0, 2, 2), "order lists axis 2 twice")],
)
def test_errors(order: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match='Permute layer "layer": ' + message):
        LayerCase(text(*order), normal(2, 3, 4, 5))
