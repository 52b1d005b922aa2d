"""SPP."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.mode import TRAIN


def text(inside: str) -> str:
    return f'type: "SPP" spp_param {{ {inside} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).permutation(int(np.prod(shape))).reshape(shape).astype(float)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    """A 2x3 map: the whole, then 2x2 bins of 1x2 pixels that start one pixel left of the map."""
    x = [[[[1.0, 5.0, 2.0], [4.0, 3.0, 6.0]]]]
    case = LayerCase(text("pyramid_height: 2"), x, dtype=dtype)
    (y,) = case.forward()
    np.testing.assert_array_equal(y, [[6, 1, 5, 4, 6]])
    assert y.dtype == dtype
    (dx,) = case.backward([[10.0, 1.0, 2.0, 3.0, 4.0]])
    np.testing.assert_array_equal(dx, [[[[1, 2, 0], [3, 0, 14]]]])
    np.testing.assert_array_equal(case.bottom[0].data, x)


@pytest.mark.parametrize("case", cases("SPP"))
def test_golden(case: str) -> None:
    assert run_case(case) == 2


@given(st.integers(1, 20), st.integers(1, 20), st.sampled_from(["MAX", "AVE"]))
def test_a_vector_of_one_size_from_maps_of_any_size(h: int, w: int, pool: str) -> None:
    """Each level's bins cover the map: every maximum is some pixel, the overall one is in each level."""
    x = normal(2, 3, h, w)
    try:
        (y,) = LayerCase(text(f"pyramid_height: 3 pool: {pool}"), x).forward()
    except LayerError as error:
        assert "is too small for" in str(error)
        assert min(h, w) < 13
        return
    assert y.shape == (2, 3 * 21)
    if pool == "MAX":
        levels = [part.reshape(2, 3, -1).max(axis=2) for part in np.split(y, [3, 15], axis=1)]
        np.testing.assert_array_equal(levels, [x.max(axis=(2, 3))] * 3)
    else:
        np.testing.assert_allclose(y[:, :3], x.mean(axis=(2, 3)))


@pytest.mark.parametrize("inside", ["pyramid_height: 1", "pyramid_height: 2 pool: AVE", "pyramid_height: 3"])
def test_gradient(inside: str) -> None:
    LayerCase(text(inside), normal(1, 2, 4, 7)).check_gradient()


def test_stochastic() -> None:
    x = normal(2, 1, 4, 8) + 1
    case = LayerCase(text("pyramid_height: 3 pool: STOCHASTIC"), x, phase=TRAIN)
    (y,) = case.forward()
    assert np.isin(y, x).all()
    (dx,) = case.backward(np.ones((2, 21)))
    assert dx.sum() == 2 * 21
    case = LayerCase(text("pyramid_height: 2 pool: STOCHASTIC"), x)
    case.check_gradient()
    np.testing.assert_allclose(case.forward()[0][:, 0], (x**2).sum(axis=(1, 2, 3)) / x.sum(axis=(1, 2, 3)))
    with pytest.raises(LayerError, match="padding is for MAX and AVE pooling, not for STOCHASTIC"):
        LayerCase(text("pyramid_height: 2 pool: STOCHASTIC"), normal(2, 1, 3, 4))


def test_second_reshape_and_an_empty_batch() -> None:
    case = LayerCase(text("pyramid_height: 2"), normal(2, 3, 4, 7))
    case.bottom[0].reshape(1, 2, 9, 5)
    case.bottom[0].data[...] = normal(1, 2, 9, 5)
    np.testing.assert_array_equal(case.forward()[0], LayerCase(text("pyramid_height: 2"), normal(1, 2, 9, 5)).forward()[0])
    assert case.backward(np.ones((1, 10)))[0].sum() == 10
    case.bottom[0].reshape(0, 2, 9, 5)
    assert case.forward()[0].shape == (0, 10)
    assert case.backward(np.zeros((0, 10)))[0].shape == (0, 2, 9, 5)
    case = LayerCase(text("pyramid_height: 1"), np.zeros((0, 3, 4, 5)))
    assert case.forward()[0].shape == (0, 3, 1, 1)


def test_no_gradient_when_not_asked() -> None:
    case = LayerCase(text("pyramid_height: 2"), normal(2, 3, 4, 7))
    case.forward()
    case.bottom[0].diff[...] = 7
    assert (case.backward(np.ones((2, 15)), propagate_down=[False])[0] == 7).all()


def test_errors() -> None:
    with pytest.raises(LayerError, match="pyramid_height must be > 0, got 0"):
        LayerCase(text(""), normal(2, 3, 4, 5))
    with pytest.raises(LayerError, match=r"the bottom must have 4 axes \(N, C, H, W\), its shape is \(2, 3, 4\)"):
        LayerCase(text("pyramid_height: 2"), normal(2, 3, 4))
    message = "pyramid_height 3 divides the map into up to 4x4 bins; a map of 5x9 is too small for 4x4"
    with pytest.raises(LayerError, match=message):
        LayerCase(text("pyramid_height: 3"), normal(2, 3, 5, 9))
    with pytest.raises(LayerError, match="a map of 0x5 is too small for 1x1"):
        LayerCase(text("pyramid_height: 1"), np.zeros((2, 3, 0, 5)))
    with pytest.raises(LayerError, match=r"up to 2\^99999x2\^99999 bins; a map of 5x9 is too small"):
        LayerCase(text("pyramid_height: 100000"), normal(2, 3, 5, 9))
