"""Axpy."""

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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    case = LayerCase('type: "Axpy"', [[2.0, 3.0]], [[[1.0, 2.0, 4.0], [5.0, 6.0, 7.0]]], np.ones((1, 2, 3)), dtype=dtype)
    assert case.forward()[0].tolist() == [[[3, 5, 9], [16, 19, 22]]]
    da, dx, dy = case.backward(np.array([[[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]]]))
    assert da.tolist() == [[1 + 8, 6 + 7]]
    assert dx.tolist() == [[[2, 0, 4], [0, 3, 3]]]
    assert dy.tolist() == [[[1, 0, 2], [0, 1, 1]]]


@pytest.mark.parametrize("x", [(2, 3, 4, 5), (2, 3, 7), (4, 3)])
@pytest.mark.parametrize("more", [(), (1, 1)])
def test_gradient(x: tuple[int, ...], more: tuple[int, ...]) -> None:
    LayerCase('type: "Axpy"', normal(*x[:2], *more), normal(*x), normal(*x)).check_gradient()


@given(st.integers(1, 3), st.integers(1, 4), st.integers(0, 6))
def test_it_is_the_sum_of_a_product_and_y(n: int, channels: int, positions: int) -> None:
    a, x, y = normal(n, channels, 1), normal(n, channels, positions), normal(n, channels, positions) + 1
    np.testing.assert_allclose(LayerCase('type: "Axpy"', a, x, y).forward()[0], a * x + y, rtol=1e-12)


def test_no_gradient_where_none_is_asked_for() -> None:
    case = LayerCase('type: "Axpy"', normal(2, 3), normal(2, 3, 5), normal(2, 3, 5))
    case.forward()
    for blob in case.bottom:
        blob.diff[...] = 7
    assert all((diff == 7).all() for diff in case.backward(np.ones((2, 3, 5)), propagate_down=[False] * 3))


@pytest.mark.parametrize("x", [(5, 2, 3), (0, 2, 3), (4, 2, 0)])
def test_a_second_reshape(x: tuple[int, ...]) -> None:
    case = LayerCase('type: "Axpy"', normal(2, 3), normal(2, 3, 4), normal(2, 3, 4))
    for blob, shape in zip(case.bottom, (x[:2], x, x), strict=True):
        blob.reshape(*shape)
        blob.data[...] = 2
    assert (case.forward()[0] == np.full(x, 6)).all()
    assert [diff.shape for diff in case.backward(np.ones(x))] == [x[:2], x, x]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2,), (2,), (2,)), "x must have at least two axes"),
        (((2, 4), (2, 3, 5), (2, 3, 5)), "a must have one number for each map"),
        (((2, 3), (2, 3, 5), (2, 3)), "x and y must have the same shape"),
    ],
)
def test_errors(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase('type: "Axpy"', *(np.zeros(shape) for shape in shapes))
