"""DepthwiseConvolution, also called ConvolutionDepthwise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str, kind: str = "DepthwiseConvolution") -> str:
    fillers = 'weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'
    return f'type: "{kind}" convolution_param {{ {inside} {fillers} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["DepthwiseConvolution", "ConvolutionDepthwise"])
def test_by_hand(kind: str, dtype: type) -> None:
    """Two channels of 1x3 pixels, each with its own 1x2 kernel."""
    x = [[[[1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0]]]]
    case = LayerCase(text("num_output: 2 kernel_h: 1 kernel_w: 2", kind), x, dtype=dtype)
    weight, bias = case.layer.blobs
    weight.data[...], bias.data[...] = [[[[10, 1]]], [[[0, 2]]]], [0.5, -1]
    (y,) = case.forward()
    np.testing.assert_array_equal(y, [[[[12.5, 23.5]], [[9, 11]]]])
    assert y.dtype == dtype
    (dx,) = case.backward([[[[1.0, 2.0]], [[3.0, 4.0]]]])
    np.testing.assert_array_equal(dx, [[[[10, 21, 2]], [[0, 6, 8]]]])
    np.testing.assert_array_equal(weight.diff, [[[[1 + 4, 2 + 6]]], [[[12 + 20, 15 + 24]]]])
    np.testing.assert_array_equal(bias.diff, [3, 7])
    np.testing.assert_array_equal(case.bottom[0].data, x)


@settings(max_examples=30)
@given(st.integers(1, 2), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2), st.booleans())
def test_is_a_convolution_of_as_many_groups_as_channels(each: int, stride: int, pad: int, dilation: int, bias: bool) -> None:
    options = f"num_output: {3 * each} kernel_size: 3 stride: {stride} pad: {pad} dilation: {dilation} "
    options += f"bias_term: {str(bias).lower()}"
    x = normal(2, 3, 7, 6)
    case, general = LayerCase(text(options), x), LayerCase(text(options + " group: 3", "Convolution"), x)
    for ours, theirs in zip(case.layer.blobs, general.layer.blobs, strict=True):
        assert ours.shape == theirs.shape
        ours.data[...] = theirs.data
    np.testing.assert_allclose(case.forward()[0], general.forward()[0], atol=1e-12)
    dy = normal(*case.top[0].shape)
    np.testing.assert_allclose(case.backward(dy)[0], general.backward(dy)[0], atol=1e-12)


@pytest.mark.parametrize(
    ("inside", "shape"),
    [
        ("num_output: 3 kernel_size: 3 pad: 1 stride: 2", (2, 3, 5, 4)),
        ("num_output: 6 kernel_h: 2 kernel_w: 3 dilation: 2 pad_h: 2 pad_w: 1 group: 3", (1, 3, 4, 5)),
        ("num_output: 2 kernel_size: 2 bias_term: false", (3, 2, 7)),
        ("num_output: 1 kernel_size: 2", (2, 1, 3, 4)),
    ],
)
def test_gradient(inside: str, shape: tuple[int, ...]) -> None:
    LayerCase(text(inside), normal(*shape)).check_gradient()


def test_second_reshape_and_an_empty_batch() -> None:
    case = LayerCase(text("num_output: 3 kernel_size: 2"), normal(2, 3, 4, 5))
    case.bottom[0].reshape(1, 3, 6, 7)
    assert case.forward()[0].shape == (1, 3, 5, 6)
    case.bottom[0].reshape(0, 3, 6, 7)
    assert case.forward()[0].shape == (0, 3, 5, 6)
    assert case.backward(np.zeros((0, 3, 5, 6)))[0].shape == (0, 3, 6, 7)
    assert not case.layer.blobs[0].diff.any()


def test_errors() -> None:
    x = normal(2, 3, 4, 5)
    with pytest.raises(LayerError, match="group is the number of channels, 3, here; got 2"):
        LayerCase(text("num_output: 3 kernel_size: 2 group: 2"), x)
    with pytest.raises(LayerError, match=r"num_output \(4\) must be divisible by group \(3\)"):
        LayerCase(text("num_output: 4 kernel_size: 2"), x)
