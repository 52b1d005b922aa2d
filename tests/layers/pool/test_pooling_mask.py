"""Where the maxima of pooling windows are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.layers.pool.pooling_mask import first_maximum, first_maximum_dealt
from minicaffe.layers.pool.pooling_methods import max_pool
from minicaffe.layers.pool.pooling_windows import LOWEST, PoolAxis
from minicaffe.threads import Scratch

axes = st.builds(
    lambda size, kernel, stride, pad, floor: PoolAxis(size, kernel, stride, min(pad, kernel - 1), floor),
    st.integers(1, 11),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 3),
    st.booleans(),
).filter(lambda axis: axis.pooled > 0)


@given(axes, axes, st.integers(0, 99))
def test_dealt_out_it_finds_the_same(rows: PoolAxis, columns: PoolAxis, seed: int) -> None:
    """On maps with ties, NaN, -inf and windows of nothing else."""
    random = np.random.default_rng(seed)
    x = random.choice([-1.0, 0.0, 2.0, np.nan, -np.inf], (3, rows.size, columns.size))
    y = max_pool(x, rows, columns)
    expected = first_maximum(x, y, LOWEST, rows, columns, Scratch(x.dtype))
    np.testing.assert_array_equal(first_maximum_dealt(x, y, LOWEST, rows, columns, Scratch(x.dtype)), expected)


def test_by_hand() -> None:
    """Two 3 x 3 windows 2 pixels apart, the first maximum of equal ones; the index is that on the map of width 5."""
    x = np.array([[[1.0, 7, 2, 3, 0], [7, 0, 5, 0, 5], [0, 0, 0, 0, 0]]])
    rows, columns = PoolAxis(3, 3, 2, 0), PoolAxis(5, 3, 2, 0)
    for find in (first_maximum, first_maximum_dealt):
        found = find(x, np.array([[[7.0, 5]]]), LOWEST, rows, columns, Scratch(np.float64))
        assert found.tolist() == [[[1, 7]]]
