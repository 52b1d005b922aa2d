"""RNN. What it shares with LSTM: recurrent/test_base.py."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase


def text(inside: str) -> str:
    fillers = 'weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'
    return f'type: "RNN" recurrent_param {{ {inside} {fillers} }}'


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    """One unit, two steps; in the second stream the second step begins a new sequence."""
    case = LayerCase(text("num_output: 1"), [[[1.0], [1.0]], [[2.0], [2.0]]], [[0.0, 0.0], [1.0, 0.0]], dtype=dtype)
    for blob, value in zip(case.layer.blobs, (2.0, 0.5, 3.0, 4.0, -1.0), strict=True):
        blob.data[...] = value
    (y,) = case.forward()
    first = np.tanh(2 * 1 + 0.5)
    second = [np.tanh(2 * 2 + 0.5 + 3 * first), np.tanh(2 * 2 + 0.5)]
    np.testing.assert_allclose(y[..., 0], np.tanh(4 * np.array([[first] * 2, second]) - 1), rtol=1e-6)
    assert y.dtype == dtype


@pytest.mark.parametrize("case", cases("RNN"))
def test_golden(case: str) -> None:
    assert run_case(case) >= 12


@given(st.integers(0, 1000), st.integers(1, 5))
def test_agrees_with_the_formula_step_by_step(seed: int, steps: int) -> None:
    random = np.random.default_rng(seed)
    x, cont = random.normal(size=(steps, 2, 3)), random.integers(0, 2, (steps, 2)).astype(float)
    cont[0] = 0
    case = LayerCase(text("num_output: 4"), x, cont)
    weight_x, bias, weight_h, weight_y, bias_y = (blob.data for blob in case.layer.blobs)
    (y,) = case.forward()
    h = np.zeros((2, 4))
    for t in range(steps):
        h = np.tanh(x[t] @ weight_x.T + bias + (cont[t, :, None] * h) @ weight_h.T)
        np.testing.assert_allclose(y[t], np.tanh(h @ weight_y.T + bias_y), atol=1e-12)


@pytest.mark.parametrize("steps", [1, 4])
def test_gradient(steps: int) -> None:
    random = np.random.default_rng(steps)
    cont = np.ones((steps, 2))
    cont[0], cont[steps // 2, 1] = 0, 0
    x, static = random.normal(size=(steps, 2, 3)), random.normal(size=(2, 5))
    LayerCase(text("num_output: 4"), x, cont).check_gradient()
    LayerCase(text("num_output: 4"), x, cont, static).check_gradient()


def test_a_layer_after_it_may_overwrite_the_top_in_place() -> None:
    random = np.random.default_rng(0)
    case = LayerCase(text("num_output: 4"), random.normal(size=(3, 2, 5)), np.ones((3, 2)))
    case.forward()
    dy = random.normal(size=(3, 2, 4))
    expected = case.backward(dy)[0].copy()
    case.top[0].data[...] = 7
    np.testing.assert_array_equal(case.backward(dy)[0], expected)
