"""Warp."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]
TEXT = 'type: "Warp"'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def by_definition(x: np.ndarray, flow: np.ndarray) -> np.ndarray:
    """The kernel of PWC-Net, pixel by pixel."""
    y = np.zeros_like(x)
    height, width = x.shape[2:]
    for n, i, j in np.ndindex(len(x), height, width):
        at_x, at_y = j + flow[n, 0, i, j], i + flow[n, 1, i, j]
        if 0 <= at_x <= width - 1 and 0 <= at_y <= height - 1:
            left, above = int(at_x), int(at_y)
            right, below = int(np.ceil(at_x)), int(np.ceil(at_y))
            upper = x[n, :, above, left] * (1 - at_x + left) + x[n, :, above, right] * (at_x - left)
            lower = x[n, :, below, left] * (1 - at_x + left) + x[n, :, below, right] * (at_x - left)
            y[n, :, i, j] = upper * (1 - at_y + above) + lower * (at_y - above)
    return y


def test_by_hand() -> None:
    x = np.array([[[[0.0, 10.0, 20.0], [30.0, 40.0, 50.0]]]])
    flow = np.zeros((1, 2, 2, 3))
    flow[0, 0, 0] = 0.5, 1, 0.25  # between two pixels, to the last one, past it
    flow[0, 1, 1] = -0.25, 0.5, np.nan  # a quarter up, past the last row, unknown
    case = LayerCase(TEXT, x, flow)
    assert case.forward()[0].tolist() == [[[[5, 20, 0], [22.5, 0, 0]]]]
    dx, dflow = case.backward(np.ones((1, 1, 2, 3)))
    assert dx.tolist() == [[[[0.5 + 0.25, 0.5, 1], [0.75, 0, 0]]]]
    assert dflow[0, :, 0, 0].tolist() == [10, 30] and not dflow[0, :, 0, 2].any() and not dflow[0, :, 1, 1].any()
    assert np.isnan(case.bottom[1].data[0, 1, 1, 2]), "the flow itself is left alone"


@given(st.integers(1, 2), st.integers(2, 4), st.integers(2, 5))
def test_by_definition(channels: int, height: int, width: int) -> None:
    flow = 2 * normal(2, 2, height, width)
    (y,) = LayerCase(TEXT, normal(2, channels, height, width), flow).forward()
    np.testing.assert_allclose(y, by_definition(normal(2, channels, height, width), flow), atol=1e-12)


def test_gradient() -> None:
    flow = np.random.default_rng(3).uniform(-2, 2, (2, 2, 4, 5))
    flow += 0.1 * (np.abs(flow - flow.round()) < 0.05)  # away from the pixels, where the slope jumps
    LayerCase(TEXT, normal(2, 3, 4, 5), flow).check_gradient()


def test_a_second_reshape_and_errors() -> None:
    case = LayerCase(TEXT, normal(1, 2, 3, 4), np.zeros((1, 2, 3, 4)))
    for blob, shape in zip(case.bottom, ((2, 3, 4, 2), (2, 2, 4, 2)), strict=True):
        blob.reshape(shape)
        blob.data[...] = 0 if blob is case.bottom[1] else 5
    assert (case.forward()[0] == 5).all()
    with pytest.raises(
        LayerError, match=r"the flow must be \(1, 2, 3, 4\): right and down for each pixel, got shape \(1, 2, 3, 5\)"
    ):
        LayerCase(TEXT, normal(1, 2, 3, 4), np.zeros((1, 2, 3, 5)))
    with pytest.raises(LayerError, match=r"x must be \(N, C, H, W\)"):
        LayerCase(TEXT, normal(2, 3), np.zeros((1, 2, 3, 5)))
