"""Scale."""

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
    return f'type: "Scale" scale_param {{ {inside} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(in_place: bool, dtype: type) -> None:
    case = LayerCase(text("bias_term: true"), [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], in_place=in_place, dtype=dtype)
    scale, bias = case.layer.blobs
    scale.data[...], bias.data[...] = [10, 100], [1, 2]
    (y,) = case.forward()
    np.testing.assert_array_equal(y, [[11, 202], [31, 402], [51, 602]])
    assert y.dtype == dtype
    (dx,) = case.backward(np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]]))
    np.testing.assert_array_equal(dx, [[10, 0], [10, 100], [0, 200]])
    np.testing.assert_array_equal(scale.diff, [1 + 3, 4 + 12])
    np.testing.assert_array_equal(bias.diff, [2, 3])


def test_weight_diffs_accumulate() -> None:
    case = LayerCase(text("bias_term: true"), normal(2, 3))
    case.forward()
    case.backward(np.ones((2, 3)))
    once = [blob.diff.copy() for blob in case.layer.blobs]
    case.backward(np.ones((2, 3)))
    for blob, diff in zip(case.layer.blobs, once, strict=True):
        np.testing.assert_allclose(blob.diff, 2 * diff)


def test_no_copy_is_kept_when_the_scale_is_not_learnt() -> None:
    case = LayerCase(text("bias_term: true"), normal(2, 3), in_place=True)
    case.layer.param_propagate_down = [False, False]
    case.forward()
    case.backward(np.ones((2, 3)))
    assert vars(case.layer)["_input"].blob.count == 0
    assert all((blob.diff == 0).all() for blob in case.layer.blobs)


@pytest.mark.parametrize("case", cases("Scale"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize(
    "inside", ["", "axis: 0 num_axes: 2 bias_term: true", "axis: -2 num_axes: -1", "num_axes: 0 bias_term: true"]
)
def test_gradient(inside: str) -> None:
    case = LayerCase(text(inside + " filler { type: 'gaussian' }"), normal(2, 3, 4, 5))
    case.check_gradient()


@pytest.mark.parametrize(("axis", "shape"), [(1, (3, 4)), (-1, (5,)), (0, (2, 3, 4, 5)), (0, (2,))])
def test_gradient_of_two_bottoms(axis: int, shape: tuple[int, ...]) -> None:
    LayerCase(text(f"axis: {axis} bias_term: true"), normal(2, 3, 4, 5), normal(*shape)).check_gradient()


def test_scalar_second_bottom_in_place() -> None:
    case = LayerCase(text(""), [[1.0, 2.0, 3.0]], 5.0, in_place=True)
    np.testing.assert_array_equal(case.forward()[0], [[5, 10, 15]])
    dx, dscale = case.backward(np.array([[1.0, 1.0, 2.0]]))
    np.testing.assert_array_equal(dx, [[5, 5, 10]])
    assert dscale == 1 + 2 + 6


@settings(deadline=None)
@given(st.integers(0, 3), st.integers(-1, 4))
def test_agrees_with_broadcasting(axis: int, num_axes: int) -> None:
    x = normal(2, 3, 4, 5)
    if axis + num_axes > 4:
        return
    case = LayerCase(text(f"axis: {axis} num_axes: {num_axes} filler {{ type: 'gaussian' }}"), x)
    scale = case.layer.blobs[0].data
    end = axis + scale.ndim
    np.testing.assert_array_equal(
        case.forward()[0], x * scale.reshape(scale.shape + (1,) * (4 - end)) if scale.ndim else x * scale
    )
    np.testing.assert_array_equal(case.bottom[0].data, x)


def test_second_reshape_and_no_rows() -> None:
    case = LayerCase(text("bias_term: true"), normal(2, 3, 4))
    case.bottom[0].reshape(0, 3, 7)
    assert case.forward()[0].shape == (0, 3, 7)
    case.backward()
    assert (case.layer.blobs[0].diff == 0).all()


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("axis: 3", r"axis 3 is out of range for shape \(2, 3, 4\)"),
        ("axis: 1 num_axes: 3", r"num_axes 3 from axis 1 on leads past the 3 axes of shape \(2, 3, 4\)"),
        ("num_axes: -2", "num_axes must be >= -1, got -2"),
        ("filler { type: 'gausian' }", 'unknown filler type "gausian"; did you mean gaussian'),
    ],
)
def test_errors(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match='Scale layer "layer": ' + message):
        LayerCase(text(inside), normal(2, 3, 4))


def test_second_bottom_that_does_not_match() -> None:
    with pytest.raises(LayerError, match=r"shape \(4,\) does not lie along axis 1 on of the bottom's shape \(2, 3, 4\)"):
        LayerCase(text(""), normal(2, 3, 4), normal(4))
    case = LayerCase(text("bias_term: true"), normal(2, 3, 4), normal(3))
    case.bottom[0].reshape(2, 5, 4)
    case.bottom[1].reshape(5)
    with pytest.raises(LayerError, match=r"the second bottom has shape \(5,\), the learnt bias \(3,\)"):
        case.forward()
