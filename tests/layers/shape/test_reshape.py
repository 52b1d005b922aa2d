"""Reshape."""

from __future__ import annotations

import math

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(*dims: int, more: str = "") -> str:
    return f'type: "Reshape" reshape_param {{ shape {{ {" ".join(f"dim: {d}" for d in dims)} }} {more} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.parametrize(
    ("dims", "more", "shape"),
    [
        ((0, -1), "", (2, 60)),
        ((6, 20), "", (6, 20)),
        ((0, 3, 1, 0, -1), "", (2, 3, 1, 5, 4)),
        ((-1,), "axis: 1", (2, 60)),
        ((12,), "axis: 1 num_axes: 2", (2, 12, 5)),
        ((1,), "axis: 1 num_axes: 0", (2, 1, 3, 4, 5)),
        ((1,), "axis: -1", (2, 3, 4, 5, 1)),
        ((2, 2), "axis: -3 num_axes: 1", (2, 3, 2, 2, 5)),
    ],
)
def test_by_hand(dims: tuple[int, ...], more: str, shape: tuple[int, ...]) -> None:
    x = normal(2, 3, 4, 5)
    case = LayerCase(text(*dims, more=more), x)
    np.testing.assert_array_equal(case.forward()[0], x.reshape(shape))
    assert case.top[0].shares_data_with(case.bottom[0])
    dy = normal(*shape)
    np.testing.assert_array_equal(case.backward(dy)[0], dy.reshape(x.shape))


@pytest.mark.parametrize("case", cases("Reshape"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


def test_gradient() -> None:
    LayerCase(text(0, -1), normal(2, 3, 4)).check_gradient()


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_any_axis_can_be_inferred_or_copied(shape: list[int], data: st.DataObject) -> None:
    dims = [data.draw(st.sampled_from([0, d])) for d in shape]
    dims[data.draw(st.integers(0, len(shape) - 1))] = -1
    case = LayerCase(text(*dims), normal(*shape))
    assert case.forward()[0].shape == tuple(shape)


@pytest.mark.parametrize(
    ("dims", "shape", "new"),
    [
        ((-1, 21), (0, 21, 1, 1), (0, 21)),
        ((0, -1), (0, 3, 7), (0, 21)),
        ((0, 3, -1), (0, 21), (0, 3, 7)),
        ((0, 21), (0, 21), (0, 21)),
    ],
)
def test_no_rows(dims: tuple[int, ...], shape: tuple[int, ...], new: tuple[int, ...]) -> None:
    case = LayerCase(text(*dims), np.zeros(shape))
    assert case.forward()[0].shape == new
    assert case.backward()[0].shape == shape


def test_second_reshape_shares_the_new_memory() -> None:
    case = LayerCase(text(0, -1), normal(2, 3, 4))
    case.bottom[0].reshape(5, 6, 7)
    case.bottom[0].data[...] = normal(5, 6, 7)
    np.testing.assert_array_equal(case.forward()[0], normal(5, 6, 7).reshape(5, 42))
    assert math.prod(case.top[0].shape) == 210


@pytest.mark.parametrize(
    ("dims", "more", "message"),
    [
        ((-1, -1), "", r"only one dim can be -1, got \[-1, -1\]"),
        ((-2, 3), "", r"dims must be >= -1, got \[-2, 3\]"),
        ((5, -1), "", r"the -1 of \[5, -1\] cannot be inferred from shape \(2, 3, 4\)"),
        ((5, 5), "", r"shape \(5, 5\) has 25 elements, the bottom's \(2, 3, 4\) has 24"),
        ((2, 3, 4, 0), "", r"dim 3 is 0, but shape \(2, 3, 4\) has no axis 3 to copy"),
        ((1,), "axis: 4", r"axis 4 is out of range for shape \(2, 3, 4\)"),
        ((1,), "axis: -5", r"axis -5 is out of range for shape \(2, 3, 4\)"),
        ((1,), "axis: 2 num_axes: 2", r"num_axes 2 from axis 2 on does not fit shape \(2, 3, 4\)"),
        ((1,), "num_axes: -2", r"num_axes -2 from axis 0 on does not fit"),
    ],
)
def test_errors(dims: tuple[int, ...], more: str, message: str) -> None:
    with pytest.raises(LayerError, match='Reshape layer "layer": ' + message):
        LayerCase(text(*dims, more=more), normal(2, 3, 4))


# PixelShuffle, and Reshape with Synopsys' pixelshuffler.

SHUFFLES = {
    "pixelshuffler": 'type: "Reshape" reshape_param {{ pixelshuffler: {} }}',
    "upscale_factor": 'type: "PixelShuffle" pixelshuffle_param {{ upscale_factor: {} }}',
}
both = pytest.mark.parametrize("field", SHUFFLES)


@both
def test_pixel_shuffle_by_hand(field: str) -> None:
    """Four channels of one pixel become a map of 2 x 2, row by row."""
    case = LayerCase(SHUFFLES[field].format(2), np.array([1.0, 2, 3, 4, 5, 6, 7, 8]).reshape(1, 8, 1, 1))
    assert case.forward()[0].tolist() == [[[[1, 2], [3, 4]], [[5, 6], [7, 8]]]]
    dy = np.arange(8.0).reshape(1, 2, 2, 2)
    assert case.backward(dy)[0].reshape(-1).tolist() == list(range(8))


@both
@given(r=st.integers(2, 3), channels=st.integers(1, 2))
def test_pixel_shuffle_against_its_formula(field: str, r: int, channels: int) -> None:
    x = normal(2, channels * r * r, 3, 5)
    (y,) = LayerCase(SHUFFLES[field].format(r), x).forward()
    for n, c, i, j in np.ndindex(2, channels, 3 * r, 5 * r):
        assert y[n, c, i, j] == x[n, (c * r + i % r) * r + j % r, i // r, j // r]


@both
def test_pixel_shuffle_gradient_and_second_reshape(field: str) -> None:
    case = LayerCase(SHUFFLES[field].format(2), normal(2, 8, 3, 1))
    case.check_gradient()
    case.bottom[0].reshape(3, 4, 1, 5)
    assert case.forward()[0].shape == (3, 1, 2, 10)


@both
@pytest.mark.parametrize(
    ("factor", "shape", "message"),
    [
        (2, (2, 6, 3, 5), "{} 2 needs a multiple of 4 channels, got 6"),
        (2, (2, 4, 3), r"with {} x must be \(N, C, H, W\), got shape \(2, 4, 3\)"),
        (0, (2, 4, 3, 5), "{} must be > 0, got 0"),
    ],
)
def test_pixel_shuffle_errors(field: str, factor: int, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match='layer "layer": ' + message.format(field)):
        LayerCase(SHUFFLES[field].format(factor), np.zeros(shape))


@pytest.mark.parametrize("r", [1, 3])
def test_pixel_shuffle_as_the_loops_of_brocollis_caffe(r: int) -> None:
    x = normal(2, 2 * r * r, 4, 5)
    y = np.zeros((2, 2, 4 * r, 5 * r))
    for n, p, sh, sw, i, j in np.ndindex(2, 2, r, r, 4, 5):
        y[n, p, i * r + sh, j * r + sw] = x[n, p * r * r + sh * r + sw, i, j]
    np.testing.assert_array_equal(LayerCase(SHUFFLES["upscale_factor"].format(r), x).forward()[0], y)
