"""The best classes of an image drawn under it: a bar for each score."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from minicaffe.errors import on_one_line

from .drawn_boxes import COLOURS, LONGEST_LABEL, default_font

LEAST_WIDTH = 320
"""Pixels of a picture's width: a smaller image is enlarged, so that names have room."""


def draw_scores(image: NDArray[np.uint8], rows: Sequence[tuple[str, float]]) -> Image.Image:
    """A picture of image (H, W, 3), BGR, and under it a line for each class: its name, its score, and a bar of that part of the
    width. If a score is above 1, the bars are parts of the greatest one; below 0 there is no bar."""
    photo = Image.fromarray(np.ascontiguousarray(image[..., ::-1]))
    times = -(-LEAST_WIDTH // photo.width)
    if times > 1:
        photo = photo.resize((photo.width * times, photo.height * times), Image.Resampling.NEAREST)
    size = max(14, photo.width // 32)
    font, line, whole = default_font(size), 2 * size, max([1.0, *(score for _, score in rows)])
    picture = Image.new("RGB", (photo.width, photo.height + line * len(rows)), "white")
    picture.paste(photo, (0, 0))
    pen = ImageDraw.Draw(picture)
    for i, (name, score) in enumerate(rows):
        top = photo.height + i * line
        if (length := round(photo.width * score / whole)) > 0:
            pen.rectangle([0, top + 2, length - 1, top + line - 3], fill=_light(COLOURS[i % len(COLOURS)]))
        text = f"{score:.4f}  {on_one_line(name)[:LONGEST_LABEL]}"
        pen.text((size // 2, top + size // 2), text, fill="black", font=font)
    return picture


def _light(colour: str) -> tuple[int, ...]:
    """A colour, "#rrggbb", mixed with white, so that black letters can be read on it."""
    return tuple(255 - (255 - int(colour[k : k + 2], 16)) // 2 for k in (1, 3, 5))
