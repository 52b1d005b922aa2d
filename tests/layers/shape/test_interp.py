"""Interp."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import normal
from peak import assert_too_large, traced_peak

from minicaffe import kernels
from minicaffe.compiled import interp as loops_of_interp
from minicaffe.errors import LayerError
from minicaffe.layers.shape import interp

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str) -> str:
    return f'type: "Interp" interp_param {{ {inside} }}'


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    """Two rows become three, three columns five: what lies halfway is the mean."""
    case = LayerCase(text("zoom_factor: 2"), [[[[0.0, 2.0, 8.0], [4.0, 10.0, 0.0]]]], dtype=dtype)
    assert case.forward()[0].tolist() == [[[[0, 1, 2, 5, 8], [2, 4, 6, 5, 4], [4, 7, 10, 5, 0]]]]
    dy = np.zeros((1, 1, 3, 5))
    dy[0, 0, 1, 1], dy[0, 0, 2, 4] = 4, 3
    assert case.backward(dy)[0].tolist() == [[[[1, 1, 0], [1, 1, 3]]]]


def test_a_crop_and_the_order_of_shrink_and_zoom() -> None:
    """Rows 1 to 5 of 6 are every second one of them (three), then five."""
    x = np.arange(6.0).reshape(1, 1, 6, 1) * np.ones(6)
    case = LayerCase(text("shrink_factor: 2 zoom_factor: 2 pad_beg: -1 height: 9 width: 9"), x)
    assert case.forward()[0][0, 0, :, 0].tolist() == [1, 2, 3, 4, 5]
    assert not case.backward(np.ones((1, 1, 5, 5)))[0][:, :, 0].any()


SIZES = [
    "zoom_factor: 3",
    "shrink_factor: 2",
    "shrink_factor: 2 zoom_factor: 4",
    "height: 9 width: 3",
    "height: 1 width: 7",
    "height: 5 width: 6",
    "height: 5 width: 4 pad_beg: -1 pad_end: -2",
]


@pytest.mark.parametrize("inside", SIZES)
def test_gradient(inside: str) -> None:
    LayerCase(text(inside), normal(2, 3, 5, 6)).check_gradient()


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 20), st.integers(1, 20), st.integers(-2, 0), st.integers(-1, 0))
def test_a_plane_stays_a_plane(h: int, w: int, height: int, width: int, start: int, end: int) -> None:
    """x = row + 10 column is interpolated exactly; backward is the transpose of forward."""
    x = np.add.outer(np.arange(h + 3.0), 10 * np.arange(w + 3.0))[None, None]
    case = LayerCase(text(f"height: {height} width: {width} pad_beg: {start} pad_end: {end}"), x)
    (y,) = case.forward()
    rows, columns = (np.linspace(-start, n + 2 + end if m > 1 else -start, m) for n, m in ((h, height), (w, width)))
    np.testing.assert_allclose(y[0, 0], np.add.outer(rows, 10 * columns), rtol=1e-5, atol=1e-4)
    dy = normal(1, 1, height, width)
    assert (case.backward(dy)[0] * x).sum() == pytest.approx((dy * y).sum(), abs=1e-9)


def test_one_size_is_copied_whatever_it_holds() -> None:
    x = np.array([[[[np.nan, 1.0], [np.inf, 2.0]]]])
    np.testing.assert_array_equal(LayerCase(text("height: 2 width: 2"), x).forward()[0], x)


def firsts(size: int, out: int) -> list[tuple[int, float]]:
    """Of every place the row before it, and how far it is past that."""
    ratio = np.float32(size - 1) / np.float32(out - 1) if out > 1 else np.float32(0)
    places = [ratio * np.float32(i) for i in range(out)]
    return [(min(int(at), size - 1), float(at - np.float32(min(int(at), size - 1)))) for at in places]


def shares(size: int, out: int) -> np.ndarray:
    """The matrix (out, size) of an axis, place by place."""
    matrix = np.zeros((out, size))
    for i, (first, share) in enumerate(firsts(size, out)):
        matrix[i, first] += 1 - share
        matrix[i, min(first + 1, size - 1)] += share
    return matrix


LARGE = [
    *((40, 50, 31, 77), (40, 50, 70, 33), (60, 70, 17, 19), (33, 40, 33, 12), (8, 90, 45, 90)),
    *((61, 71, 31, 36), (60, 70, 30, 35), (70, 2400, 35, 1200)),
]

WAYS = pytest.mark.parametrize(
    ("way", "dtype", "sizes"),
    [*(("numpy", np.float64, sizes) for sizes in LARGE), *(("auto", np.float32, sizes) for sizes in (LARGE[0], LARGE[3]))],
)
"""NumPy cuts large maps into bands; compiled loops, one for all sizes, take them row by row."""


@pytest.mark.slow
@WAYS
def test_large_maps_are_products_with_the_shares(
    sizes: tuple[int, int, int, int], way: str, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several bands of rows and of columns; (60, 70, 17, 19) is gathered; the last three read every second row and column, with
    and without a longer step on the way, and all rows at once or some."""
    monkeypatch.setattr(loops_of_interp, "SMALL", 0)
    h, w, height, width = sizes
    x, dy = normal(2, 3, h, w), normal(2, 3, height, width)
    case = LayerCase(text(f"height: {height} width: {width}"), x, dtype=dtype)
    rows, columns = shares(h, height), shares(w, width)
    rtol, atol = (1e-9, 1e-12) if dtype is np.float64 else (1e-4, 1e-4)
    with kernels.using(way):
        np.testing.assert_allclose(case.forward()[0], rows @ x @ columns.T, rtol=rtol, atol=atol)
        np.testing.assert_allclose(case.backward(dy)[0], rows.T @ dy @ columns, rtol=rtol, atol=atol)


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 20), st.integers(1, 20), st.integers(-1, 0))
def test_numpy_computes_what_the_loops_say(h: int, w: int, height: int, width: int, start: int) -> None:
    x, dy = normal(2, 3, h + 1, w + 1), normal(2, 3, height, width)
    with kernels.using("numpy"):
        case = LayerCase(text(f"height: {height} width: {width} pad_beg: {start}"), x)
        (y,) = case.forward()
        (dx,) = case.backward(dy)
        assert isinstance(case.layer, interp.Interp)
        y_too, dx_too = np.empty_like(y), np.empty_like(dx)
        loops_of_interp.each_part(loops_of_interp.interpolate, x, case.layer.how, y_too)
        loops_of_interp.each_part(loops_of_interp.interpolate_backward, dy, case.layer.how, dx_too)
    np.testing.assert_allclose(y, y_too, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(dx, dx_too, rtol=1e-12, atol=1e-12)


@WAYS
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_number_that_is_not_finite_reaches_its_neighbours_only(
    sizes: tuple[int, int, int, int], way: str, dtype: type, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops_of_interp, "SMALL", 0)
    h, w, height, width = sizes
    case = LayerCase(text(f"height: {height} width: {width}"), np.ones((1, 2, h, w)), dtype=dtype)
    case.bottom[0].data[0, 1, 5, 7] = value
    with kernels.using(way):
        (y,) = case.forward()
    wide = [1 + (h != height), 1 + (w != width)]  # how many rows and columns a place reads
    near = [
        np.array([k - many < first <= k for first, _ in firsts(*pair)])
        for pair, k, many in zip(((h, height), (w, width)), (5, 7), wide)
    ]
    np.testing.assert_allclose(y[0, 0], 1, rtol=1e-6)
    np.testing.assert_array_equal(np.isfinite(y[0, 1]), ~np.outer(*near))
    dy = np.ones((1, 2, height, width))
    dy[0, 1, 3, 4] = value
    with kernels.using(way):
        (dx,) = case.backward(dy)
    assert np.isfinite(dx[0, 0]).all()
    (row, below), (column, right) = firsts(h, height)[3], firsts(w, width)[4]
    spoilt = ~np.isfinite(dx[0, 1])
    neighbours = spoilt[row : row + wide[0], column : column + wide[1]]
    assert neighbours[: 1 + (below > 0), : 1 + (right > 0)].all()  # a share of 0 may pass it on or not
    assert neighbours.sum() == spoilt.sum()


def test_no_gradient_where_none_is_asked_for() -> None:
    case = LayerCase(text("zoom_factor: 2"), normal(2, 3, 5, 6))
    case.forward()
    case.bottom[0].diff[...] = 7
    assert (case.backward(np.ones((2, 3, 9, 11)), propagate_down=[False])[0] == 7).all()


@pytest.mark.parametrize("shape", [(2, 2, 7, 3), (0, 2, 4, 4)])
def test_a_second_reshape(shape: tuple[int, ...]) -> None:
    case = LayerCase(text("zoom_factor: 2"), normal(2, 3, 5, 6))
    case.bottom[0].reshape(shape)
    case.bottom[0].data[...] = 2
    wanted = (*shape[:2], 2 * shape[2] - 1, 2 * shape[3] - 1)
    assert (case.forward()[0] == np.full(wanted, 2)).all()
    assert case.backward(np.ones(wanted))[0].shape == shape


@pytest.mark.parametrize("inside", ["height: 2000000 width: 9", "zoom_factor: 1000000"])
def test_sizes_are_checked_before_memory_is_taken(inside: str) -> None:
    assert_too_large(lambda: LayerCase(text(inside), np.ones((1, 1, 4, 5))))


def test_memory_is_taken_in_forward() -> None:
    assert traced_peak(lambda: LayerCase(text("height: 2000000 width: 9"), np.ones((1, 1, 4, 5)))) < 2**20


@pytest.mark.parametrize(
    ("inside", "shape", "message"),
    [
        ("", (1, 1, 4, 4), "give shrink_factor, zoom_factor, or height and width"),
        ("height: 3", (1, 1, 4, 4), "give shrink_factor, zoom_factor, or height and width"),
        ("height: 3 width: 0", (1, 1, 4, 4), "width must be > 0, got 0"),
        ("zoom_factor: -2", (1, 1, 4, 4), "zoom_factor must be > 0, got -2"),
        ("zoom_factor: 2 pad_beg: 1", (1, 1, 4, 4), r"must be <= 0 \(they crop\), got \(1, 0\)"),
        ("zoom_factor: 2 pad_beg: -2 pad_end: -2", (1, 1, 4, 5), r"pads \(-2, -2\) leave nothing of a map of 4x5"),
        ("zoom_factor: 2", (4, 4), r"must have 4 axes \(N, C, H, W\), its shape is \(4, 4\)"),
    ],
)
def test_errors(inside: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match='Interp layer "layer": ' + ".*" + message):
        LayerCase(text(inside), np.zeros(shape))
