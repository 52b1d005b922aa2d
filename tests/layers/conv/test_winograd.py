"""Winograd's convolutions against the definition, and where the rounding matters against the direct ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from minicaffe import kernels, threads
from minicaffe.compiled import jobs, winograd_loops
from minicaffe.compiled import winograd as by_loops
from minicaffe.compiled.epilogue import table
from minicaffe.compiled.jit import DynamicArray
from minicaffe.layers.conv import convolve as direct
from minicaffe.layers.conv import winograd, winograd_outliers, winograd_tiles, winograd_weights
from minicaffe.layers.conv.window import (
    Window,
    convolve_by_definition,
    data_gradient_by_definition,
    weight_gradient_by_definition,
)
from minicaffe.layers.conv.winograd_outliers import all_taps
from minicaffe.layers.conv.winograd_tiles import POINTS, Tiling, cook_toom
from minicaffe.layers.elementwise.epilogue import Epilogue


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def square(pad: tuple[int, int] = (1, 1), dilation: tuple[int, int] = (1, 1)) -> Window:
    return Window((3, 3), (1, 1), pad, dilation)


SHAPES = {
    "one map": ((1, 5, 13, 17), 7, 1, square()),
    "unequal padding": ((1, 4, 6, 40), 3, 1, square((0, 2))),
    "padding beyond the kernel": ((2, 2, 3, 4), 3, 1, square((4, 5))),
    "groups and small maps": ((7, 6, 5, 3), 4, 2, square()),
    "dilated": ((2, 3, 19, 37), 5, 1, square((2, 2), (2, 2))),
    "unequal dilation": ((1, 4, 11, 23), 6, 2, square((3, 0), (3, 2))),
    "many rows": ((2, 3, 150, 70), 4, 1, square()),
    "many columns": ((1, 3, 9, 600), 4, 1, square()),
    "5x5 in groups": ((3, 8, 11, 14), 6, 2, Window((5, 5), (1, 1), (2, 2), (1, 1))),
    "5x5 in strides": ((2, 5, 22, 35), 7, 1, Window((5, 5), (2, 2), (1, 1), (1, 1))),
    "strides that leave a rim": ((9, 6, 12, 17), 4, 2, Window((6, 5), (2, 2), (0, 3), (1, 1))),
    "one stride": ((1, 3, 20, 37), 5, 1, Window((5, 9), (1, 3), (2, 0), (1, 1))),
    "5x6, dilated": ((2, 4, 23, 26), 3, 1, Window((5, 6), (1, 1), (4, 1), (2, 3))),
    "strided and dilated on different axes": ((2, 3, 30, 21), 4, 1, Window((8, 5), (3, 1), (7, 2), (1, 2))),
    "9x9": ((1, 3, 19, 21), 5, 1, Window((9, 9), (1, 1), (4, 0), (1, 1))),
}
"""x, filters, group and window."""


NOT_FINITE = {
    square(): 9,
    square((2, 2), (2, 2)): 9,
    Window((5, 5), (1, 1), (2, 2), (1, 1)): 25,
    Window((5, 5), (2, 2), (2, 2), (1, 1)): 4,
}
"""Windows, and how many of each a pixel of row 9 and column 17 lies in."""


@pytest.fixture(params=[1, 2])
def count(request: pytest.FixtureRequest) -> int:
    """Threads to compute on."""
    threads.set_num_threads(request.param)
    return request.param


def test_the_identity_holds_in_float64() -> None:
    """Two filters of three taps over six pixels: four outputs each."""
    at, g, bt = cook_toom(POINTS)
    d, w = np.random.default_rng(0).normal(size=6), np.random.default_rng(1).normal(size=3)
    np.testing.assert_allclose(at @ ((g @ w) * (bt @ d)), np.correlate(d, w, "valid"), rtol=1e-12)


def test_the_matrices_of_tiles_are_exact() -> None:
    at, _, bt = cook_toom(POINTS)
    for matrix in (at, bt):
        np.testing.assert_array_equal(matrix.astype(np.float32), matrix)


PAIRS = [(name, 1 + i % 2) for i, name in enumerate(SHAPES)]
"""Shapes, with one or two threads; with the other number where loops compute."""


@pytest.mark.parametrize(("name", "count"), PAIRS, indirect=["count"])
def test_forward_as_defined(name: str, count: int, loops_way: str) -> None:
    threads.set_num_threads(count if loops_way == "numpy" else 3 - count)
    shape, filters, group, window = SHAPES[name]
    x, weight = normal(*shape), normal(filters, shape[1] // group, *window.kernel, seed=1)
    epilogue = Epilogue(normal(filters, seed=2), normal(filters, seed=3), 0.25)
    expected = convolve_by_definition(x, weight, window, group)
    epilogue(expected)
    actual = np.full_like(expected, np.nan)
    winograd.convolve(x, weight, window, group, actual, epilogue)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("most_maps", [winograd.MOST_MAPS, 1], ids=["together", "image by image"])
@pytest.mark.parametrize(("name", "count"), PAIRS, indirect=["count"])
def test_the_data_gradient_as_defined(
    name: str, most_maps: int, count: int, loops_way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads.set_num_threads(count if (loops_way == "numpy") == (most_maps > 1) else 3 - count)
    monkeypatch.setattr(winograd, "MOST_MAPS", most_maps)
    shape, filters, group, window = SHAPES[name]
    dy, weight = (
        normal(shape[0], filters, *window.output(shape[2:])),
        normal(filters, shape[1] // group, *window.kernel, seed=1),
    )
    expected = data_gradient_by_definition(dy, weight, window, group, shape[2:])
    actual = np.full_like(expected, np.nan)
    assert winograd.possible(window)
    winograd.data_gradient(dy, weight, window, group, actual)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("most_bytes", "most_sums", "name", "count"),
    [
        (*most, name, 1 + (i + k) % 2)
        for k, most in enumerate([(1, 1 << 20), (48 << 20, 1 << 20), (48 << 20, 2000), (48 << 20, 1)])
        for i, name in enumerate(SHAPES)
    ],
    indirect=["count"],
)
def test_the_weight_gradient_as_defined(
    name: str, most_bytes: int, most_sums: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block after block, all at once, some channels at a time, one by one; it is added to what is there."""
    monkeypatch.setattr(winograd_weights, "MOST_BYTES", most_bytes)
    monkeypatch.setattr(winograd_weights, "MOST_SUMS", most_sums)
    shape, filters, group, window = SHAPES[name]
    x, dy = normal(*shape), normal(shape[0], filters, *window.output(shape[2:]), seed=1)
    actual = normal(filters, shape[1] // group, *window.kernel, seed=2)
    expected = actual + weight_gradient_by_definition(x, dy, window, group)
    assert winograd_weights.add_weight_gradient(x, dy, window, group, actual)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


def test_pieces_are_counted_without_being_made() -> None:
    for kernel in range(1, 14):
        for stride in range(1, 16):
            window = Window((kernel, 5), (stride, 2), (0, 0), (1, 1))
            assert winograd_tiles.count_of_pieces(window) == len(winograd_tiles.pieces(window))
    assert winograd.possible(Window((30_000, 30_000), (1, 1), (0, 0), (1, 1)))


def test_the_weight_gradient_does_not_depend_on_the_number_of_threads() -> None:
    x, dy, sums = normal(2, 9, 40, 60), normal(2, 7, 40, 60, seed=1), []
    for count in (1, 2, 2):
        threads.set_num_threads(count)
        sums.append(np.zeros((7, 9, 3, 3), np.float32))
        winograd_weights.add_weight_gradient(x, dy, square(), 1, sums[-1])
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(sums[2], sums[1])


def test_a_weight_gradient_that_is_not_finite_is_left_to_the_direct_way() -> None:
    x, dy, dweight = normal(1, 3, 9, 14), normal(1, 4, 9, 14), np.ones((4, 3, 3, 3), np.float32)
    x[0, 1, 4, 4] = np.inf
    assert not winograd_weights.add_weight_gradient(x, dy, square(), 1, dweight)
    np.testing.assert_array_equal(dweight, 1)


def test_the_error_of_the_weight_gradient_is_within_16_times_the_direct_one() -> None:
    x, dy = np.maximum(normal(2, 32, 45, 52), 0), normal(2, 20, 45, 52, seed=1)
    exact = np.zeros((20, 32, 3, 3))
    direct.add_weight_gradient(x.astype(float), dy.astype(float), square(), 1, exact)
    errors = []
    for add_weight_gradient in (direct.add_weight_gradient, winograd_weights.add_weight_gradient):
        dweight = np.zeros(exact.shape, np.float32)
        add_weight_gradient(x, dy, square(), 1, dweight)
        errors.append(np.sqrt(np.mean((dweight - exact) ** 2)))
    assert 0 < errors[1] <= 16 * errors[0]


@pytest.mark.slow
@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize(
    ("channels", "window"),
    [
        *((channels, square()) for channels in (3, 32, 256, 2101)),
        (96, Window((5, 5), (2, 2), (2, 2), (1, 1))),
        (48, Window((5, 5), (1, 1), (2, 2), (1, 1))),
    ],
)
def test_the_error_is_within_16_times_the_direct_one(channels: int, window: Window) -> None:
    """Rms against float64, with signs at random and, as after a ReLU, without."""
    x, weight = normal(1, channels, 22, 35), normal(20, channels, *window.kernel, seed=1)
    for given in (x, np.maximum(x, 0)):
        check_error(given, weight, window)


def check_error(x: np.ndarray, weight: np.ndarray, window: Window) -> None:
    exact = np.zeros((1, 20, *window.output((22, 35))))
    direct.convolve(x.astype(float), weight.astype(float), window, 1, exact)
    errors = []
    for convolve in (direct.convolve, winograd.convolve):
        y = np.zeros(exact.shape, np.float32)
        convolve(x, weight, window, 1, y)
        errors.append(np.sqrt(np.mean((y - exact) ** 2)))
    assert 0 < errors[1] <= 16 * errors[0]


@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2e38])
@pytest.mark.parametrize("window", NOT_FINITE)
def test_what_is_not_finite_spoils_what_it_spoils_in_the_direct_way(value: float, window: Window) -> None:
    """2e38 alone gives finite sums; Winograd's own numbers for it would overflow."""
    x, weight = normal(2, 3, 21, 34), normal(4, 3, *window.kernel, seed=1)
    weight /= 4 * np.abs(weight).max()
    x[1, 2, 9, 17] = value
    expected = np.zeros((2, 4, *window.output((21, 34))), np.float32)
    actual = expected.copy()
    direct.convolve(x, weight, window, 1, expected)
    winograd.convolve(x, weight, window, 1, actual)
    spoilt = ~np.isfinite(expected)
    assert spoilt.sum() == (0 if value == 2e38 else 4 * NOT_FINITE[window])
    np.testing.assert_array_equal(actual[spoilt], expected[spoilt])
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize("value", [np.nan, np.inf, 2e38])
@pytest.mark.parametrize("window", NOT_FINITE)
@pytest.mark.parametrize("most_maps", [winograd.MOST_MAPS, 1], ids=["together", "image by image"])
def test_a_gradient_that_is_not_finite_spoils_what_it_spoils_in_the_direct_way(
    value: float, window: Window, most_maps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winograd, "MOST_MAPS", most_maps)
    dy, weight = normal(2, 4, *window.output((21, 34))), normal(4, 3, *window.kernel, seed=1)
    weight /= 4 * np.abs(weight).max()
    dy[1, 2, 4, 8] = value
    expected, actual = np.zeros((2, 3, 21, 34), np.float32), np.zeros((2, 3, 21, 34), np.float32)
    direct.data_gradient(dy, weight, window, 1, expected)
    winograd.data_gradient(dy, weight, window, 1, actual)
    spoilt = ~np.isfinite(expected)
    assert spoilt.sum() == (0 if value == 2e38 else 3 * weight[0, 0].size)
    np.testing.assert_array_equal(actual[spoilt], expected[spoilt])
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


OUTLIERS = {
    "padding 1": ((2, 16, 22, 27), 9, 1, square()),
    "no padding, groups, dilated": ((1, 16, 23, 30), 8, 2, square((0, 0), (1, 2))),
    "5x5": ((1, 16, 18, 21), 8, 1, Window((5, 5), (1, 1), (2, 2), (1, 1))),
    "5x5 in strides": ((1, 16, 30, 41), 8, 1, Window((5, 5), (2, 2), (2, 1), (1, 1))),
}

OUTLIERS_AND_VALUES = [
    ("padding 1", 65535), ("no padding, groups, dilated", 1e9), ("5x5", 1e30), ("5x5 in strides", 65535),
    ("padding 1", 1e30), ("5x5 in strides", 1e9),
]  # fmt: skip


def with_outliers(value: float, *shape: int, seed: int = 0) -> np.ndarray:
    """Numbers after a ReLU, one of a hundred pixels with this value in one channel, and a corner of zeros."""
    random = np.random.default_rng(seed)
    x = np.maximum(6 * normal(*shape, seed=seed), 0)
    x[..., :9, :9] = 0
    images, rows, columns = np.nonzero(random.random((shape[0], *shape[2:])) < 0.01)
    x[images, random.integers(shape[1], size=len(images)), rows, columns] = value
    return x


def relative_error(actual: np.ndarray, exact: np.ndarray, read: np.ndarray) -> float:
    """The largest error, where 1 is the sum of |x| that an output reads times its filter's largest |weight|."""
    assert np.isfinite(actual).all()
    error = np.abs(actual - exact)
    np.testing.assert_array_equal(error[read == 0], 0)
    return float((error[read > 0] / read[read > 0]).max())


@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize(("name", "value"), OUTLIERS_AND_VALUES)
def test_the_error_of_an_output_is_bounded_by_what_it_reads(name: str, value: float) -> None:
    shape, filters, group, window = OUTLIERS[name]
    x, weight = with_outliers(value, *shape), normal(filters, shape[1] // group, *window.kernel, seed=1)
    exact, read = np.zeros((2, shape[0], filters, *window.output(shape[2:])))
    direct.convolve(x.astype(float), weight.astype(float), window, group, exact)
    largest = np.broadcast_to(np.abs(weight).max((1, 2, 3), keepdims=True), weight.shape)
    direct.convolve(np.abs(x).astype(float), largest.astype(float), window, group, read)
    outputs = np.zeros((3, *exact.shape), np.float32)
    for count, y in enumerate(outputs, 1):
        threads.set_num_threads(count)
        winograd.convolve(x, weight, window, group, y)
    np.testing.assert_array_equal(outputs, np.broadcast_to(outputs[0], outputs.shape))
    assert relative_error(outputs[0], exact, read) < 1e-4


@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize(("name", "value"), OUTLIERS_AND_VALUES)
def test_the_error_of_the_data_gradient_is_bounded_by_what_it_reads(name: str, value: float) -> None:
    shape, filters, group, window = OUTLIERS[name]
    dy = with_outliers(value, shape[0], filters, *window.output(shape[2:]))
    weight = normal(filters, shape[1] // group, *window.kernel, seed=1)
    exact, read, actual = np.zeros(shape), np.zeros(shape), np.zeros(shape, np.float32)
    direct.data_gradient(dy.astype(float), weight.astype(float), window, group, exact)
    by_group = np.abs(weight).reshape(group, -1, *weight.shape[1:])  # a filter of the data gradient: of all filters one channel
    largest = np.broadcast_to(by_group.max((1, 3, 4), keepdims=True), by_group.shape).reshape(weight.shape)
    direct.data_gradient(np.abs(dy).astype(float), largest.astype(float), window, group, read)
    winograd.data_gradient(dy, weight, window, group, actual)
    assert relative_error(actual, exact, read) < 1e-4


@pytest.mark.parametrize("of", ["x", "dy"])
@pytest.mark.parametrize(("name", "value"), OUTLIERS_AND_VALUES)
def test_the_error_of_the_weight_gradient_is_bounded_by_what_it_reads(name: str, of: str, value: float) -> None:
    """Half of dy is zero, as in front of a ReLU."""
    shape, filters, group, window = OUTLIERS[name]
    size, dweights = (shape[0], filters, *window.output(shape[2:])), []
    x = with_outliers(value if of == "x" else 1, *shape)
    dy = with_outliers(value if of == "dy" else 1, *size, seed=1)
    exact, read = np.zeros((2, filters, shape[1] // group, *window.kernel))
    direct.add_weight_gradient(x.astype(float), dy.astype(float), window, group, exact)
    direct.add_weight_gradient(np.abs(x).astype(float), np.abs(dy).astype(float), window, group, read)
    for count in (1, 2, 3):
        threads.set_num_threads(count)
        dweights.append(np.zeros(exact.shape, np.float32))
        assert winograd_weights.add_weight_gradient(x, dy, window, group, dweights[-1])
    np.testing.assert_array_equal(dweights, np.broadcast_to(dweights[0], (3, *exact.shape)))
    assert relative_error(dweights[0], exact, read) < 1e-5


def test_a_channel_of_few_values_is_set_aside() -> None:
    """And a row of ever larger values, but nothing of noise, and nothing that is not finite."""
    maps = np.zeros((2, 5, 20, 30), np.float32)
    maps[1, 1, 3, 4], maps[0, 1, 19, 29] = -7, 2
    maps[:, 2] = normal(2, 20, 30)
    maps[1, 3].flat[:200] = 2.0 ** np.arange(-100, 100)
    maps[0, 4, 0, 0] = np.inf
    before = maps.copy()
    found = winograd_outliers.Outliers.of(maps)
    assert sorted(found.values[found.channel == 1]) == [-7, 2]
    assert set(found.channel) == {1, 3}
    assert (found.channel == 3).sum() > 190
    np.testing.assert_array_equal(found.values, maps[found.image, found.channel, found.pixel[0], found.pixel[1]])
    rest = found.without(maps)
    np.testing.assert_array_equal(maps, before)
    assert not rest[:, 1].any()
    np.testing.assert_array_equal(rest[:, [2, 4]], maps[:, [2, 4]])


@pytest.mark.parametrize("taps", [((True,) * 3, (True,) * 3), ((False, True, True), (False, True, True))])
def test_the_two_ways_find_the_same_outliers(taps: winograd_outliers.Taps) -> None:
    """At the rim of the map, too; of unpadded maps' data gradients the corners read one pixel of 16."""
    window, weight = square((2, 2)), normal(4, 4, 3, 3, seed=1)
    x = with_outliers(1e3, 2, 4, 22, 27)
    x[..., :9, :9] = 1
    shapes = x.shape, weight.shape, (2, 4, *window.output((22, 27)))
    tiling = Tiling(2, shapes[2][2:], window)
    expected = winograd_outliers.find(x, 1, tiling, taps)[0]
    assert 0.1 < expected.mean() < 0.9
    assert not expected[:, 0, 0].any()
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with kernels.using("numba"):
        factors = winograd.factors_of(weight, window, 1)
        product = by_loops.LoopsProduct(window, 1, shapes, factors, Epilogue(), taps)
        product(x, weight, np.zeros(shapes[2], np.float32))
    flags, begin = np.zeros(expected.shape, bool), 0
    for part in product._parts:
        of_part = flags[part.block.places]
        of_part[...] = product._flags[begin:][: part.block.tiles].reshape(of_part.shape)
        begin += part.block.tiles
    np.testing.assert_array_equal(flags, expected)


@pytest.mark.usefixtures("loops_way")
def test_a_filter_that_is_nan_spoils_its_own_outputs_only() -> None:
    x, weight = normal(1, 3, 9, 14), normal(4, 3, 3, 3, seed=1)
    weight[2, 1, 0, 2] = np.nan
    y = np.zeros((1, 4, 9, 14), np.float32)
    winograd.convolve(x, weight, square(), 1, y)
    assert np.isnan(y[:, 2, 1:, :-1]).all()
    assert np.isfinite(y[:, [0, 1, 3]]).all()


@pytest.mark.parametrize("tiles", [1, 50, 1000])
def test_blocks_cover_every_tile_once(tiles: int, count: int) -> None:
    for tiling in (
        Tiling(3, (70, 200), square()),
        Tiling(9, (5, 7), square((0, 0))),
        Tiling(2, (33, 30), square((2, 2), (2, 3))),
        Tiling(2, (9, 140), Window((5, 5), (2, 2), (2, 2), (1, 1))),
    ):
        seen = np.zeros((tiling.planes, *tiling.tiles), int)
        for block in tiling.blocks(tiles):
            seen[np.ix_(block.planes, block.rows, block.groups)] += 1
        assert (seen == 1).all()


@pytest.mark.usefixtures("loops_way")
def test_inputs_stay_as_they_are() -> None:
    x, weight = normal(1, 3, 9, 14), normal(4, 3, 3, 3, seed=1)
    before = x.copy(), weight.copy()
    winograd.convolve(x, weight, square(), 1, np.zeros((1, 4, 9, 14), np.float32), Epilogue(shift=normal(4)))
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(weight, before[1])


@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize("slope", [0.0, 0.25, 2.0, -1.0])
def test_what_overflows_after_the_sums_is_cut_off_by_a_relu(slope: float) -> None:
    """-inf and NaN come of a scale and a shift, and are no reason to compute anew."""
    x, weight = normal(1, 3, 9, 14), normal(4, 3, 3, 3, seed=1)
    epilogue = Epilogue(np.float32([1, 3e38, -3e38, np.nan]), np.float32([-np.inf, 0, 1, 2]), slope)
    expected, actual = np.zeros((2, 1, 4, 9, 14), np.float32)
    with np.errstate(all="ignore"):
        direct.convolve(x, weight, square(), 1, expected, epilogue)
        winograd.convolve(x, weight, square(), 1, actual, epilogue)
    assert np.isnan(expected).any()
    assert np.isinf(expected).any()
    # 3e38 magnifies what rounding leaves of sums that cancel
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=3e38 * 1e-4)


@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((1, 40, 38, 63), square()),
        ((3, 37, 13, 20), square()),
        ((1, 36, 30, 41), square((2, 2), (2, 2))),
        ((1, 36, 60, 83), Window((5, 5), (2, 2), (1, 1), (1, 1))),
    ],
)
@pytest.mark.parametrize("few_tiles", [0, 1000], ids=["rows are divided", "filters are divided"])
def test_the_outputs_have_the_same_bits_on_any_number_of_threads(
    shape: tuple[int, ...],
    window: Window,
    few_tiles: int,
    loops_way: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if loops_way == "numpy":
        request.getfixturevalue("products_round_alike")
    monkeypatch.setattr(by_loops, "TASK", 1)
    monkeypatch.setattr(by_loops, "FEW_TILES", few_tiles)
    x, weight = normal(*shape), normal(35, shape[1], *window.kernel, seed=1)
    outputs = []
    for count in (1, 2, 3, 8):
        threads.set_num_threads(count)
        outputs.append(np.full((shape[0], 35, *window.output(shape[2:])), np.nan, np.float32))
        winograd.convolve(x, weight, window, 1, outputs[-1], Epilogue(shift=normal(35, seed=2), negative_slope=0.0))
    for one in outputs[1:]:
        np.testing.assert_array_equal(one, outputs[0])


@pytest.mark.parametrize("window", [square(), square((2, 1), (2, 2)), Window((5, 5), (2, 1), (2, 1), (1, 2))])
def test_the_loops_in_python(window: Window, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncompiled: what a reader reads, panels of one filter."""
    monkeypatch.setattr(by_loops, "_panel_rows", lambda: 1)
    x, weight = normal(2, 3, 7, 18), normal(5, 3, *window.kernel, seed=1)
    epilogue, size = Epilogue(normal(5, seed=2), normal(5, seed=3), 0.25), (2, 5, *window.output((7, 18)))
    expected, actual = np.zeros(size, np.float32), np.full(size, np.nan, np.float32)
    direct.convolve(x, weight, window, 1, expected, epilogue)
    tiling = Tiling(2, size[2:], window)
    with kernels.using("numpy"):
        factors, after, flags = (
            by_loops.factors_of_by_loops(weight, window, 1),
            table(epilogue, slice(None), 5, np.float32),
            np.ones(1000, np.float32),
        )
        arrays, later = (
            (x, factors, after, flags, actual),
            [DynamicArray(0, (x.size,)), DynamicArray(0, (3, 5)), DynamicArray(0, (actual.size,))],
        )
        for block in tiling.blocks(1000, workers=1):
            part = by_loops._Part(block, 0, slice(0, 5))
            given = by_loops._call(tiling, part, (x.shape, weight.shape, size), factors.shape, later, 0, all_taps(window))
            parts = [
                array.reshape(-1)[one.start :][: math.prod(one.shape)].reshape(one.shape) for array, one in zip(arrays, given)
            ]
            winograd_loops.convolve_planes(*parts, np.empty(given[5].shape, np.float32), *given[6:])
            assert not flags[: block.tiles].any()
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


def test_old_numbers_behind_the_tiles_are_not_multiplied() -> None:
    """A processor takes a hundred times as long for denormal ones."""
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    x, weight, y = normal(1, 3, 9, 14), normal(4, 3, 3, 3, seed=1), np.zeros((1, 4, 9, 14), np.float32)
    lengths = winograd_loops.memory_sizes(3, 4, 1, 3, 8)
    with kernels.using("numba"):
        memory = jobs._room_of(4 * sum(lengths) + 4000).memory.view(np.float32)
        memory[:] = 1e-42
        winograd.convolve(x, weight, square(), 1, y)
    tiles = memory[lengths[0] + lengths[1] :][: lengths[2]].reshape(36, -1)[:, : 3 * 16].reshape(36, 3, 16)
    assert (tiles[:, :, 12:] == 0).all() and (np.abs(tiles[:, :, :12]) > 1e-9).any(axis=2).all()


def test_factors_that_were_made_without_loops() -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    x, weight, both = normal(1, 3, 9, 14), normal(4, 3, 3, 3, seed=1), []
    expected = np.zeros((1, 4, 9, 14), np.float32)
    direct.convolve(x, weight, square(), 1, expected)
    for make, use in (("numpy", "numba"), ("numba", "numpy")):
        with kernels.using(make):
            factors = winograd.factors_of(weight, square(), 1)
        with kernels.using(use):
            both.append(np.zeros((1, 4, 9, 14), np.float32))
            winograd.convolve(x, weight, square(), 1, both[-1], factors=factors)
        np.testing.assert_allclose(both[-1], expected, rtol=1e-4, atol=1e-4)


def test_the_loops_compile_once() -> None:
    """No call needs another variant than the one that compiles ahead."""
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with kernels.using("numba"):
        for shape, filters, group, window in SHAPES.values():
            y = np.zeros((shape[0], filters, *window.output(shape[2:])), np.float32)
            weight = normal(filters, shape[1] // group, *window.kernel)
            winograd.convolve(normal(*shape), weight, window, group, y, Epilogue(shift=normal(filters)))
        for loop in (winograd_loops.make_factors, winograd_loops.convolve_planes):
            loop.compile(np.float32)
            assert len(loop.dispatcher().signatures) == 1
