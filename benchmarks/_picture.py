"""A table of times as bars, SVG: a group per row, a bar per contender, relative to the longest of the row."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

COLOURS = ("#d1495b", "#2e6f95", "#66a182", "#edae49", "#8d6a9f", "#5b6b7b")
LINE, GAP, LEFT, WIDE, RIGHT, FONT = 13, 9, 330, 420, 110, 11


def bars(heads: Sequence[str], rows: Sequence[Sequence[str]], keys: int) -> str:
    """heads and rows: a table's cells, the first `keys` of which name a row; a cell of time begins with milliseconds."""
    parts: list[str] = []
    y = 8.0
    for row in rows:
        times = {i: float(cell.split()[0]) for i, cell in enumerate(row[keys:]) if _is_time(cell)}
        middle = y + LINE * len(times) / 2 + 4
        parts.append(
            f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end">{escape(", ".join(filter(None, row[:keys])))}</text>'
        )
        for i, ms in times.items():
            width = WIDE * ms / max(times.values())
            colour = COLOURS[i % len(COLOURS)]
            parts.append(f'<rect x="{LEFT}" y="{y:.0f}" width="{width:.1f}" height="{LINE - 2}" fill="{colour}"/>')
            parts.append(f'<text x="{LEFT + width + 4:.0f}" y="{y + LINE - 4:.0f}">{escape(row[keys + i])}</text>')
            y += LINE
        y += GAP
    for i, head in enumerate(heads[keys:]):
        if any(_is_time(row[keys + i]) for row in rows):
            parts.append(
                f'<rect x="{LEFT}" y="{y:.0f}" width="{LINE}" height="{LINE - 2}" fill="{COLOURS[i % len(COLOURS)]}"/>'
            )
            parts.append(f'<text x="{LEFT + LINE + 5}" y="{y + LINE - 4:.0f}">{escape(head.removesuffix(" ms"))}, ms</text>')
            y += LINE + 2
    width, height = LEFT + WIDE + RIGHT, y + 8
    frame = f'<rect width="{width}" height="{height:.0f}" fill="#ffffff"/>'
    size = f'width="{width}" height="{height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="{FONT}">'
    return "\n".join([head, frame, *parts, "</svg>\n"])


def _is_time(cell: str) -> bool:
    """Return a number of milliseconds, alone or with a ratio in brackets."""
    words = cell.split()
    number = bool(words) and words[0].replace(".", "", 1).isdecimal()
    return number and (len(words) == 1 or words[1].startswith("("))
