"""Power."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import check_by_hand, check_shapes, normal

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "Power" power_param { power: 2 scale: 3 shift: 1 }'


@pytest.mark.parametrize(
    ("param", "y", "slope"),
    [
        ("power: 2 scale: 3 shift: 1", [16, 1, 49], [24, 6, 42]),
        ("scale: 3 shift: 1", [4, 1, 7], [3, 3, 3]),
        ("power: 0 scale: 2", [1, 1, 1], [0, 0, 0]),
        ("power: 2 scale: 0 shift: 3", [9, 9, 9], [0, 0, 0]),
        ("power: 0.5 scale: 8 shift: 1", [3, 1, 17**0.5], [4 / 3, 4, 4 / 17**0.5]),
        ("power: -1 shift: 1", [0.5, 1, 1 / 3], [-0.25, -1, -1 / 9]),
    ],
)
def test_by_hand(param: str, y: list[float], slope: list[float]) -> None:
    check_by_hand(f'type: "Power" power_param {{ {param} }}', [1.0, 0.0, 2.0], y, slope)


@pytest.mark.parametrize("case", cases("Power"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize("param", ["", "power: 3", "power: -1.5 scale: 0.3 shift: 4", "power: 2 scale: -1 shift: 0.5"])
def test_gradient(param: str) -> None:
    LayerCase(f'type: "Power" power_param {{ {param} }}', normal(2, 3, 5)).check_gradient()


def test_a_broken_power_of_a_negative_number_is_nan() -> None:
    assert np.isnan(LayerCase('type: "Power" power_param { power: 0.5 }', [-1.0]).forward()[0]).all()


@settings(deadline=None)
@given(st.floats(-9, 9, width=32), st.floats(-9, 9, width=32))
def test_linear(scale: float, shift: float) -> None:
    x = np.linspace(-1, 1, 7)
    (y,) = LayerCase(f'type: "Power" power_param {{ scale: {scale} shift: {shift} }}', x).forward()
    np.testing.assert_allclose(y, shift if scale == 0 else scale * x + shift, rtol=1e-12, atol=1e-12)


def test_shapes() -> None:
    check_shapes(TEXT)
