"""ReLU."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

pytestmark = pytest.mark.usefixtures("device")

LEAKY = 'type: "ReLU" relu_param { negative_slope: 0.25 }'


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(in_place: bool, dtype: type) -> None:
    case = LayerCase(LEAKY, [-4.0, 0.0, 2.0], in_place=in_place, dtype=dtype)
    (y,) = case.forward()
    np.testing.assert_array_equal(y, [-1.0, 0.0, 2.0])
    assert y.dtype == dtype
    (dx,) = case.backward(np.array([8.0, 16.0, 32.0]))
    np.testing.assert_array_equal(dx, [2.0, 4.0, 32.0])


@pytest.mark.parametrize("case", cases("ReLU"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize("slope", [-0.5, 0.0, 0.25, 1.5])
def test_gradient(slope: float) -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, 5))
    LayerCase(f'type: "ReLU" relu_param {{ negative_slope: {slope} }}', x).check_gradient(kink=0.0, kink_range=1e-3)


@given(st.lists(st.floats(-1e3, 1e3), max_size=9), st.sampled_from([-0.5, 0.0, 0.25, 1.0, 1.5]))
def test_in_place_gives_the_same(values: list[float], slope: float) -> None:
    text = f'type: "ReLU" relu_param {{ negative_slope: {slope} }}'
    apart, inside = LayerCase(text, values), LayerCase(text, values, in_place=True)
    expected = [v if v > 0 else v * slope for v in values]
    np.testing.assert_array_equal(apart.forward()[0], expected)
    np.testing.assert_array_equal(apart.bottom[0].data, values)
    np.testing.assert_array_equal(inside.forward()[0], expected)
    dy = np.arange(1.0, len(values) + 1)
    expected = [d if v > 0 else d * slope for d, v in zip(dy, values)]
    np.testing.assert_array_equal(apart.backward(dy)[0], expected)
    if all(v == 0 or abs(v) > 1e-300 for v in values):
        np.testing.assert_array_equal(inside.backward(dy)[0], expected)


def test_nan_stays() -> None:
    for slope in (0.0, 0.25):
        case = LayerCase(f'type: "ReLU" relu_param {{ negative_slope: {slope} }}', [np.nan, -1.0])
        assert np.isnan(case.forward()[0]).tolist() == [True, False]


def test_second_reshape_and_no_rows() -> None:
    case = LayerCase('type: "ReLU"', np.ones((2, 3)))
    case.bottom[0].reshape(0, 5, 7)
    assert case.forward()[0].shape == (0, 5, 7)
    assert case.backward()[0].shape == (0, 5, 7)


def test_no_gradient_when_not_asked() -> None:
    case = LayerCase('type: "ReLU"', [1.0, 2.0])
    case.forward()
    assert (case.backward(np.array([3.0, 4.0]), propagate_down=[False])[0] == 0).all()
