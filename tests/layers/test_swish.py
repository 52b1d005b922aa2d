"""Swish."""

from __future__ import annotations

import math

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import check_by_hand, check_shapes, normal

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "Swish" swish_param { beta: 2 }'


def test_by_hand() -> None:
    """At x = ln(3) / 2, sigmoid(2 x) is 3 / 4."""
    x = math.log(3) / 2
    check_by_hand(TEXT, [0.0, x, 1e3, -1e3], [0, 0.75 * x, 1e3, 0], [0.5, 0.75 + 2 * 0.75 * x * 0.25, 1, 0])


@pytest.mark.parametrize("case", cases("Swish"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize("beta", [-1.5, 0, 1, 2])
def test_gradient(beta: float) -> None:
    LayerCase(f'type: "Swish" swish_param {{ beta: {beta} }}', normal(2, 3, 5)).check_gradient()


@settings(deadline=None)
@given(st.floats(-1e3, 1e3))
def test_opposite_points_differ_by_x(x: float) -> None:
    y, opposite = LayerCase(TEXT, [x, -x]).forward()[0]
    np.testing.assert_allclose(y - opposite, x, rtol=1e-9, atol=1e-9)


def test_shapes() -> None:
    check_shapes(TEXT)
