"""Deconvolution3D."""

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


TEXT = 'type: "Deconvolution3D" convolution3d_param {{ num_output: {} {} weight_filler {{ type: "gaussian" std: 1 }} }}'


def test_by_hand() -> None:
    case = LayerCase(
        'type: "Deconvolution3D" convolution3d_param { num_output: 1 kernel_size: 1 kernel_depth: 2 }',
        np.array([1.0, 2.0]).reshape(1, 1, 2, 1, 1),
    )
    case.layer.blobs[0].data[...] = np.array([1.0, 10.0]).reshape(1, 1, 2, 1, 1)
    assert case.forward()[0].ravel().tolist() == [1, 12, 20]
    assert case.backward(np.ones((1, 1, 3, 1, 1)))[0].ravel().tolist() == [11, 11]


@pytest.mark.parametrize(
    "param", ["kernel_size: 2 kernel_depth: 3", "kernel_size: 3 kernel_depth: 2 stride: 2 temporal_stride: 2 pad: 1"]
)
def test_gradient(param: str) -> None:
    LayerCase(TEXT.format(2, param), normal(2, 3, 2, 3, 4)).check_gradient()


@given(st.integers(1, 2), st.integers(1, 2), st.integers(1, 3))
def test_it_is_the_transpose_of_convolution3d(stride: int, depth: int, size: int) -> None:
    """<conv x, y> = <x, deconv y>, with the same weights and no bias."""
    param = f"kernel_size: {size} kernel_depth: {depth} stride: {stride} temporal_stride: {stride} bias_term: false"
    y = normal(1, 2, 2, 3, 2)
    turned = LayerCase(TEXT.format(3, param), y)
    (x,) = turned.forward()
    other = normal(*x.shape)
    case = LayerCase(TEXT.format(2, param).replace("Deconv", "Conv"), other)
    case.layer.blobs[0].data[...] = turned.layer.blobs[0].data
    np.testing.assert_allclose((case.forward()[0] * y).sum(), (other * x).sum(), rtol=1e-9)


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (TEXT.format(2, "kernel_size: 2 kernel_depth: 2"), [(2, 3, 4, 5)], "x must be \\(N, C, L, H, W\\)"),
        (TEXT.format(2, "kernel_size: 1 kernel_depth: 1 pad: 3"), [(2, 4, 4, 5, 6)], "nothing is left"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
