"""Epilogue against BatchNorm's, Scale's and ReLU's own arithmetic, whole and by parts."""

from __future__ import annotations

import numpy as np
import pytest

from minicaffe.layers.conv.epilogue import Epilogue


def maps() -> np.ndarray:
    return np.random.default_rng(5).standard_normal((2, 7, 3, 4)).astype(np.float32)


@pytest.mark.parametrize("slope", [None, 0.0, 0.25, 2.0])
def test_scale_shift_and_relu_in_this_order(slope: float | None) -> None:
    x = maps()
    scale, shift = np.linspace(-2, 2, 7, dtype=np.float32), np.linspace(1, -3, 7, dtype=np.float32)
    y = x.copy()
    Epilogue(scale, shift, slope)(y)
    wanted = x * scale[:, None, None] + shift[:, None, None]
    if slope is not None:
        wanted = np.where(wanted > 0, wanted, wanted * np.float32(slope))
    np.testing.assert_array_equal(y, wanted)


def test_what_is_none_is_left_out() -> None:
    x = maps()
    y = x.copy()
    Epilogue()(y)
    np.testing.assert_array_equal(y, x)
    Epilogue(negative_slope=0.0)(y)
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_some_channels_and_rows_at_a_time_is_the_same() -> None:
    x = maps()
    epilogue = Epilogue(np.arange(7, dtype=np.float32), np.arange(7, 14, dtype=np.float32), 0.0)
    whole, pieces = x.copy(), x.copy()
    epilogue(whole)
    for channels in (slice(0, 3), slice(3, 7)):
        for rows in (slice(0, 1), slice(1, 3)):
            epilogue(pieces[:, channels, rows], channels)
    np.testing.assert_array_equal(pieces, whole)


def test_float64_stays_float64() -> None:
    y = maps().astype(np.float64) * 1e-12 + 1
    before = y.copy()
    Epilogue(shift=np.full(7, -1.0))(y)
    np.testing.assert_array_equal(y, before - 1)
