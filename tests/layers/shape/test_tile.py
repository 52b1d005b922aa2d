"""Tile."""

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


def text(inside: str) -> str:
    return f'type: "Tile" tile_param {{ {inside} }}'


def test_by_hand() -> None:
    case = LayerCase(text("tiles: 2"), [[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(case.forward()[0], [[1, 2, 1, 2], [3, 4, 3, 4]])
    dy = np.array([[1.0, 2.0, 10.0, 20.0], [3.0, 4.0, 30.0, 40.0]])
    np.testing.assert_array_equal(case.backward(dy)[0], [[11, 22], [33, 44]])
    np.testing.assert_array_equal(case.backward(0 * dy, propagate_down=[False])[0], [[11, 22], [33, 44]])


@pytest.mark.parametrize("case", cases("Tile"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gradient(axis: int) -> None:
    LayerCase(text(f"axis: {axis} tiles: 3"), normal(2, 4, 5)).check_gradient()


@settings(deadline=None)
@given(st.integers(0, 2), st.integers(1, 4))
def test_agrees_with_numpy(axis: int, tiles: int) -> None:
    x = normal(2, 3, 5)
    case = LayerCase(text(f"axis: {axis} tiles: {tiles}"), x)
    np.testing.assert_array_equal(case.forward()[0], np.concatenate([x] * tiles, axis))
    np.testing.assert_array_equal(case.bottom[0].data, x)


def test_second_reshape_and_no_rows() -> None:
    case = LayerCase(text("tiles: 3"), normal(2, 3))
    case.bottom[0].reshape(0, 5, 4)
    assert case.forward()[0].shape == (0, 15, 4)
    assert case.backward()[0].shape == (0, 5, 4)


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("", "tiles must be > 0, got 0"),
        ("tiles: -1", "tiles must be > 0, got -1"),
        ("tiles: 2 axis: 2", "axis 2 is out of range"),
    ],
)
def test_errors(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match='Tile layer "layer": ' + message):
        LayerCase(text(inside), normal(2, 3))
