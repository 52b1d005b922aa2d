"""The precision-recall curves of a report as a picture."""

from __future__ import annotations

import math

from PIL import Image, ImageDraw

from minicaffe.data.drawings import colour, default_font

from .evaluation import ClassReport, Report

LEFT, TOP, SIDE, LEGEND, LINE = 60, 30, 480, 260, 18
"""Pixels: of the margins, the side of the square of the curves, the width of the legend, and the height of a line in it."""


def draw_curves(report: Report) -> Image.Image:
    """Precision over recall at an IoU of 0.5, a curve a class, best class first in the legend."""
    known = sorted((one for one in report.classes if not math.isnan(one.ap)), key=lambda one: -one.ap)
    height = max(TOP + SIDE + 50, 2 * TOP + LINE * (len(known) + 1))
    image = Image.new("RGB", (LEFT + SIDE + LEGEND, height), "white")
    draw, text = ImageDraw.Draw(image), default_font(13)
    for i in range(6):
        share = i / 5
        x, y = LEFT + share * SIDE, TOP + (1 - share) * SIDE
        draw.line([(x, TOP), (x, TOP + SIDE)], fill="#dddddd")
        draw.line([(LEFT, y), (LEFT + SIDE, y)], fill="#dddddd")
        draw.text((x, TOP + SIDE + 6), f"{share:.1f}", fill="black", font=text, anchor="ma")
        draw.text((LEFT - 6, y), f"{share:.1f}", fill="black", font=text, anchor="rm")
    draw.text((LEFT + SIDE / 2, TOP + SIDE + 26), "recall", fill="black", font=text, anchor="ma")
    draw.text((LEFT, TOP - 8), "precision at IoU 0.5", fill="black", font=text, anchor="ls")
    draw.text((LEFT + SIDE + 20, TOP), f"mean AP {report.mean_ap:.3f}", fill="black", font=text, anchor="lm")
    for i, one in enumerate(known, 1):
        line, y = colour(report.classes.index(one) + 1), TOP + i * LINE
        draw.line([(LEFT + SIDE + 20, y), (LEFT + SIDE + 44, y)], fill=line, width=3)
        draw.text((LEFT + SIDE + 52, y), f"{one.name:.20} {one.ap:.3f}", fill="black", font=text, anchor="lm")
        points = _points(one)
        if len(points) > 1:
            draw.line(points, fill=line, width=2)
    return image


def _points(one: ClassReport) -> list[tuple[float, float]]:
    """The curve in pixels."""
    return [(LEFT + r * SIDE, TOP + (1 - p) * SIDE) for r, p in zip(one.recall.tolist(), one.precision.tolist())]
