"""Bias."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def text(inside: str) -> str:
    return f'type: "Bias" bias_param {{ {inside} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(in_place: bool, dtype: type) -> None:
    case = LayerCase(text(""), [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], in_place=in_place, dtype=dtype)
    case.layer.blobs[0].data[...] = [10, 100]
    (y,) = case.forward()
    np.testing.assert_array_equal(y, [[11, 102], [13, 104], [15, 106]])
    assert y.dtype == dtype
    dy = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    np.testing.assert_array_equal(case.backward(dy)[0], dy)
    np.testing.assert_array_equal(case.layer.blobs[0].diff, [2, 3])
    case.backward(dy)
    np.testing.assert_array_equal(case.layer.blobs[0].diff, [4, 6])


@pytest.mark.parametrize("case", cases("Bias"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize("inside", ["", "axis: 0 num_axes: 2", "axis: -2 num_axes: -1", "num_axes: 0"])
def test_gradient(inside: str) -> None:
    LayerCase(text(inside + " filler { type: 'gaussian' }"), normal(2, 3, 4, 5)).check_gradient()


@pytest.mark.parametrize(("axis", "shape"), [(1, (3, 4)), (-1, (5,)), (0, (2, 3, 4, 5)), (3, ())])
def test_gradient_of_two_bottoms(axis: int, shape: tuple[int, ...]) -> None:
    LayerCase(text(f"axis: {axis}"), normal(2, 3, 4, 5), normal(*shape)).check_gradient()


@settings(deadline=None)
@given(st.integers(0, 3))
def test_all_axes_after_one(axis: int) -> None:
    x = normal(2, 3, 4, 5)
    case = LayerCase(text(f"axis: {axis} num_axes: -1 filler {{ type: 'uniform' }}"), x)
    np.testing.assert_array_equal(case.forward()[0], x + case.layer.blobs[0].data)
    np.testing.assert_array_equal(case.bottom[0].data, x)


def test_second_reshape_and_no_rows() -> None:
    case = LayerCase(text(""), normal(2, 3, 4))
    case.bottom[0].reshape(0, 3, 7)
    assert case.forward()[0].shape == (0, 3, 7)
    case.backward()
    assert (case.layer.blobs[0].diff == 0).all()


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("axis: -4", r"axis -4 is out of range for shape \(2, 3, 4\): it must be in \[-3, 2\]"),
        ("axis: 2 num_axes: 2", r"num_axes 2 from axis 2 on leads past the 3 axes of shape \(2, 3, 4\)"),
        ("num_axes: -2", "num_axes must be >= -1, got -2"),
    ],
)
def test_errors(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match='Bias layer "layer": ' + message):
        LayerCase(text(inside), normal(2, 3, 4))


def test_bottom_of_another_shape() -> None:
    with pytest.raises(LayerError, match=r"shape \(4, 3\) does not lie along axis 1 on of the bottom's shape \(2, 3, 4\)"):
        LayerCase(text(""), normal(2, 3, 4), normal(4, 3))
    case = LayerCase(text(""), normal(2, 3, 4))
    case.bottom[0].reshape(2, 5, 4)
    with pytest.raises(LayerError, match=r"shape \(3,\) does not lie along axis 1 on of the bottom's shape \(2, 5, 4\)"):
        case.forward()
