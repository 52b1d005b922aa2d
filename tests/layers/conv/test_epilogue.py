"""Epilogue against BatchNorm's, Scale's and ReLU's own arithmetic, whole and by parts."""

from __future__ import annotations

import numpy as np
import pytest

from minicaffe.layers.elementwise.epilogue import Epilogue

pytestmark = pytest.mark.usefixtures("loops_way")


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


@pytest.mark.parametrize("slope", [None, 0.0, 0.25])
def test_infinity_and_nan(slope: float | None) -> None:
    values = np.float32([np.inf, -np.inf, np.nan, 3e38, -3e38, 0, -0.0])
    y = np.tile(values, (2, 7, 1))
    with np.errstate(all="ignore"):
        Epilogue(np.full(7, 2, np.float32), np.full(7, 1, np.float32), slope)(y)
        wanted = values * 2 + np.float32(1)
        if slope is not None:
            wanted = np.maximum(wanted, wanted * np.float32(slope) if slope else 0)
    np.testing.assert_array_equal(y, np.tile(wanted, (2, 7, 1)))


@pytest.mark.parametrize("shape", [(0, 7, 3), (2, 7, 0), (2, 7), (2, 7, 1, 1)])
def test_other_shapes(shape: tuple[int, ...]) -> None:
    y = np.ones(shape, np.float32)
    Epilogue(np.arange(7, dtype=np.float32), None, 0.0)(y)
    np.testing.assert_array_equal(y, np.ones(shape) * np.arange(7).reshape(1, 7, *[1] * (len(shape) - 2)))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("slope", [None, 0.0, 0.25])
def test_backward_is_that_of_relu_and_then_of_scale(slope: float | None, channels_last: bool) -> None:
    y, dy, scale = (
        maps(),
        np.random.default_rng(6).standard_normal((2, 7, 3, 4)).astype(np.float32),
        np.arange(7, dtype=np.float32),
    )
    if channels_last:  # a channel's numbers are apart
        y, dy = (np.moveaxis(np.ascontiguousarray(np.moveaxis(one, 1, 3)), 3, 1) for one in (y, dy))
    wanted = dy * np.where(y > 0, np.float32(1), np.float32(1 if slope is None else slope)) * scale[:, None, None]
    Epilogue(scale, None, slope).backward(y[:, 2:5], dy[:, 2:5], slice(2, 5))
    np.testing.assert_array_equal(dy[:, 2:5], wanted[:, 2:5])
    assert (dy[:, 5:] != wanted[:, 5:]).any()
