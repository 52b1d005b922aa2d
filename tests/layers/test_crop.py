"""Crop."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import normal

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str = "") -> str:
    return f'type: "Crop" crop_param {{ {inside} }}'


def test_by_hand() -> None:
    case = LayerCase(text("axis: 1 offset: 1"), [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]], np.zeros((9, 2)))
    np.testing.assert_array_equal(case.forward()[0], [[2, 3], [6, 7]])
    dx, dreference = case.backward(np.array([[1.0, 2.0], [3.0, 4.0]]))
    np.testing.assert_array_equal(dx, [[0, 1, 2, 0], [0, 3, 4, 0]])
    assert (dreference == 0).all()


@pytest.mark.parametrize("case", cases("Crop"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize("inside", ["", "axis: 1 offset: 1 offset: 2 offset: 0", "axis: -1 offset: 3"])
def test_gradient(inside: str) -> None:
    LayerCase(text(inside), normal(2, 4, 6, 7), normal(2, 3, 4, 4)).check_gradient()


@settings(deadline=None)
@given(st.integers(0, 2), st.integers(0, 3))
def test_agrees_with_slicing(row: int, column: int) -> None:
    x = normal(2, 3, 6, 7)
    case = LayerCase(text(f"offset: {row} offset: {column}"), x, np.zeros((1, 1, 4, 3)))
    np.testing.assert_array_equal(case.forward()[0], x[:, :, row : row + 4, column : column + 3])
    np.testing.assert_array_equal(case.bottom[0].data, x)


def test_second_reshape_and_no_rows() -> None:
    case = LayerCase(text(), normal(2, 3, 6, 7), normal(2, 3, 4, 5))
    case.bottom[0].reshape(0, 5, 9, 8)
    case.bottom[1].reshape(0, 5, 8, 7)
    assert case.forward()[0].shape == (0, 5, 8, 7)
    assert case.backward()[0].shape == (0, 5, 9, 8)


@pytest.mark.parametrize(
    ("inside", "reference", "message"),
    [
        ("", (2, 3, 4), r"bottom 0 has shape \(2, 3, 6, 7\), bottom 1 \(2, 3, 4\): the numbers of axes differ"),
        ("offset: 3", (2, 3, 4, 4), r"offset 3 and length 4 lead past axis 2 of shape \(2, 3, 6, 7\), length 6"),
        ("axis: 1 offset: 1 offset: 2", (2, 2, 4, 4), "2 offset given for 3 cut axes: give none, one, or one for each"),
        ("axis: 4", (2, 3, 4, 5), r"axis 4 is out of range for shape \(2, 3, 6, 7\)"),
    ],
)
def test_errors(inside: str, reference: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match='Crop layer "layer": ' + message):
        LayerCase(text(inside), normal(2, 3, 6, 7), np.zeros(reference))
