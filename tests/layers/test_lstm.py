"""LSTM. What it shares with RNN: recurrent/test_base.py."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase


def text(inside: str) -> str:
    fillers = 'weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'
    return f'type: "LSTM" recurrent_param {{ {inside} {fillers} }}'


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    """One unit, two steps, no weights but the biases: gates of 1/2, and tanh(ln 3) = 4/5 goes in at every step."""
    case = LayerCase(text("num_output: 1"), np.zeros((2, 2, 3)), [[0.0, 0.0], [1.0, 0.0]], dtype=dtype)
    for blob in case.layer.blobs:
        blob.data[...] = 0
    case.layer.blobs[1].data[3] = np.log(3)
    (y,) = case.forward()
    np.testing.assert_allclose(y[..., 0], np.tanh([[0.4, 0.4], [0.6, 0.4]]) / 2, rtol=1e-6)
    assert y.dtype == dtype


@pytest.mark.parametrize("case", cases("LSTM"))
def test_golden(case: str) -> None:
    assert run_case(case) >= 8


@given(st.integers(0, 1000), st.integers(1, 5))
def test_agrees_with_the_formula_step_by_step(seed: int, steps: int) -> None:
    random = np.random.default_rng(seed)
    x, cont = random.normal(size=(steps, 2, 3)), random.integers(0, 2, (steps, 2)).astype(float)
    cont[0] = 0
    case = LayerCase(text("num_output: 4"), x, cont)
    weight_x, bias, weight_h = (blob.data for blob in case.layer.blobs)
    (y,) = case.forward()
    h = c = np.zeros((2, 4))
    for t in range(steps):
        begins = cont[t, :, None]
        i, f, o, g = np.split(x[t] @ weight_x.T + bias + (begins * h) @ weight_h.T, 4, axis=1)
        c = begins * sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        np.testing.assert_allclose(y[t], h, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 4])
def test_gradient(steps: int) -> None:
    random = np.random.default_rng(steps)
    cont = np.ones((steps, 2))
    cont[0], cont[steps // 2, 1] = 0, 0
    x, static = random.normal(size=(steps, 2, 3)), random.normal(size=(2, 5))
    LayerCase(text("num_output: 4"), x, cont).check_gradient()
    LayerCase(text("num_output: 4"), x, cont, static).check_gradient()
