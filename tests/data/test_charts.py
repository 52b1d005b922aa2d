"""Charts: ticks, where values lie, many points, labels apart."""

from __future__ import annotations

import numpy as np
import pytest

from minicaffe.data.charts import MOST_POINTS, Axis, Chart, Panel, apart, light, linear_axis, log_axis, tick_text


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 7.3, [0, 2, 4, 6, 8]),
        (-3, 41, [-10, 0, 10, 20, 30, 40, 50]),
        (0.91, 1, [0.9, 0.92, 0.94, 0.96, 0.98, 1]),
        (5, 5, [5, 6, 7, 8, 9, 10]),
        (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
    ],
)
def test_a_linear_axis_ends_at_round_numbers(low: float, high: float, ticks: list[float]) -> None:
    axis = linear_axis(low, high)
    assert (axis.ticks, axis.low, axis.high) == (ticks, ticks[0], ticks[-1])


def test_an_axis_of_iterations_ends_where_they_do() -> None:
    axis = linear_axis(3, 1234, 6, whole=False)
    assert (axis.low, axis.high, axis.ticks) == (3, 1234, [500, 1000])


@pytest.mark.parametrize(("low", "high"), [(0, 1e-300), (1e29, 1e29 * (1 + 1e-12)), (-1e30, 1e30), (1e-30, 2e-30), (-7, -7)])
def test_an_axis_of_extreme_values_has_a_length(low: float, high: float) -> None:
    axis = linear_axis(low, high)
    assert np.isfinite(axis.shares([low, high])).all() and 2 <= len(axis.ticks) <= 12


def test_a_logarithmic_axis() -> None:
    axis = log_axis(0.03, 4)
    assert axis.ticks == pytest.approx([0.05, 0.1, 0.2, 0.5, 1, 2])
    assert log_axis(0.0002, 7).ticks == pytest.approx([0.001, 0.01, 0.1, 1])
    assert log_axis(0.03, 4, 3).ticks == pytest.approx([0.1, 1])
    assert 2 <= len(log_axis(1e-30, 1e30).ticks) <= 8
    assert log_axis(0.003, 0.004).ticks == pytest.approx([0.003, 0.0035, 0.004])
    np.testing.assert_allclose(Axis(0.01, 1, [], is_log=True).shares([0, 0.01, 0.1, 1, 9, np.nan]), [0, 0, 0.5, 1, 1, np.nan])


def test_numbers_on_an_axis() -> None:
    assert [tick_text(value) for value in (20000.0, 500.0, 0.05, 1e-6, -1000.0)] == ["20,000", "500", "0.05", "1e-06", "-1,000"]


def test_values_lie_where_the_axes_say() -> None:
    chart = Chart(200, 100)
    panel = Panel(chart, (20, 10, 180, 90), linear_axis(0, 10, whole=False), linear_axis(0, 1), "share")
    np.testing.assert_allclose(panel.places([0, 5, 10, 7], [0, 0.25, 2, np.nan]), [[20, 90], [100, 70], [180, 10]])
    panel.line([0, 10], [0.5, 0.5], "#ff0000", 3)
    chart.dot(100, 30, "#0000ff", 4)
    image = chart.image()
    assert image.size == (200, 100)
    assert image.getpixel((90, 50)) == (255, 0, 0) and image.getpixel((100, 30)) == (0, 0, 255)
    assert image.getpixel((90, 60)) == (255, 255, 255)


def test_a_line_of_many_points_keeps_its_extremes() -> None:
    """A single spike among 100,000 values is still drawn to its top."""
    count = 25 * MOST_POINTS
    values = np.zeros(count)
    values[count // 2] = 1
    chart = Chart(400, 100)
    Panel(chart, (0, 10, 400, 90), linear_axis(0, count, whole=False), linear_axis(0, 1), "").line(
        np.arange(count), values, "#ff0000"
    )
    pixels = np.asarray(chart.image())
    red = (pixels[..., 0] > 200) & (pixels[..., 1] < 150)
    assert red[14:85, 198:203].any(axis=1).all()
    assert not red[14:85, 20:180].any()


def test_labels_are_apart() -> None:
    assert apart([50, 51, 10], 0, 100, 18) == [50, 68, 10]
    assert apart([99, 98, 97], 0, 100, 18) == [100, 82, 64]
    assert apart([], 0, 100) == []


def test_a_light_colour() -> None:
    assert light("#204080", 0.5) == "#90a0c0"
