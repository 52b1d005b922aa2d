"""FlowWarp."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import kernels
from minicaffe.errors import LayerError
from minicaffe.layers.forks.flownet import flow_warp

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


TEXT = 'type: "FlowWarp" flow_warp_param {{ fill_value: {} }}'


def test_by_hand() -> None:
    x = np.array([[[[0.0, 10.0, 20.0], [30.0, 40.0, 50.0]]]])
    flow = np.zeros((1, 2, 2, 3))
    flow[0, 0, 0] = 0.5, -1, 3  # right: between two pixels, one to the left, outside
    flow[0, 1, 1] = -0.25, 0.5, np.nan  # down: a quarter up, past the last row, unknown
    case = LayerCase(TEXT.format("ZERO"), x, flow)
    assert case.forward()[0].tolist() == [[[[5, 0, 0], [22.5, 40, 0]]]]
    dx, dflow = case.backward(np.ones((1, 1, 2, 3)))
    assert dx.tolist() == [[[[0.5 + 1 + 0.25, 0.5, 0], [0.75, 1, 0]]]]
    assert dflow[0, 0].tolist() == [[10, 10, 0], [10, 10, 0]] and dflow[0, 1].tolist() == [[30, 30, 0], [30, 0, 0]]
    assert np.isnan(LayerCase(TEXT.format("NOT_A_NUMBER"), x, flow).forward()[0][0, 0, 0, 2])


def test_gradient() -> None:
    flow = np.random.default_rng(3).uniform(-2, 2, (2, 2, 4, 5))
    flow += 0.1 * (np.abs(flow - flow.round()) < 0.05)  # away from the pixels, where the slope jumps
    LayerCase('type: "FlowWarp"', normal(2, 3, 4, 5), flow).check_gradient()


@given(st.integers(1, 3), st.integers(2, 5), st.integers(2, 5), st.integers(-2, 2), st.integers(-2, 2))
def test_a_whole_flow_moves_the_image(channels: int, height: int, width: int, right: int, down: int) -> None:
    x = normal(1, channels, height, width)
    flow = np.stack([np.full((height, width), float(right)), np.full((height, width), float(down))])[None]
    (y,) = LayerCase('type: "FlowWarp"', x, flow).forward()
    wanted = np.zeros_like(x)
    for i in range(height):
        for j in range(width):
            if 0 <= i + down < height and 0 <= j + right < width:
                wanted[..., i, j] = x[..., i + down, j + right]
    np.testing.assert_allclose(y, wanted, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_computes_what_the_definition_says(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places inside, past each edge and unknown, in blocks of which the last is shorter."""
    monkeypatch.setattr(flow_warp, "BLOCK", 11)
    x, dy, flow = normal(3, 6, 7).astype(dtype), normal(3, 6, 7).astype(dtype), (3 * normal(2, 6, 7)).astype(dtype)
    flow[0, 2, 3], flow[1, 4, 1] = np.nan, np.inf
    dy[:, 2, 3] = np.nan  # of a place that gives nothing
    y, dx, dflow = np.zeros_like(x), np.zeros((3, 42), dtype), np.zeros_like(flow)
    flow_warp.warp_by_definition(x.reshape(3, 42), flow, (0, 6), dtype(0), y)
    flow_warp.warp_backward_by_definition(dy, flow, (0, 3), dx)
    flow_warp.flow_backward_by_definition((x.reshape(3, 42), dy), flow, (0, 6), dflow)
    with kernels.using("numpy"):
        case = LayerCase('type: "FlowWarp"', x[None], flow[None], dtype=dtype)
        np.testing.assert_allclose(case.forward()[0][0], y, atol=1e-5)
        found = case.backward(dy[None])
    np.testing.assert_allclose(found[0][0].reshape(3, 42), dx, atol=1e-5)
    np.testing.assert_allclose(found[1][0], dflow, atol=1e-4)
    assert 5 < (dflow[0] == 0).sum() < 37


def test_no_gradient_where_none_is_asked_for() -> None:
    case = LayerCase('type: "FlowWarp"', normal(1, 2, 3, 4), np.full((1, 2, 3, 4), 0.3))
    case.forward()
    for blob in case.bottom:
        blob.diff[...] = 7
    assert all((diff == 7).all() for diff in case.backward(np.ones((1, 2, 3, 4)), propagate_down=[False, False]))


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ('type: "FlowWarp"', [(2, 3, 4), (2, 2, 4)], "x must be \\(N, C, H, W\\)"),
        ('type: "FlowWarp"', [(2, 3, 4, 5), (2, 3, 4, 5)], "the flow must be \\(2, 2, 4, 5\\)"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
