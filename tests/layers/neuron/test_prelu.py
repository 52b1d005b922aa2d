"""PReLU."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import check_shapes, normal

from minicaffe.errors import LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]

TEXT = 'type: "PReLU"'
SHARED = 'type: "PReLU" prelu_param { channel_shared: true }'


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(in_place: bool, dtype: type) -> None:
    x = [[-4.0, -4.0], [2.0, 0.0], [-1.0, 3.0]]
    case = LayerCase(TEXT, x, in_place=in_place, dtype=dtype)
    (slopes,) = case.layer.blobs
    np.testing.assert_array_equal(slopes.data, [0.25, 0.25])
    slopes.data[1] = 0.5
    (y,) = case.forward()
    np.testing.assert_array_equal(y, [[-1, -2], [2, 0], [-0.25, 3]])
    assert y.dtype == dtype
    for times in (1, 2):
        case.top[0].diff[...] = [[1, 2], [3, 4], [5, 6]]
        np.testing.assert_array_equal(case.backward()[0], [[0.25, 1], [3, 2], [1.25, 6]])
        np.testing.assert_array_equal(slopes.diff, [times * -9, times * -8])


def test_shared() -> None:
    case = LayerCase(SHARED, [[-4.0, 1.0, -2.0]])
    assert case.layer.blobs[0].shape == ()
    np.testing.assert_array_equal(case.forward()[0], [[-1, 1, -0.5]])
    case.backward(np.array([[1.0, 1.0, 10.0]]))
    assert case.layer.blobs[0].diff == -24


@pytest.mark.parametrize("case", cases("PReLU"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize("text", [TEXT, SHARED, 'type: "PReLU" prelu_param { filler { type: "gaussian" } }'])
def test_gradient(text: str) -> None:
    LayerCase(text, normal(2, 3, 4, 5)).check_gradient(step=1e-6)


@settings(deadline=None)
@given(st.floats(-2, 2, width=32))
def test_one_slope_for_all(slope: float) -> None:
    x = normal(2, 3, 5)
    (y,) = LayerCase(f'type: "PReLU" prelu_param {{ filler {{ value: {slope} }} }}', x).forward()
    np.testing.assert_allclose(y, np.where(x > 0, x, slope * x))


def test_shapes() -> None:
    check_shapes(TEXT)


def test_errors() -> None:
    with pytest.raises(LayerError, match=r"needs 2 axes or more, the bottom has shape \(4,\)"):
        LayerCase(TEXT, normal(4))
    case = LayerCase(TEXT, normal(2, 3))
    case.bottom[0].reshape(2, 5)
    with pytest.raises(LayerError, match=r"the bottom of shape \(2, 5\) has 5 channels, there are 3 slopes"):
        case.forward()
