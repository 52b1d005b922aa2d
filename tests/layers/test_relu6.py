"""ReLU6."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import check_by_hand, check_shapes

from minicaffe.errors import PrototxtWarning

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "ReLU6"'
LEAKY = 'type: "ReLU6" relu6_param { negative_slope: 0.5 }'


def test_by_hand() -> None:
    check_by_hand(TEXT, [-3.0, 0.0, 0.5, 5.5, 6.0, 7.0], [0, 0, 0.5, 5.5, 6, 6], [0, 0, 1, 1, 0, 0])
    check_by_hand(LEAKY, [-3.0, 0.0, 0.5, 6.0, 7.0], [-1.5, 0, 0.5, 6, 6], [0.5, 0.5, 1, 0, 0])


def test_a_negative_slope_below_0_reaches_6_too() -> None:
    check_by_hand('type: "ReLU6" relu6_param { negative_slope: -2 }', [-4.0, -3.0, -1.0, 2.0], [6, 6, 2, 2], [0, 0, -2, 1])


@pytest.mark.parametrize("text", [TEXT, LEAKY])
def test_gradient(text: str) -> None:
    LayerCase(text, [-30.0, -0.5, 0.5, 5.5, 6.5]).check_gradient()


@given(st.lists(st.floats(-1e6, 1e6), max_size=5))
def test_within_0_and_6_and_twice_is_once(values: list[float]) -> None:
    (y,) = LayerCase(TEXT, values).forward()
    assert ((y >= 0) & (y <= 6)).all()
    np.testing.assert_array_equal(LayerCase(TEXT, y).forward()[0], y)


def test_shapes() -> None:
    check_shapes(LEAKY)


def test_relu_param_has_no_effect() -> None:
    with pytest.warns(PrototxtWarning, match='ReLU6 layer "layer": relu_param has no effect; negative_slope is a field'):
        case = LayerCase('type: "ReLU6" relu_param { negative_slope: 0.5 }', [-2.0])
    assert case.forward()[0].tolist() == [0]
