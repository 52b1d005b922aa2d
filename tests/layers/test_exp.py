"""Exp."""

from __future__ import annotations

import math

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import check_by_hand, check_shapes, normal

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "Exp" exp_param { base: 2 scale: 3 shift: 1 }'


def test_by_hand() -> None:
    ln2 = math.log(2)
    check_by_hand(TEXT, [0.0, 1.0, -1.0], [2, 16, 0.25], [6 * ln2, 48 * ln2, 0.75 * ln2])
    check_by_hand('type: "Exp"', [0.0, ln2], [1, 2], [1, 2])


@pytest.mark.parametrize("case", cases("Exp"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize("param", ["", "base: 2", "base: 0.5 scale: 2 shift: -1", "scale: 0"])
def test_gradient(param: str) -> None:
    LayerCase(f'type: "Exp" exp_param {{ {param} }}', normal(2, 3, 5)).check_gradient()


@settings(deadline=None)
@given(st.floats(-9, 9), st.floats(-9, 9))
def test_a_sum_becomes_a_product(a: float, b: float) -> None:
    ya, yb, both = LayerCase('type: "Exp"', [a, b, a + b]).forward()[0]
    np.testing.assert_allclose(ya * yb, both)


def test_overflow_is_infinite() -> None:
    assert LayerCase('type: "Exp"', [1e4]).forward()[0] == np.inf


@pytest.mark.parametrize("base", [0, -2])
def test_base(base: int) -> None:
    with pytest.raises(LayerError, match=f"base must be > 0, or -1 for e, got {base}"):
        LayerCase(f'type: "Exp" exp_param {{ base: {base} }}', [1.0])


def test_shapes() -> None:
    check_shapes(TEXT)
