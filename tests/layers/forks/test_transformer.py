"""Transformer."""

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


def test_by_hand() -> None:
    """The identity; half a pixel to the right, where the last column would be outside."""
    x = np.array([[[[0.0, 4.0], [8.0, 12.0]]]])
    np.testing.assert_array_equal(LayerCase('type: "Transformer"', x, [[1.0, 0, 0, 0, 1, 0]]).forward()[0], x)
    case = LayerCase('type: "Transformer"', x, [[1.0, 0, 0, 0, 1, 0.5]])
    assert case.forward()[0].tolist() == [[[[2, 0], [10, 0]]]]
    assert case.backward(np.ones((1, 1, 2, 2)))[0].tolist() == [[[[0.5, 0.5], [0.5, 0.5]]]]


@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (2, 3, 4, 5)])
def test_gradient(shape: tuple[int, ...]) -> None:
    theta = np.array([[0.83, 0.11, 0.07, -0.13, 0.91, 0.05], [0.77, -0.21, -0.09, 0.19, 0.73, 0.01]])
    LayerCase('type: "Transformer"', normal(*shape), theta).check_gradient()


@given(st.integers(2, 5), st.integers(1, 3))
def test_inside_it_is_the_spatial_transformer(size: int, channels: int) -> None:
    """On square maps, at the places that all four pixels are around."""
    x, theta = normal(1, channels, size, size), [[0.4, 0.1, -0.3, -0.1, 0.3, -0.4]]
    (one,), (other,) = (LayerCase(f'type: "{kind}"', x, theta).forward() for kind in ("Transformer", "SpatialTransformer"))
    inside = one != 0
    assert inside.any()
    np.testing.assert_allclose(one[inside], other[inside], atol=1e-12)


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ('type: "Transformer"', [(2, 3, 4, 5), (2, 5)], "theta \\(N, 6\\) are needed"),
        ('type: "Transformer"', [(2, 3, 5, 4), (2, 6)], "must not be higher than wide"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
