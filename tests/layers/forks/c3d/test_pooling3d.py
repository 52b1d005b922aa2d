"""Pooling3D."""

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


TEXT = 'type: "Pooling3D" pooling3d_param {{ {} }}'
TWO = "kernel_size: 2 kernel_depth: 2 stride: 2 temporal_stride: 2"


def test_by_hand() -> None:
    """Three frames of 1 x 3 pixels: the second window has one frame, the second column one pixel."""
    x = np.array([[1.0, 5.0, 2.0], [4.0, 5.0, 3.0], [7.0, 6.0, 9.0]]).reshape(1, 1, 3, 1, 3)
    param = "kernel_size: 1 kernel_depth: 2 stride: 1 temporal_stride: 2"
    case = LayerCase(TEXT.format(param), x)
    assert case.forward()[0].reshape(2, 3).tolist() == [[4, 5, 3], [7, 6, 9]]
    assert case.backward(np.ones((1, 1, 2, 1, 3)))[0].reshape(3, 3).tolist() == [[0, 1, 0], [1, 0, 1], [1, 1, 1]]
    case = LayerCase(TEXT.format("pool: AVE " + param), x)
    assert case.forward()[0].reshape(2, 3).tolist() == [[2.5, 5, 2.5], [7, 6, 9]]
    assert case.backward(np.ones((1, 1, 2, 1, 3)))[0].reshape(3, 3).tolist() == [[0.5] * 3, [0.5] * 3, [1] * 3]


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@pytest.mark.parametrize(
    ("param", "shape"),
    [
        (TWO, (1, 2, 4, 5, 7)),
        ("kernel_size: 1 kernel_depth: 1 stride: 3 temporal_stride: 3", (1, 2, 4, 5, 7)),
        pytest.param("kernel_size: 3 kernel_depth: 2 stride: 2 temporal_stride: 1", (2, 3, 4, 5, 7), marks=pytest.mark.slow),
    ],
)
def test_gradient(pool: str, param: str, shape: tuple[int, ...]) -> None:
    LayerCase(TEXT.format(f"pool: {pool} {param}"), normal(*shape)).check_gradient()


def test_a_later_layer_may_overwrite_the_top() -> None:
    case = LayerCase(TEXT.format(TWO), normal(1, 2, 4, 5, 7))
    (y,) = case.forward()
    wanted = case.backward(normal(*y.shape))[0].copy()
    case.top[0].data[...] *= 2  # as Power does in place
    assert wanted.any() and np.array_equal(case.backward(normal(*y.shape))[0], wanted)


@pytest.mark.parametrize("pool", ["MAX", "AVE"])
@given(st.integers(1, 3), st.integers(1, 3), st.integers(3, 6), st.integers(3, 6))
def test_one_frame_at_a_time_it_is_pooling(pool: str, kernel: int, stride: int, height: int, width: int) -> None:
    x = normal(2, 3, 4, height, width)
    (y,) = LayerCase(TEXT.format(f"pool: {pool} kernel_size: {kernel} stride: {stride} kernel_depth: 1"), x).forward()
    frames = x.transpose(0, 2, 1, 3, 4).reshape(8, 3, height, width)
    if (height - kernel) % stride and -(-(height - kernel) // stride) * stride >= height:
        return  # BVLC's last window would begin past the map
    if (width - kernel) % stride and -(-(width - kernel) // stride) * stride >= width:
        return
    (flat,) = LayerCase(
        f'type: "Pooling" pooling_param {{ pool: {pool} kernel_size: {kernel} stride: {stride} }}', frames
    ).forward()
    np.testing.assert_allclose(y.transpose(0, 2, 1, 3, 4).reshape(flat.shape), flat, rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (TEXT.format(TWO), [(2, 3, 4, 5)], "x must be \\(N, C, L, H, W\\)"),
        (TEXT.format("kernel_size: 2"), [(2, 3, 4, 5, 6)], "must be at least 1"),
        (TEXT.format(TWO + " pad: 1"), [(2, 3, 4, 5, 6)], "pad must be 0, got 1"),
        (TEXT.format(TWO + " pad_l: 2"), [(2, 3, 4, 5, 6)], "pad_l must be 0, got 2"),
        (TEXT.format(TWO + " pool: STOCHASTIC"), [(2, 3, 4, 5, 6)], "STOCHASTIC is not built"),
        (TEXT.format(TWO), [(2, 3, 1, 5, 6)], "does not fit a clip of"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
