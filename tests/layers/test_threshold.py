"""Threshold."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import check_by_hand, check_shapes

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "Threshold" threshold_param { threshold: 0.5 }'


def test_by_hand() -> None:
    check_by_hand(TEXT, [-1.0, 0.5, 0.75], [0, 0, 1], [0, 0, 0])


@pytest.mark.parametrize("case", cases("Threshold"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=5))
def test_zeros_and_ones(values: list[float]) -> None:
    (y,) = LayerCase(TEXT, values).forward()
    np.testing.assert_array_equal(y, [float(v > 0.5) for v in values])


def test_shapes() -> None:
    check_shapes(TEXT)
