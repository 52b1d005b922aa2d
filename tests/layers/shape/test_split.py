"""Split."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

pytestmark = pytest.mark.usefixtures("device")

X = np.arange(6.0).reshape(2, 3)


def test_tops_are_the_bottom_and_diffs_add_up() -> None:
    case = LayerCase('type: "Split"', X, tops=3)
    for y in case.forward():
        np.testing.assert_array_equal(y, X)
    assert all(top.shares_data_with(case.bottom[0]) for top in case.top)
    (dx,) = case.backward(np.full((2, 3), 1.0), np.full((2, 3), 10.0), np.full((2, 3), 100.0))
    np.testing.assert_array_equal(dx, np.full((2, 3), 111.0))


def test_a_top_that_nobody_wrote_adds_zero() -> None:
    case = LayerCase('type: "Split"', X, tops=2)
    case.forward()
    (dx,) = case.backward(np.full((2, 3), 5.0))
    np.testing.assert_array_equal(dx, np.full((2, 3), 5.0))


def test_no_gradient_when_not_asked() -> None:
    case = LayerCase('type: "Split"', X, tops=2)
    case.forward()
    case.bottom[0].diff[...] = 7
    (dx,) = case.backward(X, X, propagate_down=[False])
    assert (dx == 7).all()


def test_second_reshape_shares_the_new_memory() -> None:
    case = LayerCase('type: "Split"', X, tops=2)
    case.bottom[0].reshape(5, 4, 7)
    case.bottom[0].data[...] = 3
    assert all((y == np.full((5, 4, 7), 3)).all() for y in case.forward())


@pytest.mark.parametrize("case", cases("Split"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@given(st.integers(1, 5))
def test_gradient(tops: int) -> None:
    LayerCase('type: "Split"', np.ones((2, 3)), tops=tops).check_gradient()
