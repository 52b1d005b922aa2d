"""Slice."""

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
    return f'type: "Slice" slice_param {{ {inside} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def test_by_hand() -> None:
    case = LayerCase(text("slice_point: 1"), [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], tops=2)
    first, second = case.forward()
    np.testing.assert_array_equal(first, [[1], [4]])
    np.testing.assert_array_equal(second, [[2, 3], [5, 6]])
    dy = np.array([[7.0, 8.0], [9.0, 10.0]])
    np.testing.assert_array_equal(case.backward(np.array([[1.0], [2.0]]), dy)[0], [[1, 7, 8], [2, 9, 10]])
    np.testing.assert_array_equal(case.backward(np.zeros((2, 1)), dy, propagate_down=[False])[0], [[1, 7, 8], [2, 9, 10]])


def test_one_top_is_shared() -> None:
    case = LayerCase(text(), normal(2, 3))
    case.forward()
    assert case.top[0].shares_data_with(case.bottom[0])
    np.testing.assert_array_equal(case.backward(normal(2, 3))[0], normal(2, 3))


@pytest.mark.parametrize("case", cases("Slice"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize(
    "inside", ["axis: 3 slice_point: 1", "axis: 1", "slice_dim: 3 slice_point: 2", "axis: -1 slice_point: 3"]
)
def test_gradient(inside: str) -> None:
    LayerCase(text(inside), normal(2, 4, 3, 5), tops=2).check_gradient()


@settings(deadline=None)
@given(st.integers(0, 3), st.integers(1, 3), st.data())
def test_agrees_with_numpy(axis: int, tops: int, data: st.DataObject) -> None:
    x = normal(4, 3, 6, 5)
    points = sorted(data.draw(st.lists(st.integers(1, x.shape[axis] - 1), unique=True, max_size=tops)))
    case = LayerCase(text(f"axis: {axis} " + " ".join(f"slice_point: {p}" for p in points)), x, tops=len(points) + 1)
    for part, expected in zip(case.forward(), np.split(x, points, axis), strict=True):
        np.testing.assert_array_equal(part, expected)
    np.testing.assert_array_equal(case.bottom[0].data, x)


def test_second_reshape_and_no_rows() -> None:
    case = LayerCase(text(), normal(2, 6, 4), tops=3)
    case.bottom[0].reshape(0, 9, 5)
    assert [y.shape for y in case.forward()] == [(0, 3, 5)] * 3
    assert case.backward()[0].shape == (0, 9, 5)


@pytest.mark.parametrize(
    ("inside", "tops", "message"),
    [
        (
            "slice_point: 2 slice_point: 2",
            3,
            r"slice_point \[2, 2\] must increase, between 0 and the length 6 of axis 1 of shape \(2, 6\)",
        ),
        ("slice_point: 6", 2, r"slice_point \[6\] must increase, between 0 and the length 6"),
        ("slice_point: 0", 2, r"slice_point \[0\] must increase"),
        ("slice_point: 1", 3, "1 slice_point for 3 tops: give 2, or none"),
        ("", 4, r"axis 1 of shape \(2, 6\) has length 6: no 4 equal parts"),
        ("axis: 2", 2, r"axis 2 is out of range for shape \(2, 6\)"),
        ("axis: 1 slice_dim: 0", 2, "give axis or slice_dim, not both: axis 1, slice_dim 0"),
    ],
)
def test_errors(inside: str, tops: int, message: str) -> None:
    with pytest.raises(LayerError, match='Slice layer "layer": ' + message):
        LayerCase(text(inside), normal(2, 6), tops=tops)
