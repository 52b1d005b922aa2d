"""Reduction."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import normal

from minicaffe.errors import LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def text(inside: str = "") -> str:
    return f'type: "Reduction" reduction_param {{ {inside} }}'


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("operation", "y", "dx"),
    [
        ("SUM", [0, 12], [[2, 2, 2], [4, 4, 4]]),
        ("ASUM", [12, 12], [[2, -2, 0], [4, 4, 4]]),
        ("SUMSQ", [36, 28], [[12, -12, 0], [16, 24, 8]]),
        ("MEAN", [0, 4], [[2 / 3] * 3, [4 / 3] * 3]),
    ],
)
def test_by_hand(operation: str, y: list[float], dx: list[list[float]], dtype: type) -> None:
    case = LayerCase(text(f"operation: {operation} axis: 1 coeff: 2"), [[3.0, -3.0, 0.0], [2.0, 3.0, 1.0]], dtype=dtype)
    (top,) = case.forward()
    np.testing.assert_allclose(top, y, rtol=1e-6)
    assert top.dtype == dtype
    np.testing.assert_allclose(case.backward(np.array([1.0, 2.0]))[0], dx, rtol=1e-6)


@pytest.mark.parametrize("case", cases("Reduction"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("operation", ["SUM", "ASUM", "SUMSQ", "MEAN"])
def test_gradient(operation: str, axis: int) -> None:
    LayerCase(text(f"operation: {operation} axis: {axis} coeff: -1.5"), normal(2, 3, 5)).check_gradient(
        kink=0.0, kink_range=1e-3
    )


@settings(deadline=None)
@given(st.integers(0, 3))
def test_shape_is_that_before_the_axis(axis: int) -> None:
    x = normal(2, 3, 4, 5)
    case = LayerCase(text(f"axis: {axis}"), x)
    (y,) = case.forward()
    assert y.shape == x.shape[:axis]
    np.testing.assert_allclose(y.sum(), x.sum())
    np.testing.assert_array_equal(case.bottom[0].data, x)


def test_second_reshape_and_no_numbers() -> None:
    case = LayerCase(text("operation: MEAN axis: 1"), normal(2, 3))
    case.bottom[0].reshape(0, 5, 4)
    assert case.forward()[0].shape == (0,)
    assert case.backward()[0].shape == (0, 5, 4)
    case.bottom[0].reshape(3, 0)
    np.testing.assert_array_equal(case.forward()[0], np.zeros(3))


def test_axis() -> None:
    with pytest.raises(LayerError, match=r'Reduction layer "layer": axis 2 is out of range for shape \(2, 3\)'):
        LayerCase(text("axis: 2"), normal(2, 3))
