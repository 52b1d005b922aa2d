"""EuclideanLoss: half the mean squared distance."""

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

rng = np.random.default_rng(21)
TYPE = 'type: "EuclideanLoss"'


@pytest.mark.gpu_barrier
def test_by_hand():
    case = LayerCase(TYPE, [[1.0, 2.0], [3.0, 4.0]], [[0.0, 2.0], [3.0, 1.0]])
    assert case.forward()[0] == (1 + 9) / 4
    dx, dtarget = case.backward()
    np.testing.assert_array_equal(dx, [[0.5, 0], [0, 1.5]])
    np.testing.assert_array_equal(dtarget, -dx)


@pytest.mark.parametrize("case", cases("EuclideanLoss"))
def test_golden(case):
    assert run_case(case) >= 1


def test_gradient_in_both_bottoms():
    case = LayerCase(TYPE, rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(2, 12, 5)))
    assert case.check_gradient().elements == 240


@given(st.integers(0, 2**32 - 1), st.floats(-9, 9))
def test_a_common_shift_changes_nothing(seed, shift):
    x, target = np.random.default_rng(seed).normal(size=(2, 3, 7))
    (loss,) = LayerCase(TYPE, x, target).forward()
    assert loss >= 0
    np.testing.assert_allclose(LayerCase(TYPE, x + shift, target + shift).forward()[0], loss)


def test_second_reshape_to_no_images():
    x, target = rng.normal(size=(2, 3, 7))
    case = LayerCase(TYPE, x, target)
    case.forward()
    np.testing.assert_array_equal(case.bottom[0].data, x)
    for blob in case.bottom:
        blob.reshape(0, 7)
    assert case.forward()[0] == 0
    assert case.backward()[0].shape == (0, 7)


def test_sizes_differ():
    with pytest.raises(LayerError, match=r"must have as many values, got 12 of shape \(3, 4\) and 15 of shape \(3, 5\)"):
        LayerCase(TYPE, np.zeros((3, 4)), np.zeros((3, 5)))
    with pytest.raises(LayerError, match=r'EuclideanLoss layer "layer": bottoms 0 and 1 must have the same first axis'):
        LayerCase(TYPE, np.zeros((3, 4)), np.zeros((4, 3)))
