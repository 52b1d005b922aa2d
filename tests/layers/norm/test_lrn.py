"""LRN."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import check_gradient, kernels
from minicaffe.compiled import lrn as loops_of_lrn
from minicaffe.errors import LayerError
from minicaffe.layers.norm import lrn
from minicaffe.layers.norm.lrn import powered, window_sum
from minicaffe.threads import Scratch

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str) -> str:
    return f'type: "LRN" lrn_param {{ {inside} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def test_across_by_hand() -> None:
    """Channels 1, 2, 3 in threes: sums of squares 5, 14, 13; scale 1 + 3 / 3 of them."""
    case = LayerCase(text("local_size: 3 alpha: 3 beta: 1"), np.array([1.0, 2, 3]).reshape(1, 3, 1, 1))
    np.testing.assert_allclose(case.forward()[0].ravel(), [1 / 6, 2 / 15, 3 / 14])


def test_within_by_hand() -> None:
    """k is not looked at; the divisor is 9 at the edge too."""
    case = LayerCase(
        text("local_size: 3 alpha: 9 beta: 0.5 k: 7 norm_region: WITHIN_CHANNEL"), np.array([1.0, 2, 3]).reshape(1, 1, 1, 3)
    )
    np.testing.assert_allclose(case.forward()[0].ravel(), np.array([1, 2, 3]) / np.sqrt([6, 15, 14]))


@pytest.mark.parametrize("case", cases("LRN"))
def test_golden(case: str) -> None:
    assert run_case(case) == 2


@given(st.sampled_from([1, 3, 5, 9]), st.floats(0.1, 2), st.sampled_from([0.5, 0.75, 1.0]), st.floats(0.5, 3), st.booleans())
def test_agrees_with_loops(size: int, alpha: float, beta: float, k: float, within: bool) -> None:
    x = normal(2, 7, 3, 4)
    half, scale = size // 2, np.zeros(x.shape)
    for n, c, h, w in np.ndindex(x.shape):
        if within:
            around = x[n, c, max(h - half, 0) : h + half + 1, max(w - half, 0) : w + half + 1]
            scale[n, c, h, w] = 1 + alpha / size**2 * (around**2).sum()
        else:
            scale[n, c, h, w] = k + alpha / size * (x[n, max(c - half, 0) : c + half + 1, h, w] ** 2).sum()
    region = "WITHIN_CHANNEL" if within else "ACROSS_CHANNELS"
    case = LayerCase(text(f"local_size: {size} alpha: {alpha} beta: {beta} k: {k} norm_region: {region}"), x)
    np.testing.assert_allclose(case.forward()[0], x * scale**-beta, rtol=1e-6)


@pytest.mark.parametrize("way", ["numpy", pytest.param("numba", marks=pytest.mark.slow)])
@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
@pytest.mark.parametrize("inside", ["", "local_size: 3 alpha: 0.5 beta: 0.6 k: 2", "local_size: 9"])
def test_gradient(region: str, inside: str, way: str) -> None:
    """To compile the loops for float64 takes long; those of float32 compute what NumPy does, see below."""
    with kernels.using(way):
        check_gradient(text(f"norm_region: {region} {inside}"), normal(2, 5, 3, 4))


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", [1, 3, 5, 15])
@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
def test_numpy_computes_what_the_loops_say(region: str, size: int, dtype: type) -> None:
    """Also where numbers are not finite, and compiled where Numba is installed, which takes long for float64."""
    x, dy = (normal(2, 7, 3, 11).astype(dtype) for _ in range(2))
    x[0, 3, 1, 2], x[1, 2, 0, 5], dy[1, 5, 2, 2] = np.nan, np.inf, -np.inf
    case = LayerCase(text(f"local_size: {size} alpha: 3 k: 2 norm_region: {region}"), x, dtype=dtype)
    room, constants = np.empty((8, loops_of_lrn.STRIP), dtype), (dtype(3 / size), dtype(2))
    y, dx = np.empty((2, 7, 33), dtype), np.empty((2, 7, 33), dtype)
    flat, flat_dy = x.reshape(y.shape), dy.reshape(y.shape)
    with np.errstate(invalid="ignore"):
        with kernels.using("numpy"):
            ways = [[case.forward()[0], case.backward(dy)[0]]]
            if region == "WITHIN_CHANNEL":
                maps, of_dy, to, to_dx = (array.reshape(14, 3, 11) for array in (x, dy, y, dx))
                room, constants = np.full((size + 2, 10 + size), np.nan, dtype), (dtype(3 / size**2), dtype(1))
                loops_of_lrn.maps_forward(maps, size, constants, to, room)
                room[...] = np.nan
                loops_of_lrn.maps_backward((maps, of_dy), size, constants, to_dx, room)
            for image in range(2 if region == "ACROSS_CHANNELS" else 0):
                for part in ((0, 20), (20, 33)):
                    loops_of_lrn.strips_forward(flat[image], part, size, constants, y[image], room)
                    loops_of_lrn.strips_backward((flat[image], flat_dy[image]), part, size, constants, dx[image], room)
        with kernels.using("auto"):
            ways.append([case.forward()[0], case.backward(dy)[0]])
    for found in ways:
        for array, expected in zip(found, (y, dx), strict=True):
            np.testing.assert_allclose(array, expected.reshape(x.shape), rtol=1e-5 if dtype is np.float32 else 1e-12, atol=1e-6)


@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
def test_blocks_join_without_a_seam(region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = text(f"local_size: 3 alpha: 0.5 norm_region: {region}")
    x, dy = normal(2, 7, 13, 11), normal(2, 7, 11, 13).reshape(2, 7, 13, 11)
    case = LayerCase(layer, x, dtype=np.float32)
    whole = case.forward()[0].copy(), case.backward(dy)[0].copy()
    monkeypatch.setattr(lrn, "BLOCK", 600)
    monkeypatch.setattr(lrn, "SHORTEST_RUN", 10)
    monkeypatch.setattr(loops_of_lrn, "STRIP", 31)
    np.testing.assert_array_equal(case.forward()[0], whole[0])
    np.testing.assert_array_equal(case.backward(dy)[0], whole[1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("beta", [0.75, 0.6])
def test_powered(dtype: type, beta: float) -> None:
    scale = np.linspace(1, 9, 50, dtype=dtype)
    power = powered(scale, beta, Scratch(dtype))
    assert power.dtype == dtype
    np.testing.assert_allclose(power, scale.astype(np.float64) ** beta, rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("region", ["ACROSS_CHANNELS", "WITHIN_CHANNEL"])
def test_second_reshape_an_empty_batch_and_inputs_untouched(region: str) -> None:
    case = LayerCase(text(f"norm_region: {region}"), normal(2, 7, 3, 4), dtype=np.float32)
    before = case.bottom[0].data.copy()
    assert case.forward()[0].dtype == np.float32
    assert case.backward(np.ones((2, 7, 3, 4)))[0].dtype == np.float32
    np.testing.assert_array_equal(case.bottom[0].data, before)
    for shape in ((3, 2, 6, 5), (0, 2, 6, 5)):
        case.bottom[0].reshape(shape)
        assert case.forward()[0].shape == shape
        assert case.backward(np.ones(shape))[0].shape == shape


def test_errors() -> None:
    with pytest.raises(LayerError, match="local_size must be odd, got 4"):
        LayerCase(text("local_size: 4"), normal(2, 7, 3, 4))
    with pytest.raises(LayerError, match=r"must have 4 axes \(N, C, H, W\), its shape is \(2, 7, 3\)"):
        LayerCase(text(""), normal(2, 7, 3))


@pytest.mark.parametrize("size", [1, 3, 5, 7, 11, 15])
def test_window_sum(size: int) -> None:
    x = np.random.default_rng(size).integers(-9, 9, (17, 4)).astype(np.float64)
    expected = np.stack([x[i : i + size].sum(axis=0) for i in range(18 - size)])
    np.testing.assert_array_equal(window_sum(x, size, Scratch(np.float64)), expected)
