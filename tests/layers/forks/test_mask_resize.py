"""MaskResize."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def text(height: int, width: int) -> str:
    return f'type: "MaskResize" mask_resize_param {{ output_height: {height} output_width: {width} }}'


def test_by_hand() -> None:
    """2 columns to 4: at 0, 0.5, 1 and, beyond the last pixel, 1.5."""
    case = LayerCase(text(1, 4), [[[[2.0, 6.0]]]])
    assert case.forward()[0].tolist() == [[[[2, 4, 6, 6]]]]
    assert case.backward(np.array([[[[1.0, 2.0, 3.0, 4.0]]]]))[0].tolist() == [[[[1 + 1, 1 + 3 + 4]]]]


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.integers(1, 6))
def test_between_the_least_and_the_most_and_the_same_at_the_same_size(h: int, w: int, height: int, width: int) -> None:
    x = normal(1, 2, h, w)
    (y,) = LayerCase(text(height, width), x).forward()
    assert y.min() >= x.min() - 1e-12
    assert y.max() <= x.max() + 1e-12
    np.testing.assert_allclose(LayerCase(text(h, w), x).forward()[0], x)


@pytest.mark.parametrize("size", [(9, 3), (2, 2), (5, 12)])
def test_gradient(size: tuple[int, int]) -> None:
    LayerCase(text(*size), normal(2, 1, 5, 6)).check_gradient()


@pytest.mark.parametrize("shape", [(3, 2, 7, 1), (0, 2, 3, 3), (2, 0, 3, 3)])
def test_a_second_reshape(shape: tuple[int, ...]) -> None:
    case = LayerCase(text(4, 3), normal(2, 1, 5, 6))
    case.bottom[0].reshape(shape)
    case.bottom[0].data[...] = 2
    np.testing.assert_allclose(case.forward()[0], np.full((*shape[:2], 4, 3), 2))
    assert case.backward(np.ones((*shape[:2], 4, 3)))[0].shape == shape


@pytest.mark.parametrize(
    ("size", "shape", "message"),
    [
        ((0, 3), (1, 1, 4, 4), "needs output_height > 0 and output_width > 0"),
        ((3, 3), (1, 4, 4), r"x must be \(N, C, H, W\) with pixels, got shape \(1, 4, 4\)"),
        ((3, 3), (1, 1, 0, 4), r"x must be \(N, C, H, W\) with pixels, got shape \(1, 1, 0, 4\)"),
    ],
)
def test_errors(size: tuple[int, int], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match='MaskResize layer "layer": ' + message):
        LayerCase(text(*size), np.zeros(shape))
