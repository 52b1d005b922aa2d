"""Reorg."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(stride: int, reverse: bool = False) -> str:
    return f'type: "Reorg" reorg_param {{ stride: {stride} reverse: {str(reverse).lower()} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def test_by_hand() -> None:
    """x's memory as a map 4 wide: channel 0 takes every other number of every other row."""
    case = LayerCase(text(2), np.arange(16.0).reshape(1, 4, 2, 2))
    (y,) = case.forward()
    assert y.shape == (1, 16, 1, 1)
    assert y.reshape(-1).tolist() == [0, 2, 8, 10, 1, 3, 9, 11, 4, 6, 12, 14, 5, 7, 13, 15]
    (dx,) = case.backward(y)
    assert dx.reshape(-1).tolist() == list(range(16))


def by_loops(x: np.ndarray, stride: int, reverse: bool) -> np.ndarray:
    """One image, as darknet's loops go over it."""
    channels, height, width = x.shape
    few, given, out = channels // stride**2, x.reshape(-1), np.empty(x.size)
    for k in range(channels):
        down, right = divmod(k // few, stride)
        for j in range(height):
            for i in range(width):
                small = i + width * (j + height * k)
                large = i * stride + right + width * stride * (j * stride + down + height * stride * (k % few))
                out[large if reverse else small] = given[small if reverse else large]
    return out


@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_as_darknet_s_loops(stride: int, few: int, height: int, width: int, reverse: bool) -> None:
    x = normal(2, few * stride**2, height * (1 if reverse else stride), width * (1 if reverse else stride))
    case = LayerCase(text(stride, reverse), x)
    (y,) = case.forward()
    for image, expected in zip(y, x, strict=True):
        np.testing.assert_array_equal(image.reshape(-1), by_loops(expected, stride, reverse))
    np.testing.assert_array_equal(case.backward(y)[0], x)


@pytest.mark.parametrize(("shape", "reverse"), [((2, 4, 4, 6), False), ((1, 8, 2, 3), True)])
def test_gradient(shape: tuple[int, ...], reverse: bool) -> None:
    LayerCase(text(2, reverse), normal(*shape)).check_gradient()


@pytest.mark.parametrize(("shape", "top"), [((3, 8, 2, 6), (3, 32, 1, 3)), ((0, 4, 4, 2), (0, 16, 2, 1))])
def test_a_second_reshape(shape: tuple[int, ...], top: tuple[int, ...]) -> None:
    case = LayerCase(text(2), normal(2, 4, 4, 6))
    case.bottom[0].reshape(*shape)
    assert case.forward()[0].shape == top
    assert case.backward(np.ones(top))[0].shape == shape


@pytest.mark.parametrize(
    ("stride", "shape", "message"),
    [
        (0, (1, 4, 4, 4), "needs stride > 0"),
        (2, (4, 4, 4), r"x must be \(N, C, H, W\), got shape \(4, 4, 4\)"),
        (2, (1, 6, 4, 4), "stride 2 needs a multiple of 4 channels, got 6"),
        (2, (1, 4, 4, 5), "stride 2 divides no map of 4 x 5"),
    ],
)
def test_errors(stride: int, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match='Reorg layer "layer": ' + message):
        LayerCase(text(stride), np.zeros(shape))
