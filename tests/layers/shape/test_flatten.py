"""Flatten."""

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
    return f'type: "Flatten" flatten_param {{ {inside} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.parametrize(
    ("inside", "shape"),
    [("", (2, 60)), ("axis: 0 end_axis: 2", (24, 5)), ("axis: -2", (2, 3, 20)), ("axis: 2 end_axis: 2", (2, 3, 4, 5))],
)
def test_by_hand(inside: str, shape: tuple[int, ...]) -> None:
    x = normal(2, 3, 4, 5)
    case = LayerCase(text(inside), x)
    np.testing.assert_array_equal(case.forward()[0], x.reshape(shape))
    assert case.top[0].shares_data_with(case.bottom[0])
    np.testing.assert_array_equal(case.backward(normal(*shape))[0], normal(*shape).reshape(x.shape))


@pytest.mark.parametrize("case", cases("Flatten"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


def test_gradient() -> None:
    LayerCase(text(), normal(2, 3, 4)).check_gradient()


@settings(deadline=None)
@given(st.integers(0, 3), st.integers(0, 3))
def test_count_stays(start: int, end: int) -> None:
    start, end = min(start, end), max(start, end)
    (y,) = LayerCase(text(f"axis: {start} end_axis: {end - 4}"), normal(2, 3, 4, 5)).forward()
    assert y.size == 120
    assert y.ndim == 4 - (end - start)


def test_second_reshape_and_no_rows() -> None:
    case = LayerCase(text(), normal(2, 3, 4))
    case.bottom[0].reshape(0, 5, 6)
    assert case.forward()[0].shape == (0, 30)
    assert case.backward()[0].shape == (0, 5, 6)


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("axis: 3", r"axis 3 is out of range for shape \(2, 3, 4\)"),
        ("end_axis: -4", r"axis -4 is out of range for shape \(2, 3, 4\)"),
        ("axis: 2 end_axis: 1", r"end_axis 1 is before axis 2 in shape \(2, 3, 4\)"),
    ],
)
def test_errors(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match='Flatten layer "layer": ' + message):
        LayerCase(text(inside), normal(2, 3, 4))
