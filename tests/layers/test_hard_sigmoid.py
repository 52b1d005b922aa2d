"""HardSigmoid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import check_by_hand, check_shapes

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "HardSigmoid"'


def test_by_hand() -> None:
    check_by_hand(TEXT, [-3.0, -1.0, 0.0, 2.0, 3.0], [0, 0.3, 0.5, 0.9, 1], [0, 0.2, 0.2, 0.2, 0])


def test_gradient() -> None:
    LayerCase(TEXT, [-4.0, -2.0, 0.5, 2.0, 3.0]).check_gradient()


@given(st.floats(-1e6, 1e6))
def test_of_minus_x(x: float) -> None:
    y, z = LayerCase(TEXT, [x, -x]).forward()[0]
    assert 0 <= y <= 1
    assert y + z == pytest.approx(1)


def test_shapes() -> None:
    check_shapes(TEXT)
