from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from minicaffe.layers.roi.row_sums import add_rows, longest_first, sum_rows
from minicaffe.threads import Scratch


def by_loop(rows: NDArray, source: NDArray, target: NDArray, total: NDArray) -> NDArray:
    """add_rows as a plain loop: each term on the total, in rising order of source."""
    total = total.copy()
    for t in np.argsort(source, kind="stable"):
        total[target[t]] += rows[source[t]]
    return total


def test_longest_first_by_hand() -> None:
    order, having = longest_first(np.array([1, 0, 3, 1]))
    assert order.tolist() == [2, 0, 3, 1] and having == [3, 1, 1]
    order, having = longest_first(np.zeros(0, int))
    assert order.tolist() == [] and having == []


def test_sum_rows_by_hand() -> None:
    rows = np.array([[1.0, 10, 100], [2, 20, 200], [4, 40, 400], [8, 80, 800]])
    sums = sum_rows(rows, [np.array([0, 3]), np.array([2])], [2, 1], 3, Scratch())
    np.testing.assert_array_equal(sums, [[5, 50, 500], [8, 80, 800], [0, 0, 0]])


def test_sum_rows_reads_no_row_but_its_terms() -> None:
    rows = np.array([[np.nan, 1], [2, np.inf], [3, 4]])
    np.testing.assert_array_equal(sum_rows(rows, [np.array([2, 0])], [2], 2, Scratch()), [[3, 4], [np.nan, 1]])


@given(st.integers(1, 6), st.integers(0, 40), st.sampled_from([np.float32, np.float64]), st.integers(0, 2**32 - 1))
def test_add_rows_adds_in_order(dim: int, count: int, dtype: type, seed: int) -> None:
    random = np.random.default_rng(seed)
    rows, total = random.standard_normal((9, dim)).astype(dtype), random.standard_normal((11, dim)).astype(dtype)
    source, target = random.integers(0, 9, count), random.integers(0, 11, count)
    expected = by_loop(rows, source, target, total)
    add_rows(rows, source, target, total, Scratch())
    np.testing.assert_array_equal(total, expected)


@pytest.mark.parametrize("size", [2**18, 2**19])
def test_pairs_on_either_side_of_32_bits(size: int) -> None:
    rows = np.arange(2.0**12)[:, None]
    total = np.zeros((size, 1))
    add_rows(rows, np.array([4095, 1, 4095]), np.array([size - 1, size - 1, 0]), total, Scratch())
    assert total[-1] == 4096 and total[0] == 4095 and np.count_nonzero(total) == 2


def test_scratch_gives_the_same_memory_again() -> None:
    scratch = Scratch()
    first = scratch("a", 3, 4, dtype=np.float32)
    assert scratch("a", 2, 5, dtype=np.float32).base is first.base
    assert scratch("b", 2, 5, dtype=np.float32).base is not first.base
    assert scratch("a", 2, 5, dtype=np.float64).dtype == np.float64
    assert scratch("a", 4, 5, dtype=np.float64).shape == (4, 5)


@pytest.mark.parametrize("cut", [1, 7, 20])
def test_a_cut_between_calls_changes_no_bit(cut: int) -> None:
    random = np.random.default_rng(0)
    rows, target = random.standard_normal((40, 3), np.float32), random.integers(0, 4, 40)
    source, once, twice = np.arange(40), np.zeros((4, 3), np.float32), np.zeros((4, 3), np.float32)
    add_rows(rows, source, target, once, Scratch())
    for part in (slice(cut), slice(cut, None)):
        add_rows(rows, source[part], target[part], twice, Scratch())
    np.testing.assert_array_equal(twice, once)
