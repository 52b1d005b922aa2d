"""Concat."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str = "") -> str:
    return f'type: "Concat" concat_param {{ {inside} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def test_by_hand() -> None:
    case = LayerCase(text(), [[1.0], [4.0]], [[2.0, 3.0], [5.0, 6.0]])
    np.testing.assert_array_equal(case.forward()[0], [[1, 2, 3], [4, 5, 6]])
    first, second = case.backward(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    np.testing.assert_array_equal(first, [[1], [4]])
    np.testing.assert_array_equal(second, [[2, 3], [5, 6]])
    first, second = case.backward(np.zeros((2, 3)), propagate_down=[True, False])
    assert (first == 0).all()
    np.testing.assert_array_equal(second, [[2, 3], [5, 6]])


def test_one_bottom_is_shared() -> None:
    case = LayerCase(text(), normal(2, 3))
    case.forward()
    assert case.top[0].shares_data_with(case.bottom[0])
    dy = normal(2, 3)
    np.testing.assert_array_equal(case.backward(dy)[0], dy)


@pytest.mark.parametrize("case", cases("Concat"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize("inside", ["", "axis: 0", "axis: -1", "concat_dim: 2"])
def test_gradient(inside: str) -> None:
    axis = {"": 1, "axis: 0": 0, "axis: -1": 3, "concat_dim: 2": 2}[inside]
    shapes = [[2, 3, 4, 5], [2, 3, 4, 5]]
    shapes[1][axis] = 6
    LayerCase(text(inside), normal(*shapes[0]), normal(*shapes[1])).check_gradient()


@settings(deadline=None)
@given(st.integers(0, 3), st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_agrees_with_numpy(axis: int, lengths: list[int]) -> None:
    xs = []
    for length in lengths:
        shape = [2, 3, 4, 5]
        shape[axis] = length
        xs.append(normal(*shape))
    case = LayerCase(text(f"axis: {axis}"), *xs)
    np.testing.assert_array_equal(case.forward()[0], np.concatenate(xs, axis))
    for blob, x in zip(case.bottom, xs, strict=True):
        np.testing.assert_array_equal(blob.data, x)


def test_second_reshape() -> None:
    case = LayerCase(text(), normal(2, 3, 4), normal(2, 5, 4))
    case.bottom[0].reshape(7, 1, 6)
    case.bottom[1].reshape(7, 2, 6)
    assert case.forward()[0].shape == (7, 3, 6)


def test_other_axes_differ() -> None:
    with pytest.raises(LayerError, match=r"bottom 1 has shape \(2, 5, 6\), bottom 0 has \(2, 3, 4\): only axis 1 may differ"):
        LayerCase(text(), normal(2, 3, 4), normal(2, 5, 6))
    with pytest.raises(LayerError, match=r"bottom 1 has shape \(2, 3\), bottom 0 has \(2, 3, 4\)"):
        LayerCase(text(), normal(2, 3, 4), normal(2, 3))


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("axis: 2", r"axis 2 is out of range for shape \(2, 3\): it must be in \[-2, 1\]"),
        ("concat_dim: 2", r"axis 2 is out of range for shape \(2, 3\)"),
        ("axis: 1 concat_dim: 0", "give axis or concat_dim, not both: axis 1, concat_dim 0"),
    ],
)
def test_axis_errors(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text(inside), normal(2, 3), normal(2, 3))
