"""Downsample."""

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


TEXT = 'type: "Downsample" downsample_param {{ top_height: {} top_width: {} }}'


def test_by_hand() -> None:
    """Places 0, 2 and 4 of 5, each with its neighbours at half the weight."""
    x = np.array([[[[1.0, 3.0, 5.0, 7.0, 9.0], [1.0, 3.0, 5.0, 7.0, 9.0]]]])
    (y,) = LayerCase(TEXT.format(2, 3), x).forward()
    np.testing.assert_allclose(y[0, 0], [[(1 + 1.5) / 1.5, 5, (9 + 3.5) / 1.5]] * 2)


def test_unknown_pixels_do_not_count() -> None:
    x = np.array([[[[1.0, np.nan, 5.0, 7.0, 9.0], [1.0, np.nan, 5.0, 7.0, 9.0]]]])
    (y,) = LayerCase(TEXT.format(2, 3), x).forward()
    np.testing.assert_allclose(y[0, 0], [[1, (5 + 3.5) / 1.5, (9 + 3.5) / 1.5]] * 2)
    x[..., 0] = np.nan
    assert np.isnan(LayerCase(TEXT.format(2, 3), x).forward()[0][0, 0]).tolist() == [[True, False, False]] * 2


def test_its_own_size_and_that_of_a_map() -> None:
    x = normal(2, 3, 4, 5)
    np.testing.assert_array_equal(LayerCase(TEXT.format(4, 5), x).forward()[0], x)
    assert LayerCase('type: "Downsample"', x, normal(1, 1, 2, 3)).forward()[0].shape == (2, 3, 2, 3)


@given(st.integers(2, 5), st.integers(2, 5), st.integers(0, 6), st.integers(0, 6))
def test_a_constant_stays(height: int, width: int, down: int, right: int) -> None:
    (y,) = LayerCase(TEXT.format(height, width), np.full((1, 2, height + down, width + right), 3.5)).forward()
    np.testing.assert_allclose(y, np.full((1, 2, height, width), 3.5), rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        (TEXT.format(2, 3), [(2, 3, 4)], "must be \\(N, C, H, W\\) with pixels"),
        (TEXT.format(1, 3), [(2, 3, 4, 5)], "from 2 x 2 to the map's 4 x 5"),
        (TEXT.format(4, 6), [(2, 3, 4, 5)], "from 2 x 2 to the map's 4 x 5"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
