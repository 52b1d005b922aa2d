"""Resample."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase, check_a_second_reshape
from peak import assert_too_large, traced_peak

from minicaffe.errors import LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


TEXT = 'type: "Resample" resample_param {{ height: {} width: {} type: {} }}'


def test_by_hand() -> None:
    """Twice the size: places -1/4, 1/4, 3/4 and 5/4."""
    x = np.array([[[[0.0, 4.0], [0.0, 4.0]]]])
    (y,) = LayerCase(TEXT.format(4, 4, "LINEAR"), x).forward()
    np.testing.assert_allclose(y[0, 0], [[0, 1, 3, 4]] * 4)
    (y,) = LayerCase(TEXT.format(4, 4, "NEAREST"), x).forward()
    np.testing.assert_allclose(y[0, 0], [[0, 0, 4, 4]] * 4)


def test_antialias_means_over_more_pixels() -> None:
    x = np.array([[[[0.0, 8.0, 0.0, 8.0], [0.0, 8.0, 0.0, 8.0]]]]).repeat(2, axis=2)
    (smooth,) = LayerCase(TEXT.format(2, 2, "LINEAR"), x).forward()
    (rough,) = LayerCase(TEXT.format(2, 2, "LINEAR antialias: false"), x).forward()
    np.testing.assert_allclose(rough[0, 0], [[4, 4], [4, 4]])
    np.testing.assert_allclose(smooth[0, 0], [[8 * 3 / 7, 8 * 4 / 7]] * 2, rtol=1e-6)  # 3, 3 and 1 eighths of three pixels


@pytest.mark.parametrize("kind", ["NEAREST", "LINEAR", "CUBIC"])
@pytest.mark.parametrize("size", [(7, 9), (3, 2), (6, 3)])
def test_gradient(kind: str, size: tuple[int, int]) -> None:
    LayerCase(TEXT.format(*size, kind), normal(2, 3, 4, 5)).check_gradient()


def test_the_size_of_a_second_bottom() -> None:
    case = LayerCase('type: "Resample"', normal(2, 3, 4, 5), normal(1, 1, 6, 7))
    assert case.forward()[0].shape == (2, 3, 6, 7)
    assert not case.backward(normal(2, 3, 6, 7))[1].any()


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from(["NEAREST", "LINEAR", "CUBIC"]))
def test_a_constant_stays(height: int, width: int, kind: str) -> None:
    """One scale for both axes: with two, the original's places may lie beyond the filter's reach."""
    (y,) = LayerCase(TEXT.format(2 * height, 2 * width, kind), np.full((1, 2, height, width), 2.5)).forward()
    np.testing.assert_allclose(y, np.full((1, 2, 2 * height, 2 * width), 2.5), rtol=1e-6)


def resample(inside: str) -> LayerCase:
    return LayerCase(f'type: "Resample" resample_param {{ {inside} }}', np.ones((1, 1, 5, 4)))


@pytest.mark.parametrize("inside", ["height: 2000000 width: 9", "height: 500000 width: 1"])
def test_sizes_are_checked_before_memory_is_taken(inside: str) -> None:
    assert_too_large(lambda: resample(inside))


def test_a_second_reshape() -> None:
    check_a_second_reshape('type: "Resample" resample_param { height: 7 width: 9 }', lambda case: case.layer.filters)


def test_memory_is_taken_in_forward() -> None:
    assert traced_peak(lambda: resample("height: 500000 width: 9")) < 2**20


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (TEXT.format(2, 3, "AREA"), [(2, 3, 4, 5)], "AREA is not built"),
        (TEXT.format(0, 3, "LINEAR"), [(2, 3, 4, 5)], "needs height > 0 and width > 0, or a second bottom"),
        (TEXT.format(2, 3, "LINEAR"), [(2, 3, 4)], "must be \\(N, C, H, W\\) with pixels"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
