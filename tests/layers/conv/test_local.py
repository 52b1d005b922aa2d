"""Local."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


TEXT = 'type: "Local" local_param {{ {} weight_filler {{ type: "gaussian" std: 1 }} }}'


def test_by_hand() -> None:
    case = LayerCase(TEXT.format("num_output: 1 kernel_size: 1"), [[[[2.0, 3.0]], [[5.0, 7.0]]]])
    case.layer.blobs[0].data[...] = [[[[1, 10], [100, 1000]]]]
    case.layer.blobs[1].data[...] = [[[[0.5, 0.25]]]]
    assert case.forward()[0].tolist() == [[[[502.5, 7030.25]]]]
    assert case.backward(np.ones((1, 1, 1, 2)))[0].tolist() == [[[[1, 10]], [[100, 1000]]]]


@pytest.mark.parametrize(
    "param", ["num_output: 4 kernel_size: 3", "num_output: 2 kernel_size: 2 stride: 2 pad: 1 bias_term: false"]
)
def test_gradient(param: str) -> None:
    LayerCase(TEXT.format(param), normal(2, 3, 4, 5)).check_gradient()


@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 1))
def test_with_equal_kernels_it_is_a_convolution(outputs: int, kernel: int, pad: int) -> None:
    x = normal(2, 3, 4, 5)
    case = LayerCase(TEXT.format(f"num_output: {outputs} kernel_size: {kernel} pad: {pad} bias_term: false"), x)
    other = LayerCase(f'type: "Convolution" convolution_param {{ num_output: {outputs} kernel_size: {kernel} pad: {pad} }}', x)
    weight = normal(outputs, 3 * kernel * kernel)
    case.layer.blobs[0].data[...] = weight[:, None, :, None]
    other.layer.blobs[0].data[...] = weight.reshape(other.layer.blobs[0].shape)
    np.testing.assert_allclose(case.forward()[0], other.forward()[0], atol=1e-12)


def test_another_size_after_setup() -> None:
    case = LayerCase(TEXT.format("num_output: 2 kernel_size: 2"), normal(2, 3, 4, 5))
    case.bottom[0].reshape(2, 3, 5, 5)
    with pytest.raises(LayerError, match="was set up for maps of"):
        case.layer.reshape(case.bottom, case.top)


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (TEXT.format("num_output: 2 kernel_size: 2"), [(2, 3, 4)], "x must be \\(N, C, H, W\\)"),
        (TEXT.format("kernel_size: 2"), [(2, 3, 4, 5)], "num_output, kernel_size and stride must be at least 1"),
        (TEXT.format("num_output: 2 kernel_size: 5"), [(2, 3, 4, 5)], "does not fit 4 x 5"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
