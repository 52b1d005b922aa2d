"""Unpooling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import normal

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str) -> str:
    return f'type: "Unpooling" unpooling_param {{ {inside} }}'


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("inside", "y", "dx"),
    [
        ("kernel_size: 2 stride: 2 unpool_h: 1 unpool_w: 3", [3, 0, 8], [1, 4]),
        ("kernel_size: 2 stride: 3 unpool_h: 1 unpool_w: 3", [3, 0, 8], [1, 4]),
        ("unpool: AVE kernel_size: 2 stride: 1 unpool_h: 1 unpool_w: 3", [1.5, 5.5, 4], [1.5, 3]),
        ("unpool: AVE kernel_size: 2 stride: 2 unpool_h: 1 unpool_w: 3", [1.5, 1.5, 8], [1.5, 4]),
        ("unpool: TILE kernel_size: 2 stride: 1 unpool_h: 1 unpool_w: 3", [3, 11, 8], [3, 6]),
    ],
)
def test_by_hand(inside: str, y: list[float], dx: list[float], dtype: type) -> None:
    case = LayerCase(text(inside), [[[[3.0, 8.0]]]], dtype=dtype)
    for _ in range(2):  # nothing is left of an earlier forward
        assert case.forward()[0].ravel().tolist() == y
        assert case.backward(np.array([[[[1.0, 2.0, 4.0]]]]))[0].ravel().tolist() == dx


def test_a_mask_and_a_place_for_two() -> None:
    case = LayerCase(text("kernel_size: 2 unpool_size: 2"), [[[[1.0, 2.0, 3.0]]]], [[[[3.0, 1.0, 3.0]]]])
    assert case.forward()[0].ravel().tolist() == [0, 2, 0, 3]
    dx, dmask = case.backward(np.array([[[[1.0, 2.0], [3.0, 4.0]]]]))
    assert dx.ravel().tolist() == [0, 2, 4]
    assert not dmask.any()
    clipped = LayerCase(text("kernel_size: 1 stride: 4 unpool_size: 3"), normal(1, 1, 3, 3))
    assert np.flatnonzero(clipped.forward()[0]).tolist() == [0, 2, 6, 8]


SIZES = [
    "kernel_size: 3 stride: 2 unpool_h: 7 unpool_w: 9",
    "kernel_h: 2 kernel_w: 3 stride_h: 2 stride_w: 1 unpool_h: 4 unpool_w: 5",
    "kernel_size: 2 stride: 3 unpool_size: 5",
    "kernel_size: 9 unpool_size: 4",
]


@pytest.mark.parametrize("inside", SIZES)
@pytest.mark.parametrize("method", ["MAX", "AVE", "TILE"])
def test_gradient(method: str, inside: str) -> None:
    LayerCase(text(f"unpool: {method} {inside}"), normal(2, 2, 3, 4)).check_gradient()


def test_gradient_with_a_mask() -> None:
    mask = np.random.default_rng(2).integers(0, 20, (2, 2, 3, 4)).astype(float)
    LayerCase(text("kernel_size: 2 unpool_h: 4 unpool_w: 5"), normal(2, 2, 3, 4), mask).check_gradient()


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.data())
def test_ave_keeps_the_sum_and_tile_the_windows(h: int, w: int, kernel: int, stride: int, data: st.DataObject) -> None:
    """Where every window lies within the map; TILE is AVE of x times the window's size, and backward is the transpose."""
    height, width = ((n - 1) * stride + kernel + data.draw(st.integers(0, 2)) for n in (h, w))
    x, sizes = normal(2, 3, h, w), f"kernel_size: {kernel} stride: {stride} unpool_h: {height} unpool_w: {width}"
    ave, tile = (LayerCase(text(f"unpool: {method} {sizes}"), x) for method in ("AVE", "TILE"))
    y = ave.forward()[0]
    assert y.sum() == pytest.approx(x.sum())
    np.testing.assert_allclose(tile.forward()[0], y * kernel**2, rtol=1e-9, atol=1e-12)
    dy = normal(2, 3, height, width)
    assert (ave.backward(dy)[0] * x).sum() == pytest.approx((dy * y).sum())


@pytest.mark.parametrize("method", ["MAX", "AVE", "TILE"])
@pytest.mark.parametrize("shape", [(1, 3, 2, 5), (0, 3, 2, 5)])
def test_a_second_reshape(method: str, shape: tuple[int, ...]) -> None:
    case = LayerCase(text(f"unpool: {method} kernel_size: 1 stride: 2 unpool_h: 6 unpool_w: 11"), normal(2, 2, 3, 4))
    case.forward()
    x = normal(*shape)
    case.bottom[0].reshape(shape)
    case.bottom[0].data[...] = x
    wanted = np.zeros((*shape[:2], 6, 11))
    wanted[:, :, 0:4:2, 0:10:2] = x
    np.testing.assert_array_equal(case.forward()[0], wanted)
    assert case.backward(wanted)[0].shape == shape


def test_no_gradient_where_none_is_asked_for() -> None:
    for method in ("MAX", "AVE"):
        case = LayerCase(text(f"unpool: {method} kernel_size: 2 unpool_size: 5"), normal(1, 2, 3, 4))
        case.forward()
        case.bottom[0].diff[...] = 7
        assert (case.backward(np.ones((1, 2, 5, 5)), propagate_down=[False])[0] == 7).all()


@pytest.mark.parametrize("wrong", [4.0, -2.0, 0.5])
def test_an_index_that_the_top_does_not_have(wrong: float) -> None:
    case = LayerCase(text("kernel_size: 2 unpool_size: 2"), normal(1, 1, 1, 2), [[[[1.0, wrong]]]])
    with pytest.raises(LayerError, match=rf"{wrong:g} is not a whole number in \[0, 4\)"):
        case.forward()
        np.asarray(case.top[0].data)


@pytest.mark.parametrize(
    ("inside", "shapes", "message"),
    [
        ("unpool_size: 4", ((1, 1, 2, 2),), "kernel_size, or kernel_h and kernel_w, must be given and > 0"),
        ("kernel_size: 2", ((1, 1, 2, 2),), "unpool_size, or unpool_h and unpool_w, must be given and > 0"),
        ("kernel_size: 2 unpool_h: 4", ((1, 1, 2, 2),), "give unpool_size, or unpool_h and unpool_w"),
        (
            "kernel_size: 2 kernel_h: 2 kernel_w: 2 unpool_size: 4",
            ((1, 1, 2, 2),),
            "give kernel_size, or kernel_h and kernel_w",
        ),
        ("kernel_size: 2 unpool_size: 4 stride: 0", ((1, 1, 2, 2),), "stride, or stride_h and stride_w, must be given and > 0"),
        ("kernel_size: 2 unpool_size: 4 pad: 1", ((1, 1, 2, 2),), "pad must be 0"),
        ("kernel_size: 2 unpool_size: 4", ((2, 2),), r"one shape of 4 axes \(N, C, H, W\), got \(2, 2\)"),
        ("kernel_size: 2 unpool_size: 4", ((1, 1, 2, 2), (1, 1, 2, 3)), "one shape of 4 axes"),
    ],
)
def test_errors(inside: str, shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text(inside), *(np.zeros(shape) for shape in shapes))
