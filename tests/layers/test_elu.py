"""ELU."""

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

TEXT = 'type: "ELU" elu_param { alpha: 2 }'


def test_by_hand() -> None:
    check_by_hand(TEXT, [3.0, 0.0, -math.log(4), -1e3], [3, 0, -1.5, -2], [1, 2, 0.5, 0])


@pytest.mark.parametrize("case", cases("ELU"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


def test_gradient() -> None:
    LayerCase(TEXT, normal(2, 3, 5)).check_gradient(kink=0.0, kink_range=1e-3)


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=5))
def test_never_below_minus_alpha(values: list[float]) -> None:
    (y,) = LayerCase(TEXT, values).forward()
    assert (y >= -2).all()
    assert ((y > 0) == (np.array(values) > 0)).all()


def test_shapes() -> None:
    check_shapes(TEXT)
