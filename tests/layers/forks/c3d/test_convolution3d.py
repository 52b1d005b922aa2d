"""Convolution3D."""

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


TEXT = 'type: "Convolution3D" convolution3d_param {{ num_output: {} {} weight_filler {{ type: "gaussian" std: 1 }} }}'


def test_by_hand() -> None:
    case = LayerCase(
        'type: "Convolution3D" convolution3d_param { num_output: 1 kernel_size: 1 kernel_depth: 2 }',
        np.arange(6.0).reshape(1, 1, 3, 1, 2),
    )
    case.layer.blobs[0].data[...] = np.array([1.0, 10.0]).reshape(1, 1, 2, 1, 1)
    case.layer.blobs[1].data[...] = 0.5
    assert case.forward()[0].tolist() == [[[[[20.5, 31.5]], [[42.5, 53.5]]]]]
    assert case.backward(np.ones((1, 1, 2, 1, 2)))[0].tolist() == [[[[[1, 1]], [[11, 11]], [[10, 10]]]]]


@pytest.mark.parametrize(
    ("param", "shape"),
    [
        ("kernel_size: 2 kernel_depth: 3", (1, 2, 3, 4, 5)),
        ("kernel_size: 3 kernel_depth: 2 stride: 2 temporal_stride: 2 pad: 1 temporal_pad: 1", (2, 3, 4, 5, 6)),
        ("kernel_size: 2 kernel_depth: 1 bias_term: false", (1, 3, 2, 4, 5)),
    ],
)
def test_gradient(param: str, shape: tuple[int, ...]) -> None:
    LayerCase(TEXT.format(2, param), normal(*shape)).check_gradient()


@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.integers(0, 1))
def test_it_is_a_convolution(outputs: int, depth: int, size: int, pad: int) -> None:
    x = normal(2, 2, 3, 4, 5)
    case = LayerCase(TEXT.format(outputs, f"kernel_size: {size} kernel_depth: {depth} pad: {pad} temporal_pad: {pad}"), x)
    kernel = f"kernel_size: {depth} kernel_size: {size} kernel_size: {size} pad: {pad}"
    other = LayerCase(f'type: "Convolution" convolution_param {{ num_output: {outputs} {kernel} }}', x)
    other.layer.blobs[0].data[...] = case.layer.blobs[0].data
    np.testing.assert_array_equal(case.forward()[0], other.forward()[0])


def test_the_biases_shape() -> None:
    assert LayerCase(TEXT.format(4, "kernel_size: 2 kernel_depth: 2"), normal(1, 2, 3, 4, 5)).layer.blobs[1].shape == (
        1,
        1,
        1,
        1,
        4,
    )


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (TEXT.format(2, "kernel_size: 2 kernel_depth: 2"), [(2, 3, 4, 5)], "x must be \\(N, C, L, H, W\\)"),
        (
            TEXT.format(2, "kernel_size: 2"),
            [(2, 3, 4, 5, 6)],
            "kernel_depth, kernel_size, stride and temporal_stride must be at least 1",
        ),
        (TEXT.format(2, "kernel_size: 2 kernel_depth: 2 group: 2"), [(2, 4, 4, 5, 6)], "group must be 1, got 2"),
        (TEXT.format(0, "kernel_size: 2 kernel_depth: 2"), [(2, 4, 4, 5, 6)], "num_output must be > 0"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
