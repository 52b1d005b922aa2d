"""Input."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(*shapes: tuple[int, ...]) -> str:
    inside = " ".join("shape { " + " ".join(f"dim: {d}" for d in shape) + " }" for shape in shapes)
    return f'type: "Input" input_param {{ {inside} }}'


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [([(2, 3)], [(2, 3), (2, 3)]), ([(2, 3), (0, 5, 4)], [(2, 3), (0, 5, 4)]), ([], [(), ()])],
)
def test_shapes(shapes: list[tuple[int, ...]], expected: list[tuple[int, ...]]) -> None:
    case = LayerCase(text(*shapes), tops=2)
    assert [y.shape for y in case.forward()] == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=5))
def test_data_is_the_callers_and_may_take_another_shape(shape: list[int]) -> None:
    case = LayerCase(text((2, 3)))
    case.top[0].reshape(*shape)
    case.top[0].data[...] = 7
    np.testing.assert_array_equal(case.forward()[0], np.full(shape, 7.0))


@pytest.mark.parametrize("case", cases("Input"))
def test_golden(case: str) -> None:
    assert run_case(case) >= 0


def test_wrong_number_of_shapes() -> None:
    with pytest.raises(LayerError, match='Input layer "layer": 2 shapes given for 3 tops: give none, one, or one for each'):
        LayerCase(text((2,), (3,)), tops=3)


def test_two_thousand_million_four_times_over() -> None:
    with pytest.raises(LayerError, match=r'Input layer "layer": shape .* has 16000000000000000000000000000000000000 elements'):
        LayerCase(text((2_000_000_000,) * 4))
