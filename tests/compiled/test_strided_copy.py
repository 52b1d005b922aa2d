"""Numbers copied in steps: as NumPy's views say, whatever the axes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe import kernels
from minicaffe.blob import address_of
from minicaffe.compiled.jit import loop
from minicaffe.compiled.jobs import Job
from minicaffe.compiled.strided_copy import AXES, LEAST, copy_calls, copy_strided
from minicaffe.compiled.vectors import turn
from minicaffe.threads import set_num_threads

orders = st.integers(1, AXES).flatmap(
    lambda axes: st.tuples(st.permutations(range(axes)), st.lists(st.integers(1, 5), min_size=axes, max_size=axes))
)


def steps(array: np.ndarray) -> list[int]:
    return [step // array.itemsize for step in array.strides]


def copied(view: np.ndarray, x: np.ndarray, y: np.ndarray, start: int = 0) -> bool:
    """Copy the view of x to y, from y's number `start` on; False where that is not for the loop."""
    target = y.reshape(-1)[start:][: view.size].reshape(view.shape)
    calls = copy_calls(view.shape, steps(view), steps(target), x.dtype, start)
    if calls is not None:
        Job(calls).run(address_of(x), address_of(y))
    return calls is not None


@given(orders, st.integers(0, 7))
def test_axes_in_any_order(given_: tuple[list[int], list[int]], start: int) -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    order, shape = given_
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    y, view = np.full(x.size + 9, np.nan, np.float32), x.transpose(order)
    with kernels.using("numba"):
        assert copied(view, x, y, start)
    np.testing.assert_array_equal(y[start : start + x.size], view.reshape(-1))
    assert np.isnan(y[:start]).all() and np.isnan(y[start + x.size :]).all()


@pytest.mark.parametrize("way", ["definition", "numba"])
def test_the_definition_and_the_machine_code(way: str) -> None:
    """Two maps of 3 x 4 with gaps between rows, and every second number of them."""
    if way == "numba":
        pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    x, y = np.arange(60, dtype=np.float32), np.zeros(24, np.float32)
    run = copy_strided.definition if way == "definition" else copy_strided
    for first, last in ((0, 1), (1, 6)):
        run(x, y, (first, last, 2, 3, 4, 0, 30, 9, 2, 0, 12, 4, 1))
    wanted = [30 * j + 9 * k + 2 * n for j in range(2) for k in range(3) for n in range(4)]
    assert y.tolist() == wanted


@loop("T[::1], T[::1], UniTuple(int64, 6)")
def turned(x: np.ndarray, y: np.ndarray, n: tuple[int, ...]) -> None:
    start, apart, to, pitch, rows, columns = n
    turn(x, start, apart, y, to, pitch, rows, columns)


@pytest.mark.parametrize(
    ("way", "dtype"),
    [
        ("definition", np.float32),
        ("definition", np.float64),
        ("numba", np.float32),
        pytest.param("numba", np.float64, marks=pytest.mark.slow),
    ],
)
@given(st.integers(0, 39), st.integers(0, 140), st.integers(0, 3))
def test_a_matrix_with_gaps_is_turned(way: str, dtype: type, rows: int, columns: int, gap: int) -> None:
    """Squares of every side, and the numbers beside them; what lies in y's gaps stays. Compiling twice is slow."""
    if way == "numba":
        pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    x = np.random.default_rng(1).standard_normal((columns, rows + gap)).astype(dtype)
    y = np.full((rows, columns + 2 * gap), np.nan, dtype)
    run = turned.definition if way == "definition" else turned
    flat = [np.concatenate([np.full(3, np.nan, dtype), array.reshape(-1)]) for array in (x, y)]
    run(*flat, (3, rows + gap, 3, columns + 2 * gap, rows, columns))
    y[:, :columns] = x[:, :rows].T
    assert flat[1][3:].tobytes() == y.tobytes() and np.isnan(flat[1][:3]).all()


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (0, 3, 1, 2), (2, 1, 3, 0), (3, 2, 1, 0)])
def test_large_axes_in_another_order(order: tuple[int, ...]) -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    x = np.random.default_rng(1).standard_normal((18, 37, 5, 21)).astype(np.float32)
    view = x.transpose(order)
    for threads in (1, 3):
        set_num_threads(threads)
        y = np.full(x.size, np.nan, np.float32)
        with kernels.using("numba"):
            assert copied(view, x, y)
        np.testing.assert_array_equal(y.reshape(view.shape), view)


def test_what_is_not_for_the_loop() -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    x = np.zeros((2, 3, 2, 3, 2))
    with kernels.using("numba"):
        assert not copied(x.transpose(4, 3, 2, 1, 0), x, np.zeros(x.size))
        assert not copied(x[0, 0, 0, ::-1], x, np.zeros(6))
        assert not copied(x[:0], x, np.zeros(1))


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("rows", [1, 47])
def test_large_arrays_are_shared_by_threads(rows: int, step: int) -> None:
    """One long row, too; of all numbers, or every second one."""
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    x = np.random.default_rng(1).standard_normal((3, rows, step * 47000 // rows)).astype(np.float32)[..., ::step]
    for threads in (1, 2, 3):
        set_num_threads(threads)
        with kernels.using("numba"):
            y, view = np.full(x.size + 5, np.nan, np.float32), x.swapaxes(0, 1) if rows > 1 else x[1:2]
            calls = copy_calls(view.shape, steps(view), steps(np.empty(view.shape, np.float32)), x.dtype)
            assert calls is not None and len(calls.table) == min(2 * threads, view.size // LEAST)
            assert copied(view, view, y, 5)
        np.testing.assert_array_equal(y[5 : 5 + view.size], view.reshape(-1))
        assert np.isnan(y[:5]).all() and np.isnan(y[5 + view.size :]).all()
