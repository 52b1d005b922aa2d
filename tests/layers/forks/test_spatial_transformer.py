"""SpatialTransformer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from peak import assert_too_large, traced_peak

from minicaffe.errors import LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def test_by_hand() -> None:
    """The identity; half a pixel to the right; and beyond the border, where pixels count as 0."""
    u = np.array([[[[0.0, 4.0], [8.0, 12.0]]]])
    case = LayerCase('type: "SpatialTransformer"', u, [[1.0, 0, 0, 0, 1, 0]])
    np.testing.assert_array_equal(case.forward()[0], u)
    case = LayerCase('type: "SpatialTransformer"', u, [[1.0, 0, 0, 0, 1, 0.5]])
    assert case.forward()[0].tolist() == [[[[2, 2], [10, 6]]]]
    du, dtheta = case.backward(np.ones((1, 1, 2, 2)))
    assert du.tolist() == [[[[0.5, 1], [0.5, 1]]]]
    # columns: slopes 4, -4, 4, -12, times W / 2 = 1 and the grid's -1, 0 and 1
    assert dtheta[0, 3:].tolist() == [0, -8, -8]


def test_to_compute_du() -> None:
    case = LayerCase('type: "SpatialTransformer" st_param { to_compute_dU: false }', normal(1, 2, 3, 4), [[1.0, 0, 0, 0, 1, 0]])
    case.forward()
    case.bottom[0].diff[...] = 7
    du, dtheta = case.backward(np.ones((1, 2, 3, 4)))
    assert not du.any() and dtheta.any()


@pytest.mark.parametrize("param", ["", "output_H: 3 output_W: 7", "theta_1_2: 0.1 theta_2_1: -0.2"])
def test_gradient(param: str) -> None:
    theta = np.array([[0.83, 0.11, 0.07, -0.13, 0.91, 0.05], [1.17, -0.21, -0.09, 0.19, 0.73, 0.31]])
    if "theta" in param:
        theta = theta[:, [0, 2, 4, 5]]
    LayerCase(f'type: "SpatialTransformer" st_param {{ {param} }}', normal(2, 3, 4, 5), theta).check_gradient()


@given(st.integers(1, 2), st.integers(2, 5), st.integers(2, 5), st.integers(-2, 2), st.integers(-2, 2))
def test_whole_moves(channels: int, height: int, width: int, down: int, right: int) -> None:
    u = normal(1, channels, height, width)
    theta = [[1.0, 0, 2 * down / height, 0, 1, 2 * right / width]]
    (v,) = LayerCase('type: "SpatialTransformer"', u, theta).forward()
    around = np.pad(u, ((0, 0), (0, 0), (2, 2), (2, 2)))
    wanted = around[:, :, 2 + down : 2 + down + height, 2 + right : 2 + right + width]
    np.testing.assert_allclose(v, wanted, atol=1e-9)


def test_a_fixed_number_beyond_float32_is_far_away() -> None:
    case = LayerCase(
        'type: "SpatialTransformer" st_param { theta_2_3: 1e308 }', np.ones((1, 2, 3, 4)), np.ones((1, 5)), dtype=np.float32
    )
    assert not case.forward()[0].any()


def test_far_away_and_unknown_places_are_zero() -> None:
    for theta in ([[1e30, 0, 0, 0, 1, 0]], [[np.nan] * 6]):
        case = LayerCase('type: "SpatialTransformer"', normal(1, 2, 3, 4), theta)
        assert not case.forward()[0][:, :, 0].any()
        assert not case.backward(np.ones((1, 2, 3, 4)))[0][:, :, 0].any()


def transformer(inside: str) -> LayerCase:
    return LayerCase(f'type: "SpatialTransformer" st_param {{ {inside} }}', np.ones((1, 1, 4, 5)), [[1.0, 0, 0, 0, 1, 0]])


@pytest.mark.parametrize("inside", ["output_W: 1000000", "output_H: 1000000"])
def test_sizes_are_checked_before_memory_is_taken(inside: str) -> None:
    assert_too_large(lambda: transformer(inside))


def test_memory_is_taken_in_forward() -> None:
    assert traced_peak(lambda: transformer("output_W: 1000000")) < 2**20


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ('type: "SpatialTransformer"', [(2, 3, 4), (2, 6)], "U must be \\(N, C, H, W\\)"),
        ('type: "SpatialTransformer"', [(2, 3, 4, 5), (2, 5)], "theta must have 6 numbers for each of 2 images"),
        ('type: "SpatialTransformer" st_param { theta_1_1: 1 }', [(2, 3, 4, 5), (2, 6)], "theta must have 5 numbers"),
        ('type: "SpatialTransformer" st_param { theta_1_2: nan }', [(2, 3, 4, 5), (2, 6)], "theta_1_2 must be finite, got nan"),
        ('type: "SpatialTransformer" st_param { output_H: 0 }', [(2, 3, 4, 5), (2, 6)], "must be at least 1"),
        (
            'type: "SpatialTransformer" st_param { sampler_type: "cubic" }',
            [(2, 3, 4, 5), (2, 6)],
            "sampler_type must be bilinear",
        ),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
