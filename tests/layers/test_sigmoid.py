"""Sigmoid."""

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.layers.sigmoid import sigmoid

pytestmark = pytest.mark.usefixtures("device")

rng = np.random.default_rng(20)


def test_by_hand():
    case = LayerCase('type: "Sigmoid"', [0.0, np.log(3)])
    np.testing.assert_allclose(case.forward()[0], [0.5, 0.75])
    np.testing.assert_allclose(case.backward(np.array([1.0, 2.0]))[0], [0.25, 0.375])


@pytest.mark.parametrize("case", cases("Sigmoid"))
def test_golden(case):
    assert run_case(case) == 2


def test_gradient():
    assert LayerCase('type: "Sigmoid"', rng.normal(size=(2, 5, 3, 4))).check_gradient().elements == 120


@given(st.floats(-1e30, 1e30))
def test_lies_in_the_unit_interval_and_is_symmetric(x):
    y, mirrored = sigmoid(np.array([x, -x]))
    assert 0 <= y <= 1
    np.testing.assert_allclose(y + mirrored, 1)


def test_in_place_equals_apart_and_reshapes():
    x, dy = rng.normal(size=(2, 7, 3)), rng.normal(size=(2, 7, 3))
    apart, within = LayerCase('type: "Sigmoid"', x), LayerCase('type: "Sigmoid"', x, in_place=True)
    np.testing.assert_array_equal(within.forward()[0], apart.forward()[0])
    np.testing.assert_array_equal(apart.bottom[0].data, x)
    np.testing.assert_array_equal(within.backward(dy)[0], apart.backward(dy)[0])
    apart.bottom[0].reshape(0, 5)
    assert apart.forward()[0].shape == (0, 5)
