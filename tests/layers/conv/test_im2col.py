"""Im2col."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import check_gradient
from minicaffe.errors import LayerError
from minicaffe.layers.conv.im2col import col2im, im2col
from minicaffe.layers.conv.window import Window

TWO = 'type: "Im2col" convolution_param { kernel_size: 2 }'

pytestmark = pytest.mark.usefixtures("device")


def test_by_hand() -> None:
    case = LayerCase(TWO, np.arange(1.0, 7).reshape(1, 1, 2, 3))
    (y,) = case.forward()
    np.testing.assert_array_equal(y.reshape(4, 2), [[1, 2], [2, 3], [4, 5], [5, 6]])
    assert y.shape == (1, 4, 1, 2)
    (dx,) = case.backward(np.arange(1.0, 9).reshape(1, 4, 1, 2))
    np.testing.assert_array_equal(dx.reshape(2, 3), [[1, 2 + 3, 4], [5, 6 + 7, 8]])


@pytest.mark.parametrize("case", cases("Im2col"))
def test_golden(case: str) -> None:
    assert run_case(case) == 2


windows = st.builds(
    lambda axes: Window(*zip(*axes)),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2)), min_size=1, max_size=3),
)


@given(windows, st.integers(0, 3), st.integers(0, 99))
def test_every_element_is_the_pixel_it_should_be(window: Window, extra: int, seed: int) -> None:
    spatial = tuple(max(1, e - 2 * p) + extra + axis for axis, (e, p) in enumerate(zip(window.extent, window.pad)))
    x = np.random.default_rng(seed).normal(size=(2, 3, *spatial))
    columns = im2col(x, window)
    assert columns.shape == (2, 3, *window.kernel, *window.output(spatial))
    for tap in itertools.product(*map(range, window.kernel)):
        for at in itertools.product(*map(range, window.output(spatial))):
            pixel = [o * s - p + t * d for o, s, p, t, d in zip(at, window.stride, window.pad, tap, window.dilation)]
            inside = all(0 <= i < n for i, n in zip(pixel, spatial))
            expected = x[(slice(None), slice(None), *pixel)] if inside else np.zeros((2, 3))
            np.testing.assert_array_equal(columns[(slice(None), slice(None), *tap, *at)], expected)


@given(windows, st.integers(0, 99))
def test_col2im_is_the_transpose(window: Window, seed: int) -> None:
    random = np.random.default_rng(seed)
    spatial = tuple(max(1, e - 2 * p) + 1 + axis for axis, (e, p) in enumerate(zip(window.extent, window.pad)))
    x = random.normal(size=(2, 3, *spatial))
    columns = im2col(x, window)
    other = random.normal(size=columns.shape)
    assert (columns * other).sum() == pytest.approx((x * col2im(other, window, spatial)).sum())


def test_gradient() -> None:
    text = 'type: "Im2col" convolution_param { kernel_h: 2 kernel_w: 3 stride: 2 pad: 1 }'
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 4))
    assert check_gradient(text, x).elements == x.size


def test_axis_second_reshape_and_an_empty_batch() -> None:
    case = LayerCase('type: "Im2col" convolution_param { kernel_size: 2 axis: -2 }', np.arange(24.0).reshape(2, 3, 4))
    assert case.forward()[0].shape == (2, 6, 3)
    case.bottom[0].reshape(5, 2, 7)
    assert case.forward()[0].shape == (5, 4, 6)
    case.bottom[0].reshape(0, 2, 7)
    assert case.forward()[0].shape == (0, 4, 6)
    assert case.backward(np.zeros((0, 4, 6)))[0].shape == (0, 2, 7)


def test_errors() -> None:
    with pytest.raises(LayerError, match=r"the map of 1x4 with padding 0x0 is smaller than the kernel of 2x2"):
        LayerCase(TWO, np.zeros((2, 3, 1, 4)))
    with pytest.raises(LayerError, match=r"axis 1 must have spatial axes after it, the bottom's shape is \(2, 3\)"):
        LayerCase(TWO, np.zeros((2, 3)))
