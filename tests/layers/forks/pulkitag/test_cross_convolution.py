"""CrossConvolution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def cross(a: np.ndarray, b: np.ndarray, inside: str = "kernel_size: 2", more: str = "bias_term: false") -> LayerCase:
    return LayerCase(f'type: "CrossConvolution" convolution_param {{ {more} {inside} }}', a, b)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def test_by_hand() -> None:
    """Two windows of one pixel in each: y[p, o] = a[p] b[o]."""
    case = cross(np.array([[[[1.0, 2]]]]), np.array([[[[10.0, 20]]]]), "kernel_size: 1")
    assert case.forward()[0].tolist() == [[[[10, 20]], [[20, 40]]]]
    da, db = case.backward(np.array([[[[1.0, 0]], [[0, 1]]]]))
    assert (da.tolist(), db.tolist()) == ([[[[10, 20]]]], [[[[1, 2]]]])


@pytest.mark.parametrize(
    "window", ["kernel_h: 2 kernel_w: 3 pad_h: 1 pad_w: 0 stride_h: 2 stride_w: 1", "kernel_size: 3 stride: 3 pad: 2"]
)
def test_each_window_of_a_is_a_filter(window: str) -> None:
    a, b = normal(2, 3, 5, 6), normal(2, 3, 5, 6, seed=1)
    (y,) = cross(a, b, window).forward()
    columns = [
        LayerCase(f'type: "Im2col" convolution_param {{ {window} }}', x).forward()[0].reshape(2, -1, y.shape[1]) for x in (a, b)
    ]
    for n in range(2):
        filters = columns[0][n].T.reshape(y.shape[1], 3, -1)
        sides = (2, 3) if "kernel_h" in window else (3, 3)
        convolution = LayerCase(
            f'type: "Convolution" convolution_param {{ num_output: {y.shape[1]} bias_term: false {window} }}', b[n : n + 1]
        )
        convolution.layer.blobs[0].data[...] = filters.reshape(y.shape[1], 3, *sides)
        np.testing.assert_allclose(y[n], convolution.forward()[0][0], atol=1e-12)


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 3), st.integers(1, 2))
def test_exchanged_bottoms_transpose_it(kernel: int, stride: int) -> None:
    a, b, window = normal(1, 2, 4, 3), normal(1, 2, 4, 3, seed=1), f"kernel_size: {kernel} stride: {stride}"
    y, other = cross(a, b, window).forward()[0][0], cross(b, a, window).forward()[0][0]
    np.testing.assert_allclose(y.reshape(len(y), -1), other.reshape(len(y), -1).T)


def test_gradient_and_a_second_reshape() -> None:
    case = cross(normal(2, 2, 4, 3), normal(2, 2, 4, 3, seed=1), "kernel_size: 2 pad: 1 stride: 2")
    case.check_gradient()
    for blob in case.bottom:
        blob.reshape(1, 3, 2, 5)
    assert case.forward()[0].shape == (1, 6, 2, 3)
    case.bottom[1].diff[...] = 7
    assert (case.backward(np.ones((1, 6, 2, 3)), propagate_down=[True, False])[1] == 7).all()


@pytest.mark.parametrize(
    ("inside", "more", "shapes", "message"),
    [
        ("kernel_size: 2", "", [(1, 2, 4, 3)] * 2, "bias_term must be false, got true"),
        ("kernel_size: 2 num_output: 4", "bias_term: false", [(1, 2, 4, 3)] * 2, "num_output must be 0, got 4"),
        ("kernel_size: 2 group: 2", "bias_term: false", [(1, 2, 4, 3)] * 2, "group must be 1, got 2"),
        ("kernel_size: 2 dilation: 2", "bias_term: false", [(1, 2, 4, 3)] * 2, "takes no dilation"),
        ("kernel_size: 2", "bias_term: false", [(1, 2, 4, 3), (1, 2, 4, 5)], r"must have one shape, got \(1, 2, 4, 3\) and"),
        ("kernel_size: 2", "bias_term: false", [(2, 4, 3)] * 2, r"the bottoms must be \(N, C, H, W\), got shape \(2, 4, 3\)"),
    ],
)
def test_errors(inside: str, more: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        cross(*map(np.zeros, shapes), inside, more)
