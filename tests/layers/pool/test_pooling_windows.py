"""Pooling's windows on one axis."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.layers.pool.pooling_windows import PoolAxis, plane_blocks, reduce_windows, windows_backward


def axis_of(size: int, kernel: int, stride: int, pad: int, floor: bool, clip: bool) -> PoolAxis:
    """Padding of this axis clips its windows; that of the other may."""
    pad = min(pad, kernel - 1)
    return PoolAxis(size, kernel, stride, pad, floor, clip or pad > 0)


axes = st.builds(
    axis_of,
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
)


@pytest.mark.parametrize(
    ("axis", "pooled"),
    [
        (PoolAxis(224, 3, 2, 0), 112),
        (PoolAxis(224, 3, 2, 0, floor=True), 111),
        (PoolAxis(7, 3, 2, 1, clip=True), 4),
        (PoolAxis(5, 2, 3, 1, clip=True), 2),
        (PoolAxis(2, 1, 5, 0), 2),
        (PoolAxis(2, 1, 5, 0, clip=True), 1),
        (PoolAxis(3, 4, 2, 0), 1),
        (PoolAxis(2, 4, 2, 0), 0),
    ],
)
def test_pooled(axis: PoolAxis, pooled: int) -> None:
    assert axis.pooled == pooled


@given(axes)
def test_taps_visit_every_pixel_of_every_window_once_in_order(axis: PoolAxis) -> None:
    pixels: list[list[int]] = [[] for _ in range(axis.pooled)]
    for windows, on_map in axis.taps():
        for window, pixel in zip(range(axis.pooled)[windows], range(axis.size)[on_map], strict=True):
            pixels[window].append(pixel)
    for window, have in enumerate(pixels):
        start = window * axis.stride - axis.pad
        assert have == list(range(max(start, 0), min(start + axis.kernel, axis.size)))


def test_lengths_count_the_padding_up_to_the_padded_end() -> None:
    np.testing.assert_array_equal(PoolAxis(4, 3, 2, 1, clip=True).lengths(np.float32), [3, 3, 2])
    assert PoolAxis(9, 2, 5, 0).lengths(np.float32)[-1] == -1


@given(axes, axes)
def test_spread_is_the_transpose_of_the_sum(rows: PoolAxis, columns: PoolAxis) -> None:
    if min(rows.pooled, columns.pooled) < 1:
        return
    random = np.random.default_rng(0)
    x, dy = random.normal(size=(2, 3, rows.size, columns.size)), random.normal(size=(2, 3, rows.pooled, columns.pooled))
    dx = np.empty_like(x)
    windows_backward(dy, rows, columns, dx)
    assert math.isclose((reduce_windows(np.add, x, rows, columns, 0.0) * dy).sum(), (x * dx).sum(), abs_tol=1e-9)


def test_plane_blocks_cover_every_map_once() -> None:
    x = np.zeros((7, 600, 500), np.float32)  # 1.2 MB a map, where a block has about 2
    sizes = [len(x[block]) for block in plane_blocks(x)]
    assert sizes == [1] * 7
    assert [len(x[block]) for block in plane_blocks(x[:, :200])] == [5, 2]
    assert list(plane_blocks(x[:0])) == []


@pytest.mark.parametrize("stride", [1, 2, 3, 7])
@pytest.mark.parametrize("pad", [0, 2])
def test_windows_of_a_wide_map_by_loops(stride: int, pad: int) -> None:
    """Wide rows begin with lines of the cache; the last windows are clipped, and row ends do not mix."""
    rows, columns = PoolAxis(5, 3, 2, 1), PoolAxis(131, 4, stride, pad)
    x = np.random.default_rng(stride).integers(-99, 99, (3, 5, 131)).astype(np.float64)
    x[1, :, 50:60] = np.nan
    for operation, start in ((np.fmax, -50.0), (np.add, 0.0)):
        expected = np.full((3, rows.pooled, columns.pooled), start)
        for r, c in np.ndindex(rows.pooled, columns.pooled):
            top, first = max(r * 2 - 1, 0), max(c * stride - pad, 0)
            window = x[:, top : r * 2 + 2, first : c * stride - pad + 4]
            expected[:, r, c] = operation.reduce(window.reshape(3, -1), axis=1, initial=start)
        np.testing.assert_array_equal(reduce_windows(operation, x, rows, columns, start), expected)
