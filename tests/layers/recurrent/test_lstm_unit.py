"""LSTMUnit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

TEXT = 'type: "LSTMUnit"'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    """One unit: gates of sigmoid(0) = 1/2 and tanh(ln 3) = 4/5; the second stream begins anew."""
    gates = [[[0.0, 0.0, 0.0, math.log(3)], [0.0, 0.0, 0.0, math.log(3)]]]
    case = LayerCase(TEXT, [[[2.0], [2.0]]], gates, [[1.0, 0.0]], tops=2, dtype=dtype)
    c, h = case.forward()
    np.testing.assert_allclose(c, [[[1.4], [0.4]]], rtol=1e-6)
    np.testing.assert_allclose(h, [[[math.tanh(1.4) / 2], [math.tanh(0.4) / 2]]], rtol=1e-6)
    assert c.dtype == h.dtype == dtype
    dc_before, dgates, dcont = case.backward([[[1.0], [1.0]]], [[[0.0], [0.0]]])
    np.testing.assert_allclose(dc_before, [[[0.5], [0.0]]])
    np.testing.assert_allclose(dgates, [[[0.2, 0.5, 0, 0.18], [0.2, 0, 0, 0.18]]], rtol=1e-6, atol=1e-12)
    assert not dcont.any()


@pytest.mark.parametrize("case", cases("LSTMUnit"))
def test_golden(case: str) -> None:
    assert run_case(case) == 4


@given(st.integers(0, 1000), st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=4))
def test_a_beginning_forgets_and_h_stays_in_bounds(seed: int, cont: list[float]) -> None:
    random = np.random.default_rng(seed)
    c_before, gates = random.normal(size=(1, len(cont), 3)), random.normal(size=(1, len(cont), 12))
    c, h = LayerCase(TEXT, c_before, gates, [cont], tops=2).forward()
    other = c_before + np.where(np.array(cont)[:, None] == 0, 5.0, 0.0)
    again = LayerCase(TEXT, other, gates, [cont], tops=2).forward()
    np.testing.assert_array_equal(again, [c, h])
    assert (np.abs(h) < 1).all()


def test_gradient() -> None:
    LayerCase(TEXT, normal(1, 3, 2), normal(1, 3, 8), [[1.0, 0.0, 1.0]], tops=2).check_gradient()


def test_no_gradient_when_not_asked_and_inputs_untouched() -> None:
    case = LayerCase(TEXT, normal(1, 3, 2), normal(1, 3, 8), [[1.0, 0.0, 1.0]], tops=2)
    case.forward()
    for blob in case.bottom:
        blob.diff[...] = 7
    diffs = case.backward(normal(1, 3, 2), normal(1, 3, 2), propagate_down=[False, False, False])
    assert all((diff == 7).all() for diff in diffs)
    np.testing.assert_array_equal(case.bottom[1].data, normal(1, 3, 8))


def test_second_reshape_and_no_streams() -> None:
    case = LayerCase(TEXT, normal(1, 3, 2), normal(1, 3, 8), np.ones((1, 3)), tops=2)
    for streams, units in ((2, 5), (0, 5)):
        for blob, shape in zip(case.bottom, ((1, streams, units), (1, streams, 4 * units), (1, streams)), strict=True):
            blob.reshape(shape)
        assert [y.shape for y in case.forward()] == [(1, streams, units)] * 2
        assert case.backward(np.ones((1, streams, units)), np.ones((1, streams, units)))[1].shape == (1, streams, 4 * units)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((3, 2), (1, 3, 8), (1, 3)), r"the first bottom must have shape \(1, streams, units\), it has \(3, 2\)"),
        (((2, 3, 2), (2, 3, 8), (2, 3)), r"the first bottom must have shape \(1, streams, units\), it has \(2, 3, 2\)"),
        (((1, 3, 2), (1, 3, 6), (1, 3)), r"bottom 1 must have shape \(1, 3, 8\), as the first has .*; it has \(1, 3, 6\)"),
        (((1, 3, 2), (1, 3, 8), (3,)), r"bottom 2 must have shape \(1, 3\), as the first has \(1, 3, 2\); it has \(3,\)"),
    ],
)
def test_errors(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(TEXT, *map(np.ones, shapes), tops=2)
