"""Convolutions by compiled tiles: against the definition, against the loops' definitions, whatever the strips and threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe import kernels
from minicaffe.compiled import jit, jobs, tiled
from minicaffe.compiled.jit import loop
from minicaffe.compiled.tiled_loops import lay_out, put
from minicaffe.compiled.tiles import LANES, most_alone, most_beside, panel_rows, products, tile_vectors, turned
from minicaffe.compiled.vectors import copy, copy_every_other, copy_inside
from minicaffe.layers.conv.window import Window, convolve_by_definition
from minicaffe.layers.elementwise.epilogue import NOTHING, Epilogue
from minicaffe.threads import set_num_threads

pytestmark = pytest.mark.usefixtures("compiled_loops")
PIXEL = Window((1, 1), (1, 1), (0, 0), (1, 1))
TYPES = [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)]
"""Those of float64 take long to compile."""


@loop("T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], UniTuple(int64, 15)")
def multiplied(
    weight: np.ndarray,
    panel: np.ndarray,
    columns: np.ndarray,
    sums: np.ndarray,
    after: np.ndarray,
    y: np.ndarray,
    n: tuple[int, ...],
) -> None:
    start, depth, width, fresh, last, apart, filters, row, of, to, pitch, wanted, beside, few, rows = n
    turned(weight, start, apart, filters, depth, panel, 8, rows)
    products(
        panel, 8, columns, 1, width, columns, beside, few, sums, 2, width, after, row, of, y, to, pitch, wanted,
        depth, fresh, last, 1, filters, weight, last, 0, 5, 0, 0, rows,
    )  # fmt: skip


@loop("T[::1], int64, T[::1], int64, int64")
def copied(x: np.ndarray, start: int, y: np.ndarray, to: int, count: int) -> None:
    copy(x, start, y, to, count)


@loop("T[::1], int64, T[::1], int64, int64")
def copied_every_other(x: np.ndarray, start: int, y: np.ndarray, to: int, count: int) -> None:
    copy_every_other(x, start, y, to, count)


@loop("T[::1], T[::1], UniTuple(int64, 6)")
def copied_inside(x: np.ndarray, y: np.ndarray, n: tuple[int, ...]) -> None:
    stride, apart, begin, end, room, lanes = n
    copy_inside(x, 0, stride, apart, y, 2, 21, 3, begin, end, room, 2 * lanes, lanes)


def expected(x: np.ndarray, weight: np.ndarray, window: Window, group: int, epilogue: Epilogue) -> np.ndarray:
    y = convolve_by_definition(x, weight, window, group)
    epilogue(y)
    return y


def convolved(x: np.ndarray, weight: np.ndarray, window: Window, group: int, epilogue: Epilogue = NOTHING) -> np.ndarray:
    y = np.full((len(x), len(weight), *window.output(x.shape[2:])), np.nan, x.dtype)
    assert tiled.supports(x, weight, window, y)
    tiled.convolve(x, weight, window, group, y, epilogue)
    of_panels, panels = np.full_like(y, np.nan), tiled.panels_of(weight, group)
    shapes = x.shape, weight.shape, y.shape
    tiled.product(window, group, shapes, y.dtype, epilogue, panels)(x, np.full_like(weight, np.nan), of_panels)
    assert of_panels.tobytes() == y.tobytes()
    return y


sizes = st.tuples(st.integers(1, 4), st.integers(1, 4))
windows = st.builds(Window, sizes, sizes, st.tuples(st.integers(0, 3), st.integers(0, 3)), sizes)


@given(
    windows,
    st.sampled_from([1, 2, 3]),
    st.integers(1, 5),
    st.tuples(st.integers(13, 17), st.integers(18, 23)),
    st.integers(0, 99),
)
def test_as_defined(window: Window, group: int, images: int, size: tuple[int, int], seed: int) -> None:
    random = np.random.default_rng(seed)
    channels, filters = group * int(random.integers(1, 4)), group * int(random.integers(1, 7))
    x = random.standard_normal((images, channels, *size)).astype(np.float32)
    weight = random.standard_normal((filters, channels // group, *window.kernel)).astype(np.float32)
    numbers = random.standard_normal((2, filters)).astype(np.float32)
    epilogue = (NOTHING, Epilogue(shift=numbers[0]), Epilogue(numbers[0], numbers[1], 0.0), Epilogue(numbers[0], None, 0.1))[
        seed % 4
    ]
    wanted = expected(x, weight, window, group, epilogue)
    np.testing.assert_allclose(convolved(x, weight, window, group, epilogue), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("axes", [0, 1, 3])
def test_maps_of_any_number_of_axes_where_a_window_is_a_pixel(axes: int) -> None:
    random, window = (
        np.random.default_rng(axes),
        Window((1,) * (axes or 1), (1,) * (axes or 1), (0,) * (axes or 1), (1,) * (axes or 1)),
    )
    x = random.integers(-9, 9, (17, 5, *((1,), (4,), (), (2, 3, 4))[axes])).astype(np.float32)
    weight = random.integers(-9, 9, (6, 5, *window.kernel)).astype(np.float32)
    y = convolved(x, weight, window, 1)
    np.testing.assert_array_equal(y, np.einsum("mc,nc...->nm...", weight.reshape(6, 5), x))


def test_strided_windows_as_many_as_pixels() -> None:
    """A kernel of one pixel that sees half of the row and as much padding: not where the pixels lie."""
    x, weight = np.arange(1, 35, dtype=np.float32).reshape(1, 2, 1, 17), np.ones((3, 2, 1, 1), np.float32)
    y = convolved(x, weight, Window((1, 1), (1, 2), (0, 8), (1, 1)), 1)
    assert y[0, 2, 0].tolist() == [0] * 4 + (x[0, 0, 0, ::2] + x[0, 1, 0, ::2]).tolist() + [0] * 4


@pytest.mark.parametrize("size", [(5, 5), (7, 7), (13, 13), (14, 14), (28, 28), (23, 29)])
def test_pixels_read_where_they_lie(size: tuple[int, int]) -> None:
    """One strip and several, of whole vectors and not, few filters and many; channels in one block and in several."""
    random = np.random.default_rng(3)
    x = random.standard_normal((2, 147, *size)).astype(np.float32)
    for filters in (11, 35):
        weight = random.standard_normal((filters, 147, 1, 1)).astype(np.float32)
        wanted = np.einsum("mc,nchw->nmhw", weight[:, :, 0, 0].astype(np.float64), x)
        np.testing.assert_allclose(convolved(x, weight, PIXEL, 1), wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(convolved(x[1:].copy(), weight, PIXEL, 1), wanted[1:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", [(1, 1), (2, 1)])
@pytest.mark.parametrize("windows", [(1, 1), (1, 3), (2, 3), (2, 4)])
def test_windows_that_fill_no_vector(windows: tuple[int, int], kernel: tuple[int, int]) -> None:
    """Of one image and of three, of channels in several blocks, of filters in two groups."""
    random, window = np.random.default_rng(4), Window(kernel, (1, 1), (0, 0), (1, 1))
    x = random.standard_normal((3, 2 * 1100, windows[0] + kernel[0] - 1, windows[1])).astype(np.float32)
    weight = random.standard_normal((2 * 11, 1100, *kernel)).astype(np.float32) / 30
    epilogue = Epilogue(random.standard_normal(22).astype(np.float32), None, 0.1)
    for some in (x, x[1:2].copy()):
        wanted = expected(some.astype(np.float64), weight.astype(np.float64), window, 2, epilogue)
        np.testing.assert_allclose(convolved(some, weight, window, 2, epilogue), wanted, rtol=1e-4, atol=1e-4)


def test_by_hand() -> None:
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    weight = np.array([[[[1, 0], [0, 2]]], [[[0, -1], [0, 0]]]], np.float32)
    y = convolved(
        x, weight, Window((2, 2), (1, 1), (1, 1), (1, 1)), 1, Epilogue(shift=np.array([0.5, 1], np.float32), negative_slope=0.0)
    )
    # row 1 of the first filter: x[i-1, j-1] + 2 x[i, j], and 0.5; the second: relu(1 - x[i-1, j])
    assert y[0, 0, 1].tolist() == [8.5, 0 + 10.5, 1 + 12.5, 2 + 14.5, 3.5]
    assert y[0, 1, 1].tolist() == [1, 0, 0, 0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
def test_the_machine_code_does_what_the_definition_says(dtype: type) -> None:
    random, depth, registers = np.random.default_rng(1), 37, jit.registers(8 * np.dtype(dtype).itemsize)
    rows, most, limit = panel_rows(registers), tile_vectors(registers) * registers.lanes, most_beside(registers)
    cases = [(most, 0, 9, 1, 0), (most - 1, 0, 7, 0, 1), (most // 3, 0, 1, 1, 1), (most // 2, 0, 4, 0, 0)]
    cases += [(most, few, *rest) for few in range(1, limit + 1) for rest in ((9, 1, 0), (7, 0, 1), (3, 1, 1), (8, 0, 0))]
    cases += [(registers.lanes, limit, 5, 0, 1)]
    cases += [(0, few, *rest) for few in range(1, most_alone(registers) + 1) for rest in ((9, 1, 0), (7, 0, 1), (3, 1, 1))]
    for in_vectors, few, filters, fresh, last in cases:
        width, wanted, beside = most + 4, in_vectors + few, 1 + depth * (most + 4)
        weight, columns = (random.standard_normal(n).astype(dtype) for n in (3 + 8 * 41 + depth, beside + depth * few))
        after, y = random.standard_normal(3 * 11).astype(dtype), np.full(9 * (width + 8), np.inf, dtype)
        after[2 * 11 : 2 * 11 + 5] = 0, 0.5, 0, 1, 0
        sums, panel = random.standard_normal(2 + 9 * width).astype(dtype), np.zeros(8 + 8 * 3 * LANES, dtype)
        numbers = (3, depth, width, fresh, last, 41, filters, 2, 11, 5, width + 3, wanted, beside, few, rows)
        results = []
        for run in (multiplied, multiplied.definition):
            made = panel.copy(), sums.copy(), y.copy()
            run(weight, made[0], columns, made[1], after, made[2], numbers)
            kept = made[1][2 : 2 + rows * width].reshape(rows, width)[: min(rows, filters), :wanted]
            results.append((made[0][8 : 8 + rows * depth], kept, made[2]))
        for made, defined in zip(*results, strict=True):
            np.testing.assert_allclose(made, defined, rtol=1e-12 if dtype is np.float64 else 1e-4, atol=1e-5)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_are_copied_where_they_are_inside(stride: int, dtype: type) -> None:
    lanes = jit.registers(8 * np.dtype(dtype).itemsize).lanes
    for begin, end, room in (
        (1, 3, 17),
        (0, lanes, 19),
        (0, lanes + 1, 20),
        (-3, 2 * lanes, 17),
        (2, 2, 17),
        (0, 2, 3),
        (-1, 5, 1),
    ):
        seen = max(1, min(end, lanes))
        apart = stride * seen + 1
        x = np.arange(1, 2 * apart + stride * (seen - 1) + 2, dtype=dtype)  # ends with the last number inside
        made, defined = np.full(2 + 3 * 21, -1, dtype), np.full(2 + 3 * 21, -1, dtype)
        copied_inside(x, made, (stride, apart, begin, end, room, lanes))
        copied_inside.definition(x, defined, (stride, apart, begin, end, room, lanes))
        assert made.tolist() == defined.tolist() and (made == -1).sum() == len(made) - 3 * min(lanes, room)


@pytest.mark.slow
@pytest.mark.parametrize("copying", [copied, copied_every_other])
@pytest.mark.parametrize("dtype", TYPES)
def test_rows_are_copied_and_nothing_beside_them(copying: Callable[..., None], dtype: type) -> None:
    for count in (0, 1, 7, 15, 16, 17, 33, 100):
        x = np.arange(2 * count + 3, dtype=dtype)
        made, defined = np.full(count + 9, -1, dtype), np.full(count + 9, -1, dtype)
        copying(x, 2, made, 4, count)
        copying.definition(x, 2, defined, 4, count)  # type: ignore[attr-defined]
        assert made.tolist() == defined.tolist() and (made == -1).sum() == 9


def test_columns_and_rows_in_python() -> None:
    """The plain loops around the tiles, uncompiled: what a reader reads."""
    x = np.arange(2 * 3 * 4 * 5, dtype=np.float64)
    window = Window((2, 3), (1, 2), (1, 1), (2, 1))
    down, over = window.output((4, 5))
    map_ = (3, 4, 5, down, over, 2, 3, 1, 2, 1, 1, 2, 1, 2, 3)
    columns = np.full(2 * 6 * 21, np.nan)
    with kernels.using("numpy"):
        lay_out(x, map_, (3, 11, 21, 1, 2, 0, 4), columns)
        rows, y = np.arange(2.0 * LANES), np.full(2 * 2 * down * over, np.nan)
        put(rows, (3, 11, LANES, down * over, 2, 0, 2), y)
    padded = np.pad(x.reshape(2, 3, 4, 5), ((0, 0), (0, 0), (1, 1), (1, 1)))
    laid = columns.reshape(12, 21)
    assert (laid[:, 11] == 0).all()  # the rest of a vector: not old numbers, which may be denormal, and slow
    for j in range(11):
        image, row, column = np.unravel_index(3 + j, (2, down, over))
        seen = padded[image, 1:3, row : row + 3 : 2, 2 * column : 2 * column + 3]
        assert laid[:, j].tolist() == seen.reshape(-1).tolist()
        assert y.reshape(2, 2, -1)[image, :, (3 + j) % (down * over)].tolist() == [j, LANES + j]
    assert np.isnan(y).sum() == y.size - 2 * 11


def test_results_do_not_depend_on_threads_strips_or_images() -> None:
    random = np.random.default_rng(5)
    x = random.standard_normal((3, 24, 37, 41)).astype(np.float32)
    for window, filters in ((Window((3, 3), (2, 2), (1, 1), (1, 1)), 30), (PIXEL, 45)):
        weight, found = random.standard_normal((filters, 24, *window.kernel)).astype(np.float32), []
        for threads in (1, 2, 3, 8):
            set_num_threads(threads)
            found.append(convolved(x, weight, window, 1).tobytes())
            found.append(b"".join(convolved(one[None], weight, window, 1).tobytes() for one in x))
        assert len(set(found)) == 1


def test_many_channels_are_laid_out_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(2)
    channels = 3 * tiled.DEPTH // 9 + 5
    x, weight = (random.integers(-9, 9, shape).astype(np.float32) for shape in ((1, channels, 9, 13), (7, channels, 3, 3)))
    window = Window((3, 3), (1, 1), (1, 1), (1, 1))
    wanted = expected(x, weight, window, 1, Epilogue(negative_slope=0.25))
    np.testing.assert_array_equal(convolved(x, weight, window, 1, Epilogue(negative_slope=0.25)), wanted)


@given(
    st.integers(1, 3),
    st.integers(1, 21),
    st.integers(1, 5),
    st.tuples(st.integers(1, 3), st.integers(1, 4)),
)
def test_panels_are_the_weights_of_some_filters_turned(
    group: int, filters: int, channels: int, kernel: tuple[int, int]
) -> None:
    taps = kernel[0] * kernel[1]
    channels += tiled.DEPTH // taps  # two blocks of K
    weight = np.arange(group * filters * channels * taps, dtype=np.float32).reshape(-1, channels, *kernel)
    panels = tiled.panels_of(weight, group)
    blocks, count, k, each = panels.shape
    assert blocks == 2 and count == group * -(-filters // each) and k % LANES == 0
    together = -(-channels // 2)
    for block, c in enumerate((0, together)):
        part = weight[:, c : c + together].reshape(group, filters, -1)
        for panel in range(count):
            g, m = divmod(panel, count // group)
            own = part[g, m * each : (m + 1) * each]
            assert (panels[block, panel, : own.shape[1], : len(own)] == own.T).all()
    changed = weight + 1
    again = tiled.panels_of(changed, group, panels)
    assert np.shares_memory(again, panels) and (again[0, 0, 0, 0], panels[0, 0, 0, 0]) == (1, 1)


def test_panels_are_kept_where_windows_and_weights_are_few() -> None:
    of = np.dtype(np.float32)
    cases = ((20, 40), 4096, True), ((20, 40), 4097, False), ((20, 41), 128, True), ((20, 41), 129, False)
    for size, filters, kept in cases:
        shapes = (1, 1024, *size), (filters, 1024, 1, 1), (1, filters, *size)
        assert tiled.keeps_panels(shapes, 1, of) == kept
    assert not tiled.keeps_panels(((3, 1024, 20, 20), (129, 1024, 1, 1), (3, 129, 20, 20)), 1, of)  # of all images
    # a panel has its own filters, and whole vectors of K: of groups of two weights it is many times as large
    assert not tiled.keeps_panels(((1, 1 << 18, 3, 5), (1 << 18, 2, 1, 1), (1, 1 << 18, 3, 5)), 1 << 17, of)


def test_slopes_of_all_kinds() -> None:
    random = np.random.default_rng(7)
    x, weight = (random.standard_normal(shape).astype(np.float32) for shape in ((1, 5, 3, 17), (19, 5, 1, 1)))
    for slope in (0.0, 1.0, 0.5, -2.0):
        wanted = expected(x, weight, PIXEL, 1, Epilogue(negative_slope=slope))
        np.testing.assert_allclose(convolved(x, weight, PIXEL, 1, Epilogue(negative_slope=slope)), wanted, rtol=1e-5, atol=1e-5)


def test_numbers_that_are_not_finite_stay_in_their_windows() -> None:
    x = np.ones((1, 2, 9, 11), np.float32)
    x[0, 0, 3, 4], x[0, 1, 7, 8] = np.nan, -np.inf
    weight = np.ones((5, 2, 1, 1), np.float32)
    y = convolved(x, weight, PIXEL, 1, Epilogue(negative_slope=0.0))
    assert np.isnan(y[0, :, 3, 4]).all() and (y[0, :, 7, 8] == 0).all()
    assert (np.delete(y.reshape(5, -1), [3 * 11 + 4, 7 * 11 + 8], axis=1) == 2).all()


def test_what_the_loops_leave_to_others() -> None:
    x, weight, y = np.ones((1, 3, 5, 7), np.float32), np.ones((4, 3, 1, 1), np.float32), np.ones((1, 4, 5, 7), np.float32)
    assert tiled.supports(x, weight, PIXEL, y)
    assert not tiled.supports(x[..., ::-1], weight, PIXEL, y)
    assert not tiled.supports(x.astype(np.float16), weight.astype(np.float16), PIXEL, y.astype(np.float16))
    assert not tiled.supports(x.astype(np.float64), weight, PIXEL, y)
    for inputs, filters in ((512, 1024), (513, 1024)):
        few, weights = np.ones((1, inputs, 2, 4), np.float32), np.ones((filters, inputs, 1, 1), np.float32)
        out = np.ones((1, filters, 2, 4), np.float32)  # 8 windows
        assert tiled.supports(few, weights, PIXEL, out) == (inputs == 512) and tiled.supports(
            few, weights, PIXEL, out, turned=True
        )
    wide = Window((64, 65), (1, 1), (40, 40), (1, 1))
    assert not tiled.supports(x, np.ones((4, 3, *wide.kernel), np.float32), wide, np.ones((1, 4, 22, 23), np.float32))
    deep = np.ones((1, 3, 5, 7, 2), np.float32)
    assert not tiled.supports(deep, np.ones((4, 3, 2, 2, 2), np.float32), Window((2,) * 3, (1,) * 3, (0,) * 3, (1,) * 3), deep)


def test_memory_of_many_filters_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_kept", threading.local())
    monkeypatch.setattr(jobs, "MOST_ROOM", 1 << 20)
    monkeypatch.setattr(tiled, "get_num_threads", lambda: 1)
    monkeypatch.setattr(jobs, "get_num_threads", lambda: 1)
    x, weight = np.ones((1, 2, 3, 2000), np.float32), np.ones((40_000, 2, 1, 1), np.float32)
    for _ in range(2):
        assert (convolved(x, weight[:5].copy(), PIXEL, 1) == 2).all()
        kept = jobs._kept.room.memory
        assert 0 < kept.nbytes < 1 << 20
    assert (convolved(x, weight[:5].copy(), PIXEL, 1) == 2).all() and jobs._kept.room.memory is kept
    assert (convolved(np.ones((2, 2, 3, 6), np.float32), weight, PIXEL, 1) == 2).all()  # a strip of two images: sums are kept
    assert jobs._kept.room is None
