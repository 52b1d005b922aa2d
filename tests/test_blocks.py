"""Blocks of large arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe import set_num_threads
from minicaffe.blob import ALIGNMENT
from minicaffe.threads import Scratch, blocks, each_block


@given(st.lists(st.integers(0, 9), max_size=4), st.integers(1, 100))
def test_blocks_cover_every_place_once(shape: list[int], size: int) -> None:
    seen = np.zeros(shape, int)
    for index in blocks(shape, size):
        assert 0 < seen[index].size <= size
        seen[index] += 1
    assert (seen == 1).all()


def test_last_axes_are_whole() -> None:
    whole, rest = slice(0, 5), slice(3, 4)
    assert blocks((2, 4, 5), 15) == [(slice(n, n + 1), c, whole) for n in (0, 1) for c in (slice(0, 3), rest)]
    assert len(blocks((2, 4, 5))) == 1


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_thread_count_does_all_blocks(threads: int) -> None:
    x = np.arange(2 * 7 * 11.0).reshape(2, 7, 11)
    set_num_threads(threads)
    each_block(x.shape, lambda index: np.negative(x[index], out=x[index]), 9)
    np.testing.assert_array_equal(x.ravel(), -np.arange(2 * 7 * 11.0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_temporary_arrays_begin_at_a_line_of_the_cache(dtype: type) -> None:
    scratch = Scratch(dtype)
    arrays = [scratch(f"{size}", size, 3) for size in (1, 5, 7, 1001)]
    assert [a.ctypes.data % ALIGNMENT for a in arrays] == [0] * 4
    assert [(a.shape, a.dtype) for a in arrays] == [((size, 3), dtype) for size in (1, 5, 7, 1001)]
    for i, array in enumerate(arrays):
        array[...] = i
    assert [sorted(set(a.ravel().tolist())) for a in arrays] == [[0], [1], [2], [3]]
