"""DummyData."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import rng
from minicaffe.errors import LayerError


def text(inside: str) -> str:
    return f'type: "DummyData" dummy_data_param {{ {inside} }}'


def test_constants_are_filled_once_and_the_rest_each_time() -> None:
    case = LayerCase(text("shape { dim: 3 dim: 4 } data_filler { value: 2 } data_filler { type: 'gaussian' }"), tops=2)
    constant, first = case.forward()
    assert (constant == 2).all()
    case.top[0].data[...] = 9
    constant, second = case.forward()
    assert (constant == 9).all()
    assert (first != second).any()


def test_seed_repeats() -> None:
    case = LayerCase(text("shape { dim: 3 } data_filler { type: 'uniform' }"))
    rng.set_random_seed(3)
    first = case.forward()[0]
    rng.set_random_seed(3)
    np.testing.assert_array_equal(case.forward()[0], first)


@pytest.mark.parametrize(
    ("inside", "tops", "shapes"),
    [
        ("shape { dim: 2 } shape { dim: 3 dim: 4 }", 2, [(2,), (3, 4)]),
        ("shape { dim: 0 dim: 5 }", 3, [(0, 5)] * 3),
        ("num: 2 channels: 3 height: 4 width: 5", 2, [(2, 3, 4, 5)] * 2),
        ("num: 2 num: 6 channels: 3 height: 4 width: 5 width: 7", 2, [(2, 3, 4, 5), (6, 3, 4, 7)]),
    ],
)
def test_shapes(inside: str, tops: int, shapes: list[tuple[int, ...]]) -> None:
    for y, shape in zip(LayerCase(text(inside), tops=tops).forward(), shapes, strict=True):
        assert y.shape == shape
        assert (y == 0).all()


@pytest.mark.parametrize("case", cases("DummyData"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=5), st.floats(-9, 9, width=32))
def test_any_shape(shape: list[int], value: float) -> None:
    dims = " ".join(f"dim: {d}" for d in shape)
    (y,) = LayerCase(text(f"shape {{ {dims} }} data_filler {{ value: {value} }}")).forward()
    assert y.shape == tuple(shape)
    assert (y == value).all()


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("", "0 shape given for 3 tops"),
        ("shape { dim: 1 } shape { dim: 2 }", "2 shape given for 3 tops: give one, or one for each"),
        ("shape { dim: 1 } num: 2", "give shape or num, channels, height and width, not both"),
        ("num: 2 channels: 3 height: 4", "0 width given for 3 tops"),
        ("shape { dim: 1 } data_filler {} data_filler {}", "2 data_filler given for 3 tops"),
    ],
)
def test_errors(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match='DummyData layer "layer": ' + message):
        LayerCase(text(inside), tops=3)
