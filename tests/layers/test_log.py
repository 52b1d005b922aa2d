"""Log."""

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

TEXT = 'type: "Log" log_param { base: 2 scale: 3 shift: 1 }'


def test_by_hand() -> None:
    ln2 = math.log(2)
    check_by_hand(TEXT, [0.0, 1.0, 5.0], [0, 2, 4], [3 / ln2, 0.75 / ln2, 3 / 16 / ln2])
    check_by_hand('type: "Log"', [1.0, 2.0], [0, ln2], [1, 0.5])


@pytest.mark.parametrize("case", cases("Log"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize("param", ["", "base: 2", "base: 0.5 scale: 2 shift: 1"])
def test_gradient(param: str) -> None:
    LayerCase(f'type: "Log" log_param {{ {param} }}', 0.5 + np.abs(normal(2, 3, 5))).check_gradient()


@settings(deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_a_product_becomes_a_sum(a: float, b: float) -> None:
    ya, yb, both = LayerCase('type: "Log"', [a, b, a * b]).forward()[0]
    np.testing.assert_allclose(ya + yb, both, atol=1e-12)


def test_outside_the_domain() -> None:
    (y,) = LayerCase('type: "Log"', [0.0, -1.0]).forward()
    assert y[0] == -np.inf
    assert np.isnan(y[1])


@pytest.mark.parametrize("base", [0, 1, -2])
def test_base(base: int) -> None:
    with pytest.raises(LayerError, match=f"base must be > 0 and not 1, or -1 for e, got {base}"):
        LayerCase(f'type: "Log" log_param {{ base: {base} }}', [1.0])


def test_shapes() -> None:
    check_shapes(TEXT)
