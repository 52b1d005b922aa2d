"""TanH."""

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

TEXT = 'type: "TanH"'


def test_by_hand() -> None:
    """tanh(ln 2) = (2 - 1/2) / (2 + 1/2) = 0.6."""
    check_by_hand(TEXT, [0.0, math.log(2), -math.log(2), 40.0], [0, 0.6, -0.6, 1], [1, 0.64, 0.64, 0])


@pytest.mark.parametrize("case", cases("TanH"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


def test_gradient() -> None:
    LayerCase(TEXT, normal(2, 3, 5)).check_gradient()


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=5))
def test_odd_and_bounded(values: list[float]) -> None:
    x = np.array(values)
    (y,) = LayerCase(TEXT, x).forward()
    assert (np.abs(y) <= 1).all()
    np.testing.assert_array_equal(LayerCase(TEXT, -x).forward()[0], -y)


def test_shapes() -> None:
    check_shapes(TEXT)
