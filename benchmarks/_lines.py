"""Lines over a common axis, SVG: each series of points (x, y) in another colour, both axes from 0."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from benchmarks._picture import COLOURS, FONT

WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 560, 260, 60, 12, 24, 44
TICKS = 6
"""The most steps on an axis."""


def lines(series: Mapping[str, Sequence[tuple[float, float]]], x_name: str, y_name: str) -> str:
    """Return a picture of the series, by name."""
    points = [point for line in series.values() for point in line]
    (most_x, step_x), (most_y, step_y) = (
        axis(room * max((point[i] for point in points), default=1.0)) for i, room in ((0, 1), (1, 1.1))
    )

    def at(x: float, y: float) -> str:
        return f"{LEFT + WIDTH * x / most_x:.1f},{TOP + HEIGHT * (1 - y / most_y):.1f}"

    parts = [f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888888"/>']
    for i in range(round(most_x / step_x) + 1):
        x = LEFT + WIDTH * i * step_x / most_x
        parts.append(f'<text x="{x:.0f}" y="{TOP + HEIGHT + 14}" text-anchor="middle">{i * step_x:,g}</text>')
    for i in range(round(most_y / step_y) + 1):
        y = TOP + HEIGHT * (1 - i * step_y / most_y)
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{i * step_y:,g}</text>')
    parts.append(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 28}" text-anchor="middle">{escape(x_name)}</text>')
    parts.append(f'<text x="{LEFT + 6}" y="{TOP + 14}">{escape(y_name)}</text>')
    for i, (name, line) in enumerate(series.items()):
        colour, y = COLOURS[i % len(COLOURS)], TOP + HEIGHT + 42 + 14 * i
        parts.append(f'<polyline points="{" ".join(at(*point) for point in line)}" fill="none" stroke="{colour}"/>')
        parts.append(f'<rect x="{LEFT}" y="{y - 8}" width="12" height="8" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 18}" y="{y}">{escape(name)}</text>')
    width, height = LEFT + WIDTH + RIGHT, TOP + HEIGHT + BOTTOM + 14 * len(series)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
    frame = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return "\n".join([f'{head} font-size="{FONT}">', frame, *parts, "</svg>\n"])


def axis(most: float) -> tuple[float, float]:
    """Return the end of an axis from 0 that includes `most`, a multiple of a round step, and this step."""
    size = 10.0 ** math.floor(math.log10((most or 1.0) / TICKS))
    step = next(size * times for times in (1, 2, 5, 10) if size * times * TICKS >= (most or 1.0))
    return step * max(math.ceil(most / step), 1), step
