"""Cosine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


TEXT = 'type: "Cosine"'


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    case = LayerCase(TEXT, [0.0, 1.0, -2.0], dtype=dtype)
    np.testing.assert_allclose(case.forward()[0], [1.0, 0.54030231, -0.41614684], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(case.backward(np.ones(3))[0], [0.0, -0.84147098, 0.90929743], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4, 5)])
def test_gradient(shape: tuple[int, ...]) -> None:
    LayerCase(TEXT, normal(*shape)).check_gradient()


def test_in_place() -> None:
    x = normal(2, 3, 4)
    apart, inside = LayerCase(TEXT, x), LayerCase(TEXT, x, in_place=True)
    np.testing.assert_array_equal(apart.forward()[0], inside.forward()[0])
    np.testing.assert_array_equal(apart.backward(normal(2, 3, 4))[0], inside.backward(normal(2, 3, 4))[0])


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=6))
def test_it_is_even(values: list[float]) -> None:
    x = np.array(values)
    np.testing.assert_array_equal(LayerCase(TEXT, x).forward()[0], LayerCase(TEXT, -x).forward()[0])
