"""Pooling as loops, which define it, and as NumPy computes it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe import kernels
from minicaffe.blob import address_of
from minicaffe.compiled import pooling_methods as pooling_loops
from minicaffe.compiled.jobs import Job
from minicaffe.compiled.pooling import LEAST, pooling_calls
from minicaffe.compiled.pooling_methods import line_length, windows_of
from minicaffe.layers.pool.pooling_methods import ave_pool, max_pool, max_pool_gradient, max_pool_places
from minicaffe.layers.pool.pooling_windows import LOWEST, PoolAxis
from minicaffe.threads import get_num_threads, set_num_threads

TYPES = [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)]
"""Loops of float64 take long to compile."""
axes = st.builds(
    lambda size, kernel, stride, pad, floor: PoolAxis(size, kernel, stride, min(pad, kernel - 1), floor),
    st.integers(1, 11),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 3),
    st.booleans(),
).filter(lambda axis: axis.pooled > 0)
VALUES = [-1.0, 0.0, 2.0, 5.0, np.nan, -np.inf, np.inf, LOWEST]


def maps(rows: PoolAxis, columns: PoolAxis, seed: int, dtype: type = np.float64) -> np.ndarray:
    """Two maps with ties, numbers that are not finite, and windows of nothing else."""
    return np.random.default_rng(seed).choice(VALUES, (2, rows.size, columns.size)).astype(dtype)


@given(axes, axes, st.integers(0, 99))
def test_numpy_computes_what_the_loops_say(rows: PoolAxis, columns: PoolAxis, seed: int) -> None:
    x, windows = maps(rows, columns, seed), windows_of(rows, columns)
    room, places = np.empty((2, line_length(columns))), np.empty((2, line_length(columns)), np.int32)
    y, y_too, mean = np.empty((3, 2, rows.pooled, columns.pooled))
    index, dx, expected_dx = np.empty(y.shape, np.int32), np.empty(x.shape), np.empty(x.shape)
    dy = np.arange(1.0, y.size + 1).reshape(y.shape)
    sizes = np.outer(rows.lengths(float), columns.lengths(float))
    with np.errstate(all="ignore"):
        pooling_loops.max_pool.definition(x, windows, y, room)
        pooling_loops.max_pool_places.definition(x, windows, y_too, index, room, places)
        pooling_loops.add_at_places.definition(dy, index, dx)
        pooling_loops.ave_pool.definition(x, windows, sizes, mean, room)
    with kernels.using("numpy"):
        maxima = np.empty_like(y)
        expected = max_pool_places(x, rows, columns, maxima)
        max_pool_gradient(dy, x, rows, columns, expected_dx)
        with np.errstate(invalid="ignore"):
            expected_mean = ave_pool(x, rows, columns)
        np.testing.assert_array_equal(max_pool(x, rows, columns), maxima)
    for array, wanted in ((y, maxima), (y_too, maxima), (index, expected), (dx, expected_dx), (mean, expected_mean)):
        np.testing.assert_array_equal(array, wanted)


def pooled(by_maximum: bool, x: np.ndarray, rows: PoolAxis, columns: PoolAxis) -> np.ndarray:
    """The maxima or the averages of maps, as a forward computes them in the way that runs."""
    if not kernels.compiled():
        return (max_pool if by_maximum else ave_pool)(x, rows, columns)
    y = np.full((len(x), rows.pooled, columns.pooled), np.nan, x.dtype)
    Job(pooling_calls(by_maximum, len(x), rows, columns, x.dtype, get_num_threads())).run(address_of(x), address_of(y))
    return y


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
def test_compiled_loops_compute_what_numpy_does(dtype: type) -> None:
    """Maps wide enough for the vector part of a loop; nothing but what is compiled ahead runs."""
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    ours = (pooling_loops.max_pool, pooling_loops.max_pool_places, pooling_loops.add_at_places, pooling_loops.ave_pool)
    found = []
    for way in ("numpy", "numba"):
        for rows, columns in ((PoolAxis(9, 3, 2, 1), PoolAxis(150, 3, 2, 1)), (PoolAxis(5, 5, 1, 2), PoolAxis(131, 6, 1, 0))):
            x = maps(rows, columns, 7, dtype)
            y, dx = np.empty((2, rows.pooled, columns.pooled), dtype), np.empty_like(x)
            dy = np.arange(1, y.size + 1, dtype=dtype).reshape(y.shape)
            with kernels.using(way), np.errstate(all="ignore"):
                for one in ours if way == "numba" else ():
                    one.compile(dtype)
                ready = [len(one.dispatcher().signatures) for one in ours if way == "numba"]
                found += [max_pool_places(x, rows, columns, y), y.copy()]
                max_pool_gradient(dy, x, rows, columns, dx)
                found.append(dx)
                for by_maximum in (True, False):
                    found.append(pooled(by_maximum, x, rows, columns))
                assert ready == [len(one.dispatcher().signatures) for one in ours if way == "numba"]
    half = len(found) // 2
    for expected, array in zip(found[:half], found[half:], strict=True):
        np.testing.assert_allclose(array, expected, rtol=1e-6)


wide = st.builds(
    lambda size, kernel, stride, pad: PoolAxis(size, min(kernel, size + pad), stride, min(pad, kernel - 1)),
    st.integers(1, 75),
    st.integers(1, 8),
    st.integers(1, 3),
    st.integers(0, 3),
).filter(lambda axis: axis.pooled > 0)


@pytest.mark.slow
@given(axes, wide, st.integers(0, 99))
def test_rows_of_any_width_by_the_vector(rows: PoolAxis, columns: PoolAxis, seed: int) -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    x = maps(rows, columns, seed, np.float32)
    for by_maximum in (True, False):
        found = []
        for way in ("numpy", "numba"):
            with kernels.using(way), np.errstate(all="ignore"):
                found.append(pooled(by_maximum, x, rows, columns))
        np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


@pytest.mark.usefixtures("compiled_loops")
@pytest.mark.parametrize("dtype", TYPES)
def test_averages_of_whole_maps(dtype: type) -> None:
    """Of fewer pixels than a vector has numbers, of as many as some have, and of more."""
    for shape in ((5, 2, 3), (3, 4, 8), (4, 6, 11)):
        x = np.random.default_rng(3).standard_normal(shape).astype(dtype)
        sizes, expected = np.full((1, 1), 7, dtype), x.sum((1, 2), keepdims=True) / 7
        for run in (pooling_loops.ave_pool_one.definition, pooling_loops.ave_pool_one):
            y = np.full((shape[0], 1, 1), np.nan, dtype)
            run(x, sizes, y)
            np.testing.assert_allclose(y, expected, rtol=1e-5 if dtype is np.float32 else 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [PoolAxis(53, 3, 2, 1), PoolAxis(53, 2, 3, 0), PoolAxis(53, 53, 1, 0)])
def test_planes_are_shared_by_threads(columns: PoolAxis) -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    rows = PoolAxis(31, 31, 1, 0) if columns.kernel == 53 else PoolAxis(31, 3, 2, 1)
    x = np.random.default_rng(5).standard_normal((47, 31, 53)).astype(np.float32)
    with kernels.using("numpy"):
        expected = max_pool(x, rows, columns), ave_pool(x, rows, columns)
    for threads in (1, 2, 3):
        set_num_threads(threads)
        for by_maximum, wanted in zip((True, False), expected):
            calls = pooling_calls(by_maximum, len(x), rows, columns, x.dtype, threads)
            with kernels.using("numba"):
                y = pooled(by_maximum, x, rows, columns)
            assert len(calls.table) == min(2 * threads, x.size // LEAST)
            np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-6)
