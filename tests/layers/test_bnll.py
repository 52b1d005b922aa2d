"""BNLL."""

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

TEXT = 'type: "BNLL"'


def test_by_hand() -> None:
    check_by_hand(TEXT, [0.0, math.log(3), -1e3, 1e3], [math.log(2), math.log(4), 0, 1e3], [0.5, 0.75, 0, 1])


@pytest.mark.parametrize("case", cases("BNLL"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


def test_gradient() -> None:
    LayerCase(TEXT, normal(2, 3, 5)).check_gradient()


@settings(deadline=None)
@given(st.floats(-1e3, 1e3))
def test_opposite_points_differ_by_x(x: float) -> None:
    y, opposite = LayerCase(TEXT, [x, -x]).forward()[0]
    np.testing.assert_allclose(y - opposite, x, rtol=1e-9, atol=1e-9)


def test_shapes() -> None:
    check_shapes(TEXT)
