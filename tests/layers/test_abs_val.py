"""AbsVal."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import check_by_hand, check_shapes, normal

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "AbsVal"'


def test_by_hand() -> None:
    check_by_hand(TEXT, [-2.0, 0.0, 3.0], [2, 0, 3], [-1, 0, 1])


@pytest.mark.parametrize("case", cases("AbsVal"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


def test_gradient() -> None:
    LayerCase(TEXT, normal(2, 3, 5)).check_gradient(kink=0.0, kink_range=1e-3)


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=5))
def test_even(values: list[float]) -> None:
    x = np.array(values)
    np.testing.assert_array_equal(LayerCase(TEXT, x).forward()[0], LayerCase(TEXT, -x).forward()[0])


def test_shapes() -> None:
    check_shapes(TEXT)
