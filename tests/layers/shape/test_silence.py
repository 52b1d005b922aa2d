"""Silence."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

pytestmark = pytest.mark.usefixtures("device")


def test_diffs_become_zero_where_asked() -> None:
    case = LayerCase('type: "Silence"', np.ones((2, 3)), np.ones(4), tops=0)
    assert case.forward() == []
    for blob in case.bottom:
        blob.diff[...] = 5
    first, second = case.backward(propagate_down=[True, False])
    assert (first == 0).all()
    assert (second == 5).all()


@given(st.lists(st.integers(0, 4), max_size=3))
def test_inputs_untouched(shape: list[int]) -> None:
    case = LayerCase('type: "Silence"', np.full(shape, 7.0), tops=0)
    case.forward()
    assert (case.bottom[0].data == 7).all()


@pytest.mark.parametrize("case", cases("Silence"))
def test_golden(case: str) -> None:
    assert run_case(case) >= 0
