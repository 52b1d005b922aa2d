"""Charts: curves on axes, as pictures. Lines are drawn larger and shrunk, so that they are smooth.

chart = Chart(800, 400)
panel = Panel(chart, (60, 20, 700, 360), linear_axis(0, 500), log_axis(0.01, 3), "loss")
panel.line(iterations, losses, "#4363d8")
chart.image().save("chart.png")
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw

from .drawings import default_font

LARGER = 3
"""How much larger lines are drawn than they appear."""
INK, QUIET, GRID, PAPER = "#000000", "#5d6369", "#dddddd", "#ffffff"
LINE = 18
"""Pixels from a line of text to the next one."""
MOST_POINTS = 4000
"""Most points of a line that are drawn one by one. Of more, each column of pixels shows the least and the greatest."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Axis:
    """The values from low to high, with labelled ticks."""

    low: float
    high: float
    ticks: Sequence[float]
    is_log: bool = False

    def shares(self, values: ArrayLike) -> Floats:
        """Return how far along the axis values are: 0 at low, 1 at high. Values beyond an end are at that end."""
        low, high, found = self.low, self.high, np.asarray(values, np.float64)
        with np.errstate(invalid="ignore"):
            found = found.clip(low, high)
        if self.is_log:
            low, high, found = math.log(low), math.log(high), np.log(found)
        return (found - low) / (high - low)


def linear_axis(low: float, high: float, count: int = 5, *, whole: bool = True) -> Axis:
    """Return an axis with about count ticks, 1, 2 or 5 times a power of ten apart. whole: whether it ends at ticks."""
    high = high if high - low > 1e-9 * max(abs(low), abs(high)) else low + (abs(low) or 1.0)
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(times for times in (1, 2, 5, 10) if times * power >= rough * 0.999)
    if whole:
        first, last = math.floor(low / step + 1e-6), math.ceil(high / step - 1e-6)
    else:
        first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    ticks = [float(f"{i * step:.12g}") for i in range(first, last + 1)]
    return Axis(ticks[0], ticks[-1], ticks) if whole else Axis(low, high, ticks)


def log_axis(low: float, high: float, most: int = 8) -> Axis:
    """Return a logarithmic axis of at most `most` ticks: powers of ten, with 2 and 5 times those if they fit.

    A narrow axis has the ticks of a linear one. low: above 0.
    """
    high = max(high, low * 1.1)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for every, times in ((1, (1, 2, 5)), *((every, (1,)) for every in range(1, len(powers) + 1))):
        ticks = [k * 10.0**i for i in powers if i % every == 0 for k in times]
        ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(ticks) <= most:
            break
    is_narrow = len(ticks) < 2
    return Axis(low, high, linear_axis(low, high, 4, whole=False).ticks if is_narrow else ticks, is_log=True)


def tick_text(value: float) -> str:
    """Return a tick's label: 20,000, 0.05 or 1e-06."""
    return f"{value:,.0f}" if value == round(value) and 1000 <= abs(value) < 1e9 else f"{value:g}"


class Chart:
    """A picture of lines and texts on white, in pixels."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._image = Image.new("RGB", (width * LARGER, height * LARGER), PAPER)
        self._pen = ImageDraw.Draw(self._image)
        self._texts: list[tuple[tuple[float, float], str, str, str, int]] = []

    def line(self, points: ArrayLike, colour: str, width: float = 1) -> None:
        """Draw a line through points (n, 2)."""
        places = np.asarray(points, np.float64) * LARGER
        if len(places) > 1:
            self._pen.line([(x, y) for x, y in places.tolist()], colour, max(1, round(width * LARGER)), joint="curve")

    def dot(self, x: float, y: float, colour: str, radius: float = 3, hole: str | None = None) -> None:
        """Draw a dot; with a hole a ring."""
        for size, fill in ((radius, colour), *(((radius - 2, hole),) if hole else ())):
            box = [(x - size) * LARGER, (y - size) * LARGER, (x + size) * LARGER, (y + size) * LARGER]
            self._pen.ellipse(box, fill=fill)

    def text(self, x: float, y: float, text: str, anchor: str = "lm", *, colour: str = INK, size: int = 13) -> None:
        """Write a text. anchor: Pillow's, as "lm" for the left end and the middle of the line."""
        self._texts.append(((x, y), text, anchor, colour, size))

    def image(self) -> Image.Image:
        """Return the picture."""
        image = self._image.reduce(LARGER)
        pen = ImageDraw.Draw(image)
        for place, text, anchor, colour, size in self._texts:
            pen.text(place, text, fill=colour, font=default_font(size), anchor=anchor)
        return image


class Panel:
    """Axes in a chart. box: left, top, right, bottom in pixels. title: written above, at the left."""

    def __init__(
        self, chart: Chart, box: tuple[float, float, float, float], x: Axis, y: Axis, title: str, *, ticks: bool = True
    ) -> None:
        self.chart, self.box, self.x, self.y = chart, box, x, y
        left, top, right, bottom = box
        for across in x.shares(x.ticks).tolist():
            chart.line([(left + across * (right - left), top), (left + across * (right - left), bottom)], GRID)
        for value, up in zip(y.ticks, y.shares(y.ticks).tolist(), strict=True):
            chart.line([(left, bottom - up * (bottom - top)), (right, bottom - up * (bottom - top))], GRID)
            chart.text(left - 6, bottom - up * (bottom - top), tick_text(value), "rm")
        for value, across in zip(x.ticks, x.shares(x.ticks).tolist(), strict=True) if ticks else ():
            chart.text(left + across * (right - left), bottom + 6, tick_text(value), "ma")
        chart.text(left, top - 8, title, "ls")

    def places(self, x: ArrayLike, y: ArrayLike) -> Floats:
        """Return the pixels (n, 2) of values, without those that are not finite."""
        left, top, right, bottom = self.box
        points = np.stack([left + self.x.shares(x) * (right - left), bottom - self.y.shares(y) * (bottom - top)], axis=1)
        return points[np.isfinite(points).all(axis=1)]

    def line(self, x: ArrayLike, y: ArrayLike, colour: str, width: float = 2) -> None:
        """Draw a line through values."""
        self.chart.line(_thinned(self.places(x, y)), colour, width)


def _thinned(points: Floats) -> Floats:
    """Return the least and the greatest point of each column of pixels, if the points are many."""
    if len(points) <= MOST_POINTS:
        return points
    starts = np.flatnonzero(np.diff(np.floor(points[:, 0]), prepend=-1))
    low, high = (reduce(points[:, 1], starts) for reduce in (np.minimum.reduceat, np.maximum.reduceat))
    return np.stack([points[starts, 0].repeat(2), np.stack([low, high], axis=1).reshape(-1)], axis=1)


def light(colour: str, share: float = 0.5) -> str:
    """Return a colour, "#rrggbb", mixed with white. share: of white."""
    return "#" + "".join(f"{round(255 - (255 - int(colour[k : k + 2], 16)) * (1 - share)):02x}" for k in (1, 3, 5))


def apart(heights: Sequence[float], least: float, most: float, gap: float = LINE) -> list[float]:
    """Return heights at least gap apart and, if they have room, from least to most: where labels of lines go."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    found: dict[int, float] = {}
    place = -math.inf
    for i in order:
        place = found[i] = max(heights[i], place + gap, least)
    place = most + gap
    for i in reversed(order):
        place = found[i] = min(found[i], place - gap)
    return [found[i] for i in range(len(heights))]
