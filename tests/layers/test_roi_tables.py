"""The layers of maxima over rois in blocks and steps: any roi set, any number of threads, bounded memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from minicaffe import get_num_threads, set_num_threads
from minicaffe.layers.roi import roi_align_max as roi_align_max_module
from minicaffe.layers.roi import roi_bin_maxima
from minicaffe.layers.roi.roi_geometry import Bins
from minicaffe.layers.roi.roi_pooling import RoiPool
from minicaffe.ops import (
    roi_align_max,
    roi_align_max_argmax,
    roi_align_max_backward,
    roi_pool,
    roi_pool_argmax,
    roi_pool_backward,
)

Array = np.ndarray[Any, Any]
SIZE, CHANNELS, IMAGES = (23, 31), 37, 2


def feature_map(dtype: Any = np.float32) -> Array:
    """Many equal values, and channels for more than one block."""
    return np.round(3 * np.random.default_rng(0).standard_normal((IMAGES, CHANNELS, *SIZE))).astype(dtype)


def some_rois(count: int) -> Array:
    random = np.random.default_rng(1)
    corners = random.uniform(-4, 34, (count, 2, 2))
    return np.column_stack([random.integers(0, IMAGES, count), corners.min(axis=1), corners.max(axis=1)]).astype(np.float32)


def bins_of(rois: Array, pooled: tuple[int, int], scale: float = 1, size: tuple[int, int] = SIZE) -> Bins:
    return RoiPool(pooled_h=pooled[0], pooled_w=pooled[1], spatial_scale=scale).plan(rois, size).places


def on_threads(count: int, work: Callable[[], list[Array]]) -> list[Array]:
    before = get_num_threads()
    set_num_threads(count)
    try:
        return work()
    finally:
        set_num_threads(before)


def test_lengths_are_weighed_for_each_set_of_rois() -> None:
    """A roi of 21 x 30 in bins of up to 8 x 11: no table pays for itself; for ten thousand rois every length does."""
    pixels = SIZE[0] * SIZE[1]
    one = np.array([[0, 1, 1, 30, 21]], np.float32)
    few = roi_bin_maxima.best_lengths(bins_of(one, (3, 3)), pixels)
    many = roi_bin_maxima.best_lengths(bins_of(np.repeat(one, 10000, axis=0), (3, 3)), pixels)
    assert few.tables == 1
    assert many == roi_bin_maxima.Lengths(tuple(range(1, 8)), tuple(range(1, 11)))


def test_tables_of_a_large_map_are_few() -> None:
    size = (500, 700)
    bins = bins_of(np.array([[0, 0, 0, 699, 499]] * 5000, np.float32), (1, 1), 1, size)
    assert roi_bin_maxima.best_lengths(bins, 500 * 700).tables == 1


@pytest.mark.parametrize("count", [1, 7, 900])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_few_and_many_rois_have_the_first_maximum_of_each_bin(count: int, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roi_bin_maxima, "BINS", 40)
    x, rois = feature_map(dtype), some_rois(count)
    y, argmax = roi_pool(x, rois, 3, 2, 0.9), roi_pool_argmax(x, rois, 3, 2, 0.9)
    bins = bins_of(rois.astype(dtype), (3, 2), 0.9)
    for r in range(0, count, 7):
        for i, j in np.ndindex(3, 2):
            rows, columns = slice(bins.hstart[r, i], bins.hend[r, i]), slice(bins.wstart[r, j], bins.wend[r, j])
            block = x[int(rois[r, 0]), :, rows, columns]
            if not block.size:
                assert not y[r, :, i, j].any() and (argmax[r, :, i, j] == -1).all()
                continue
            first = block.reshape(CHANNELS, -1).argmax(axis=1)
            h, w = np.divmod(first, block.shape[2])
            np.testing.assert_array_equal(y[r, :, i, j], block.max(axis=(1, 2)))
            np.testing.assert_array_equal(argmax[r, :, i, j], (h + rows.start) * SIZE[1] + w + columns.start)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_number_of_threads_changes_no_bit(dtype: Any) -> None:
    x, rois = feature_map(dtype), some_rois(300)
    dy = np.random.default_rng(2).standard_normal((300, CHANNELS, 3, 2)).astype(dtype)

    def work() -> list[Array]:
        argmax = roi_pool_argmax(x, rois, 3, 2, 0.9)
        return [roi_pool(x, rois, 3, 2, 0.9), argmax, roi_pool_backward(dy, rois, argmax, x.shape)]

    for one, three in zip(on_threads(1, work), on_threads(3, work), strict=True):
        assert one.tobytes() == three.tobytes()


def test_backward_block_by_block_adds_in_the_order_of_the_rois(monkeypatch: pytest.MonkeyPatch) -> None:
    x, rois = feature_map(), some_rois(50)
    argmax = roi_pool_argmax(x, rois, 3, 2, 0.9)
    dy = np.random.default_rng(2).standard_normal(argmax.shape).astype(np.float32)
    dx = roi_pool_backward(dy, rois, argmax, x.shape)
    expected = np.zeros((IMAGES, CHANNELS, SIZE[0] * SIZE[1]), np.float32)
    for r, c, i, j in np.argwhere(argmax >= 0):
        expected[int(rois[r, 0]), c, argmax[r, c, i, j]] += dy[r, c, i, j]
    np.testing.assert_array_equal(dx, expected.reshape(x.shape))
    monkeypatch.setattr(roi_bin_maxima, "SUMS", 5 * IMAGES * SIZE[0] * SIZE[1])
    monkeypatch.setattr(roi_bin_maxima, "VALUES", 7 * 5 * 6)
    assert roi_pool_backward(dy, rois, argmax, x.shape).tobytes() == dx.tobytes()


def test_what_nobody_won_may_be_anything() -> None:
    dy = np.array([np.inf, -np.inf, np.nan, 3], np.float32).reshape(1, 1, 4, 1)
    argmax = np.array([-1, -1, -1, 2], np.int32).reshape(1, 1, 4, 1)
    dx = roi_pool_backward(dy, np.zeros((1, 5), np.float32), argmax, (1, 1, 2, 2))
    np.testing.assert_array_equal(dx.ravel(), [0, 0, 3, 0])


def test_memory_does_not_grow_with_rois_times_the_map() -> None:
    """100 more rois over a map of 9000 pixels: under a byte a roi and pixel, all three passes."""
    x = np.random.default_rng(0).standard_normal((1, 5, 90, 100)).astype(np.float32)

    def peak(count: int) -> int:
        rois = np.repeat(np.array([[0, 0, 0, 99, 89]], np.float32), count, axis=0)
        tracemalloc.start()
        try:
            argmax = roi_pool_argmax(x, rois, 2, 3, 1.0)
            roi_pool_backward(roi_pool(x, rois, 2, 3, 1.0), rois, argmax, x.shape)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(1100) - peak(1000) < 100 * 90 * 100 / 4


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_align_max_s_bits_do_not_depend_on_threads_or_steps(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x, rois = np.random.default_rng(3).standard_normal((IMAGES, CHANNELS, *SIZE)).astype(dtype), some_rois(90)
    dy = np.random.default_rng(2).standard_normal((90, CHANNELS, 3, 2)).astype(dtype)

    def work() -> list[Array]:
        argmax = roi_align_max_argmax(x, rois, 3, 2, 0.9)
        return [roi_align_max(x, rois, 3, 2, 0.9), argmax, roi_align_max_backward(dy, rois, argmax, 0.9, x.shape)]

    whole = on_threads(1, work)
    monkeypatch.setattr(roi_align_max_module, "CHUNK", 10 * dy[0].size)
    monkeypatch.setattr(roi_align_max_module, "VALUES", 1000)
    values, argmax, dx = on_threads(3, work)
    assert on_threads(3, work)[2].tobytes() == dx.tobytes()
    assert (values.tobytes(), argmax.tobytes()) == (whole[0].tobytes(), whole[1].tobytes())
    if np.lib.NumpyVersion(np.__version__) < "2.4.0":  # whose matrix products round by their sizes
        np.testing.assert_allclose(dx, whole[2], rtol=1e-4, atol=1e-5)
    else:
        assert dx.tobytes() == whole[2].tobytes()
