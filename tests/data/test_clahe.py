"""CLAHE, against OpenCV 4.14's bytes (cv2.createCLAHE with clip limit 4) and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.data.noise import clipped, equalised_by_tiles, tile_tables

UNEVEN = [
    [64, 128, 128, 191, 223, 64, 160, 64, 191, 128, 96, 64, 32],
    [191, 255, 192, 255, 255, 128, 223, 128, 32, 255, 192, 191, 223],
    [160, 192, 191, 223, 32, 160, 16, 191, 96, 64, 255, 223, 239],
    [191, 255, 192, 255, 64, 255, 96, 255, 192, 191, 96, 64, 128],
]
"""The first rows of 10 x 13 pixels of which OpenCV pads both sides."""
EVEN = [
    [85, 128, 149, 148, 142, 184],
    [128, 128, 219, 128, 184, 184],
    [106, 146, 181, 170, 159, 219],
    [85, 128, 149, 170, 177, 184],
]
"""Every fifth row and fourth column of 16 x 24 pixels; all of them sum to 61051."""


def test_as_opencv() -> None:
    i, j = np.arange(10)[:, None], np.arange(13)
    np.testing.assert_array_equal(equalised_by_tiles(((i * 37 + j * j * 11 + i * j * 5) % 256).astype(np.uint8))[:4], UNEVEN)
    i, j = np.arange(16)[:, None], np.arange(24)
    even = equalised_by_tiles(((i * 3 + j * j) // 7 % 256).astype(np.uint8))
    np.testing.assert_array_equal(even[::5, ::4], EVEN)
    assert even.astype(int).sum() == 61051


def test_clipping_by_hand() -> None:
    """Of 259 cut, each of 256 levels gets 1, and the levels 0, 85 and 170 the other 3."""
    counts = np.zeros((1, 256), int)
    counts[0, 7] = 269
    spread = clipped(counts, 10)[0]
    assert spread.sum() == 269 and spread[7] == 11
    assert np.flatnonzero(spread == 2).tolist() == [0, 85, 170]


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 99))
def test_any_size_and_tables_that_never_fall(height: int, width: int, seed: int) -> None:
    levels = np.random.default_rng(seed).integers(0, 256, (height, width), dtype=np.uint8)
    assert equalised_by_tiles(levels).shape == (height, width)
    tables, high, wide = tile_tables(np.resize(levels, (16, 24)), 4.0)
    assert tables.shape == (8, 8, 256) and (high, wide) == (2, 3)
    assert (np.diff(tables.astype(int)) >= 0).all() and (tables[..., -1] == 255).all()


@pytest.mark.parametrize("level", [0, 200])
def test_a_flat_image_stays_flat(level: int) -> None:
    assert np.unique(equalised_by_tiles(np.full((16, 24), level, np.uint8))).size == 1
