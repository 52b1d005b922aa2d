"""ChannelScale."""

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
    case = LayerCase('type: "ChannelScale"', [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]], [[10.0, 100.0]])
    assert case.forward()[0].tolist() == [[[10, 200], [30, 400], [50, 600]]]
    dx, ds = case.backward(np.array([[[1.0, 1.0], [0.0, 2.0], [1.0, 0.0]]]))
    assert dx.tolist() == [[[10, 100], [0, 200], [10, 0]]]
    assert ds.tolist() == [[6, 2 + 8]]


@pytest.mark.parametrize("scale", [(2, 4, 5), (2, 1, 4, 5)])
def test_gradient(scale: tuple[int, ...]) -> None:
    LayerCase('type: "ChannelScale"', normal(2, 3, 4, 5), normal(*scale)).check_gradient()


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5))
def test_it_is_spatial_product(n: int, channels: int, width: int) -> None:
    x, s = normal(n, channels, 2, width), normal(n, 1, 2, width)
    one, other = (LayerCase(f'type: "{kind}"', x, s).forward()[0] for kind in ("ChannelScale", "SpatialProduct"))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ('type: "ChannelScale"', [(2, 3, 4, 5), (2, 1, 5, 5)], "x \\(N, C, ...\\) and s \\(N, ...\\) are needed"),
        ('type: "ChannelScale" channel_scale_param { global_scale: true }', [(2, 3, 4), (2, 4)], "global_scale is not built"),
        ('type: "ChannelScale" channel_scale_param { do_forward: false }', [(2, 3, 4), (2, 4)], "must be true"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
