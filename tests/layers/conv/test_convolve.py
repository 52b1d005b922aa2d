"""The products of a convolution by columns: as defined, the same whatever the blocks and threads, bit by bit again."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from minicaffe.layers.conv import convolve as module
from minicaffe.layers.conv.convolve import add_weight_gradient, convolve, data_gradient
from minicaffe.layers.conv.window import (
    Window,
    convolve_by_definition,
    data_gradient_by_definition,
    weight_gradient_by_definition,
)
from minicaffe.layers.elementwise.epilogue import Epilogue
from minicaffe.threads import set_num_threads

THREE = Window((3, 2), (2, 1), (1, 0), (1, 2))
WINDOWS = [
    THREE,
    Window((1, 1), (1, 1), (0, 0), (1, 1)),
    Window((1, 1), (2, 3), (0, 0), (1, 1)),
    Window((3, 3), (1, 1), (1, 1), (1, 1)),
    Window((3, 2), (1, 1), (0, 0), (1, 1)),
    Window((2, 3), (3, 2), (2, 4), (2, 3)),
]
GROUPS = 1, 2, 4


def cases(shift: int = 0) -> list[tuple[Window, int, int]]:
    """Windows, groups and numbers of threads: each pair of them."""
    return [(w, g, (i + j + shift) % 3 + 1) for i, w in enumerate(WINDOWS) for j, g in enumerate(GROUPS)]


BLOCKS = [(1, 1), (1000, 7), (5000, 30)]
"""Bytes of a block and the fewest columns of one: one row of one image at a time, some rows, some images, some groups."""


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """So many, which share small convolutions, too."""
    monkeypatch.setattr(module, "MOST_ALONE", 0)
    set_num_threads(request.param)
    return request.param


def arrays(window: Window, group: int, count: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, weight, dy."""
    random = np.random.default_rng(group)
    x, weight = random.normal(size=(count, 4, 11, 9)), random.normal(size=(8, 4 // group, *window.kernel))
    return x, weight, random.normal(size=(count, 8, *window.output((11, 9))))


def products(x: np.ndarray, weight: np.ndarray, dy: np.ndarray, window: Window, group: int) -> list[np.ndarray]:
    y, dx, dweight = np.full_like(dy, np.nan), np.full_like(x, np.nan), np.ones_like(weight)
    convolve(x, weight, window, group, y)
    data_gradient(dy, weight, window, group, dx)
    add_weight_gradient(x, dy, window, group, dweight)
    return [y, dx, dweight]


def defined(x: np.ndarray, weight: np.ndarray, dy: np.ndarray, window: Window, group: int) -> list[np.ndarray]:
    """Return what `products` returns."""
    dx = data_gradient_by_definition(dy, weight, window, group, x.shape[2:])
    return [convolve_by_definition(x, weight, window, group), dx, 1 + weight_gradient_by_definition(x, dy, window, group)]


@pytest.mark.parametrize(("window", "group", "threads"), cases(), indirect=["threads"])
def test_as_defined(window: Window, group: int, threads: int) -> None:
    given = arrays(window, group)
    for actual, expected in zip(products(*given, window, group), defined(*given, window, group), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("block_bytes", "least", "window", "group", "threads"),
    [(*block, *case) for shift, block in enumerate(BLOCKS) for case in cases(shift)],
    indirect=["threads"],
)
def test_blocks_change_nothing(
    window: Window, group: int, block_bytes: int, least: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(module, "LEAST", least)
    monkeypatch.setattr(module, "MOST_DIRECT", least)
    given = arrays(window, group, count=3)
    for actual, expected in zip(products(*given, window, group), defined(*given, window, group), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-12)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize(("window", "group"), [(THREE, 1), (THREE, 4), (WINDOWS[1], 1), (WINDOWS[3], 2)])
def test_finish_is_done_after_the_sums(window: Window, group: int, count: int, threads: int) -> None:
    x, weight, y = arrays(window, group, count)
    plain = np.empty_like(y)
    convolve(x, weight, window, group, plain)
    epilogue = Epilogue(np.linspace(-2, 2, 8), np.linspace(3, -1, 8), 0.0)
    epilogue(plain)
    convolve(x, weight, window, group, y, epilogue)
    np.testing.assert_allclose(y, plain, atol=1e-12)


@pytest.mark.parametrize(("window", "group", "threads"), cases(1), indirect=["threads"])
def test_repeatable_bit_for_bit(window: Window, group: int, threads: int) -> None:
    given = [array.astype(np.float32) for array in arrays(window, group, count=7)]
    first = products(*given, window, group)
    for a, b in zip(first, products(*given, window, group), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("group", [1, 8])
def test_memory_is_bounded_whatever_the_batch(group: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns of all images would take 13 MB."""
    block = 256 << 10
    monkeypatch.setattr(module, "BLOCK_BYTES", block)
    window = Window((3, 3), (2, 2), (1, 1), (1, 1))
    x, weight = np.ones((12, 8, 128, 120), np.float32), np.ones((8, 8 // group, 3, 3), np.float32)
    dy = np.ones((12, 8, 64, 60), np.float32)
    y, dx, dweight = np.empty_like(dy), np.empty_like(x), np.zeros_like(weight)
    tracemalloc.start()
    try:
        convolve(x, weight, window, group, y)
        data_gradient(dy, weight, window, group, dx)
        add_weight_gradient(x, dy, window, group, dweight)
        assert tracemalloc.get_traced_memory()[1] < threads * 4 * block
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("each", "shared"), [(2600, False), (2900, True)])
@pytest.mark.parametrize("columns", [0, 240])
def test_threads_share_what_takes_longer_than_to_begin(
    each: int, shared: bool, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of columns count, too: to copy them takes as long as many multiplications."""
    monkeypatch.setattr(module, "get_num_threads", lambda: 5)
    work = module.Work(1, 40, 150, 1, 12, columns, each - module.COPIED * columns)
    assert (len(work.forward()) == 5) == shared and work.is_small != shared


def test_one_thread_computes_several_small_images(monkeypatch: pytest.MonkeyPatch) -> None:
    window, numbers = Window((3, 3), (1, 1), (1, 1), (1, 1)), np.random.default_rng(0)
    x, weight = numbers.normal(size=(3, 8, 20, 30)).astype(np.float32), numbers.normal(size=(4, 8, 3, 3)).astype(np.float32)
    y, others = np.empty((3, 4, 20, 30), np.float32), list[int]()
    run = module.run
    monkeypatch.setattr(module, "run", lambda tasks: others.append(len(tasks := list(tasks))) or run(tasks))
    for most in (module.MOST_ALONE, 0):
        monkeypatch.setattr(module, "MOST_ALONE", most)
        convolve(x, weight, window, 1, y)
    assert others[0] == 1 < others[1]


@pytest.mark.parametrize("most", [0, 1 << 60])
def test_one_image_by_windows_of_one_pixel(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without blocks."""
    monkeypatch.setattr("minicaffe.layers.conv.convolve.MOST_ALONE", most)
    draw = np.random.default_rng(0)
    x, weight, shift = draw.normal(size=(1, 5, 4, 3)), draw.normal(size=(7, 5, 1, 1)), draw.normal(size=7)
    pixel = Window((1, 1), (1, 1), (0, 0), (1, 1))
    want = np.maximum(np.einsum("mc,nchw->nmhw", weight[:, :, 0, 0], x) + shift[:, None, None], 0)
    y = np.empty((1, 7, 4, 3))
    convolve(x, weight, pixel, 1, y, Epilogue(shift=shift, negative_slope=0.0))
    np.testing.assert_allclose(y, want, atol=1e-12)
