"""A convolution's gradients where most of dy is zero: those that all of dy gives, without computing them from all of it."""

from __future__ import annotations

import math
from unittest.mock import patch

import numpy as np
import pytest

from minicaffe import limits
from minicaffe.blob import Array
from minicaffe.layers.conv import gradients as module
from minicaffe.layers.conv import matrix_products
from minicaffe.layers.conv.gradients import gradients
from minicaffe.layers.conv.window import Window, data_gradient_by_definition, weight_gradient_by_definition
from minicaffe.threads import set_num_threads

CASES = {
    "pixels": (Window((1, 1), (1, 1), (0, 0), (1, 1)), (2, 7, 12, 9)),
    "3x3": (Window((3, 3), (1, 1), (1, 1), (1, 1)), (3, 5, 12, 9)),
    "strided, with holes": (Window((3, 2), (2, 3), (3, 1), (2, 3)), (2, 5, 24, 31)),
    "far beside the map": (Window((2, 3), (1, 2), (7, 5), (1, 1)), (1, 4, 3, 8)),
    "three axes": (Window((2, 1, 3), (1, 2, 1), (1, 0, 1), (1, 1, 2)), (2, 3, 6, 7, 10)),
    "one axis": (Window((5,), (2,), (2,), (1,)), (3, 4, 41)),
}
FILTERS = 11
FEW = {"filters": (0.3, 1.0), "windows": (1.0, 0.1), "both": (0.3, 0.15), "one window": (0.5, 0.0), "none": (0.0, 0.0)}
"""Which part of the filters and of the windows is not zero."""


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> int:
    set_num_threads(request.param)
    return int(request.param)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small maps are looked at, too, and products have several blocks of both sides."""
    for name in ("LEAST", "LEAST_SEEN", "LEAST_CHANNELS", "LEAST_FILTERS", "LEAST_EACH"):
        monkeypatch.setattr(module, name, 1)
    for name, value in (("ROWS", 3), ("COLUMNS", 5), ("LEAST", 1)):
        monkeypatch.setattr(matrix_products, name, value)


def arrays(case: str, few: str) -> tuple[Array, Array, Array, Window]:
    """x, dy and weight."""
    (window, shape), random = CASES[case], np.random.default_rng(3)
    x, weight = random.normal(size=shape), random.normal(size=(FILTERS, shape[1], *window.kernel))
    dy = random.normal(size=(shape[0], FILTERS, *window.output(shape[2:])))
    filters, windows = FEW[few]
    dy *= (np.arange(FILTERS) % 10 < 10 * filters).reshape(1, -1, *[1] * (dy.ndim - 2))
    are = random.permutation(dy[:, 0].size) < max(round(windows * dy[:, 0].size), few == "one window")
    dy *= are.reshape(len(dy), 1, *dy.shape[2:])
    return x, dy, weight, window


def of_all(x: Array, dy: Array, weight: Array, window: Window) -> tuple[Array, Array]:
    dx = data_gradient_by_definition(dy, weight, window, 1, x.shape[2:])
    return dx, 2 + weight_gradient_by_definition(x, dy, window, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("definitions_way")
@pytest.mark.parametrize(
    ("case", "few", "threads"),
    [(case, few, 1 + 2 * ((i + j) % 2)) for i, case in enumerate(CASES) for j, few in enumerate(FEW)],
    indirect=["threads"],
)
def test_equal_those_of_all_of_dy(case: str, few: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, dy, weight, window = arrays(case, few)
    expected = of_all(x, dy, weight, window)
    for bytes_ in (module.BYTES, 3 * weight[0].nbytes):  # three windows at a time
        monkeypatch.setattr(module, "BYTES", bytes_)
        dx, dweight = np.full_like(x, np.nan), np.full_like(weight, 2)
        gradients(x, dy, weight, window, 1, dx, dweight)
        np.testing.assert_allclose(dx, expected[0], atol=1e-12)
        np.testing.assert_allclose(dweight, expected[1], atol=1e-12)


@pytest.mark.usefixtures("loops_way")
@pytest.mark.parametrize(("few", "near"), [("filters", 3e-4), ("windows", 3e-5), ("both", 3e-5)])
def test_float32(few: str, near: float) -> None:
    """Of few filters Winograd's way computes the gradients."""
    (filters, windows), random = FEW[few], np.random.default_rng(5)
    x, weight = random.normal(size=(2, 33, 30, 41)).astype(np.float32), random.normal(size=(70, 33, 3, 3)).astype(np.float32)
    dy = random.normal(size=(2, 70, 30, 41)).astype(np.float32)
    dy *= (np.arange(70) % 10 < 10 * filters).reshape(-1, 1, 1)
    dy *= random.random((2, 1, 30, 41)) < windows
    expected = of_all(x.astype(float), dy.astype(float), weight.astype(float), CASES["3x3"][0])
    dx, dweight = np.full_like(x, np.nan), np.full_like(weight, 2)
    gradients(x, dy, weight, CASES["3x3"][0], 1, dx, dweight)
    for actual, exact in zip((dx, dweight), expected, strict=True):
        assert np.abs(actual - exact).max() < near * np.abs(exact).max()


@pytest.mark.parametrize("shape", [(2, 3, 0, 9), (0, 3, 5, 9)])
def test_maps_without_numbers(shape: tuple[int, ...]) -> None:
    window = Window((3, 3), (1, 1), (2, 2), (1, 1))
    x, weight, dy = np.zeros(shape), np.ones((4, 3, 3, 3)), np.zeros((shape[0], 4, *window.output(shape[2:])))
    dy[:, 1, :, 3] = 1
    dx, dweight = np.full_like(x, np.nan), np.full_like(weight, 2)
    gradients(x, dy, weight, window, 1, dx, dweight)
    np.testing.assert_array_equal(dweight, 2)


@pytest.mark.parametrize("few", FEW)
def test_each_gradient_alone(few: str) -> None:
    x, dy, weight, window = arrays("strided, with holes", few)
    expected = of_all(x, dy, weight, window)
    dx, dweight = np.full_like(x, np.nan), np.full_like(weight, 2)
    gradients(x, dy, weight, window, 1, dx, None)
    gradients(x, dy, weight, window, 1, None, dweight)
    np.testing.assert_allclose(dx, expected[0], atol=1e-12)
    np.testing.assert_allclose(dweight, expected[1], atol=1e-12)


@pytest.mark.parametrize(
    ("few", "filters", "windows"), [("filters", 4, 108 * 3), ("windows", 11, 32), ("both", 4, 49), ("none", 0, 0)]
)
def test_only_what_is_not_zero_is_multiplied(few: str, filters: int, windows: int) -> None:
    x, dy, weight, window = arrays("3x3", few)
    seen: list[tuple[int, int]] = []

    def of_maps(x: Array, dy: Array, *rest: object) -> None:
        seen.append((dy.shape[1], len(dy) * math.prod(dy.shape[2:])))

    def of_columns(dy: Array, *rest: object) -> None:
        seen.append((len(dy), dy.shape[1]))

    with patch.object(module, "add_weight_gradient", of_maps), patch.object(module, "add_product", of_columns):
        gradients(x, dy, weight, window, 1, None, np.zeros_like(weight))
    assert seen == ([(filters, windows)] if filters else [])


SMALL = {  # what is too small, and by which measure
    "multiplications": ("LEAST", 108 * 3 * 11 * 45 + 1),
    "what a window sees": ("LEAST_SEEN", 5 * 9 + 1),
    "parts": ("MOST_WINDOWS", 0.05),
}


@pytest.mark.parametrize("how", ["dense", "grouped", *SMALL])
def test_all_is_multiplied_at_once_where_nothing_is_gained(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, dy, weight, window = arrays("3x3", "windows")
    group = 1
    if how == "dense":
        dy[...] += 1
    elif how == "grouped":
        x, group = np.concatenate([x] * FILTERS, 1), FILTERS
    else:
        monkeypatch.setattr(module, *SMALL[how])
    with patch.object(module, "add_weight_gradient") as called:
        gradients(x, dy, weight, window, group, None, np.zeros_like(weight))
    assert called.call_args.args[1] is dy


@pytest.mark.parametrize(
    ("case", "few", "name", "value"),
    [
        ("3x3", 6, "LEAST_CHANNELS", 6),
        ("3x3", 6, "LEAST_EACH", 109),
        ("pixels", 6, "LEAST_FILTERS", 12),
        ("pixels", 6, "MOST_PIXELS", 0.1),
        ("pixels", 3, "MOST_WINDOWS", 0.0),
        ("3x3", 6, "MOST_PIXELS", 0.0),
        ("3x3", 3, "MOST_PIXELS", 0.5),
    ],
)
def test_which_windows_are_taken_out(case: str, few: int, name: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """few: every so many windows one is not zero."""
    x, dy, weight, window = arrays(case, "windows")
    dy[...] = (np.arange(dy[0, 0].size) % few == 0).reshape(dy.shape[2:])
    monkeypatch.setattr(module, name, value)
    with patch.object(module, "add_product") as called:
        gradients(x, dy, weight, window, 1, None, np.zeros_like(weight))
    assert called.called == ((case, few, name) in {("pixels", 3, "MOST_WINDOWS"), ("3x3", 6, "MOST_PIXELS")})


def test_columns_stay_within_the_limit() -> None:
    x, dy, weight, window = arrays("3x3", "windows")
    expected = of_all(x, dy, weight, window)
    dx, dweight = np.full_like(x, np.nan), np.full_like(weight, 2)
    with limits.raised({"bytes": 2 * weight[0].nbytes}):
        gradients(x, dy, weight, window, 1, dx, dweight)
    np.testing.assert_allclose(dx, expected[0], atol=1e-12)
    np.testing.assert_allclose(dweight, expected[1], atol=1e-12)


def test_zeros_only_where_it_is_looked_at_first() -> None:
    """The few windows that are looked at say nothing for sure."""
    x, dy, weight, window = arrays("3x3", "filters")
    dy[...] = 1
    count = dy[:, 0].size
    image, place = np.divmod((np.arange(module.SAMPLES) * module.GOLDEN % 1 * count).astype(int), count // len(dy))
    dy.reshape(*dy.shape[:2], -1)[image, :, place] = 0
    expected = of_all(x, dy, weight, window)
    dx, dweight = np.full_like(x, np.nan), np.full_like(weight, 2)
    with patch.object(module, "_gather") as gathered:
        gradients(x, dy, weight, window, 1, dx, dweight)
    assert not gathered.called
    np.testing.assert_allclose(dx, expected[0], atol=1e-12)
    np.testing.assert_allclose(dweight, expected[1], atol=1e-12)


def test_nan_is_not_zero() -> None:
    x, dy, weight, window = arrays("3x3", "none")
    dy[1, 2, 3, 4] = np.nan
    dx, dweight = np.zeros_like(x), np.zeros_like(weight)
    gradients(x, dy, weight, window, 1, dx, dweight)
    assert np.isnan(dweight[2]).all()
    assert not np.isnan(np.delete(dweight, 2, 0)).any()
    assert np.isnan(dx[1, :, 2:5, 3:6]).all()
    assert np.isnan(dx).sum() == 9 * x.shape[1]


def test_what_zeros_are_multiplied_with_is_left_out() -> None:
    x, dy, weight, window = arrays("3x3", "none")
    dy[0, 1, 2, 2] = 1
    x[:, :, 8:], weight[2:] = np.inf, np.nan
    dx, dweight = np.full_like(x, np.nan), np.zeros_like(weight)
    gradients(x, dy, weight, window, 1, dx, dweight)
    assert np.isfinite(dx).all()
    assert np.isfinite(dweight).all()
    np.testing.assert_array_equal(dweight[1], x[0, :, 1:4, 1:4])
