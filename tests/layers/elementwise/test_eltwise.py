"""Eltwise."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

A, B, C = [1.0, -2.0, 3.0], [4.0, 5.0, 3.0], [0.5, 6.0, 3.0]


def text(inside: str) -> str:
    return f'type: "Eltwise" eltwise_param {{ {inside} }}'


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("inside", "y", "gradients"),
    [
        ("", [5.5, 9, 9], [[1, 1, 1]] * 3),
        ("coeff: 2 coeff: 1 coeff: -1", [5.5, -5, 6], [[2, 2, 2], [1, 1, 1], [-1, -1, -1]]),
        ("operation: PROD", [2, -60, 27], [[2, 30, 9], [0.5, -12, 9], [4, -10, 9]]),
        ("operation: PROD stable_prod_grad: false", [2, -60, 27], [[2, 30, 9], [0.5, -12, 9], [4, -10, 9]]),
        ("operation: MAX", [4, 6, 3], [[0, 0, 0], [1, 0, 1], [0, 1, 0]]),
    ],
)
def test_by_hand(inside: str, y: list[float], gradients: list[list[float]], dtype: type) -> None:
    case = LayerCase(text(inside), A, B, C, dtype=dtype)
    (top,) = case.forward()
    np.testing.assert_array_equal(top, y)
    assert top.dtype == dtype
    for dx, gradient in zip(case.backward(np.full(3, 10.0)), gradients, strict=True):
        np.testing.assert_array_equal(dx, 10 * np.array(gradient))


def test_a_sum_of_one_bottom() -> None:
    case = LayerCase(text("coeff: -0.5"), normal(2, 3, 5))
    np.testing.assert_array_equal(case.forward()[0], -0.5 * normal(2, 3, 5))
    case.check_gradient()
    np.testing.assert_array_equal(LayerCase(text(""), A).forward()[0], A)
    for operation in ("PROD", "MAX"):
        with pytest.raises(LayerError, match="takes at least 2 bottoms, got 1; a SUM takes one"):
            LayerCase(text(f"operation: {operation}"), A)


@pytest.mark.parametrize("case", cases("Eltwise"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize(
    "inside", ["", "coeff: 2 coeff: 0.5", "operation: PROD", "operation: PROD stable_prod_grad: false", "operation: MAX"]
)
def test_gradient(inside: str) -> None:
    LayerCase(text(inside), normal(2, 3, 5), normal(2, 3, 5, seed=1)).check_gradient()


@settings(deadline=None)
@given(st.integers(2, 5), st.sampled_from(["SUM", "PROD", "MAX"]))
def test_agrees_with_numpy(bottoms: int, operation: str) -> None:
    xs = [normal(2, 3, 4, seed=i) for i in range(bottoms)]
    case = LayerCase(text(f"operation: {operation}"), *xs)
    reduce = {"SUM": np.sum, "PROD": np.prod, "MAX": np.max}[operation]
    np.testing.assert_allclose(case.forward()[0], reduce(xs, axis=0), rtol=1e-12, atol=1e-12)
    for blob, x in zip(case.bottom, xs, strict=True):
        np.testing.assert_array_equal(blob.data, x)


def test_gradient_only_where_asked() -> None:
    case = LayerCase(text(""), A, B)
    case.forward()
    first, second = case.backward(np.ones(3), propagate_down=[False, True])
    assert (first == 0).all()
    assert (second == 1).all()


def test_second_reshape_and_no_rows() -> None:
    for operation in ("SUM", "PROD", "MAX"):
        case = LayerCase(text(f"operation: {operation}"), A, B)
        for blob in case.bottom:
            blob.reshape(0, 5)
        assert case.forward()[0].shape == (0, 5)
        assert [dx.shape for dx in case.backward()] == [(0, 5)] * 2


def test_shapes_that_differ() -> None:
    with pytest.raises(LayerError, match=r'Eltwise layer "layer": bottom 2 has shape \(2, 4\), bottom 0 has \(2, 3\)'):
        LayerCase(text(""), normal(2, 3), normal(2, 3), normal(2, 4))


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("coeff: 1 coeff: 2 coeff: 3", "3 coeff given for 2 bottoms"),
        ("operation: PROD coeff: 1 coeff: 2", "coeff is for SUM, not for PROD"),
        ("operation: MAX coeff: 1 coeff: 2", "coeff is for SUM, not for MAX"),
    ],
)
def test_coefficients(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text(inside), A, B)
