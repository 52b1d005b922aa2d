"""People drawn on an image: a line for each limb, a dot for each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from .drawn_boxes import colour

Place = tuple[float, float, float]


def draw_people(
    image: NDArray[np.uint8], people: Sequence[Mapping[int, Place]], limbs: Sequence[tuple[int, int]]
) -> Image.Image:
    """A picture of image (H, W, 3), BGR, with the limbs of people, each a mapping from a part's number to its x, y and score.
    A limb has one colour in all people."""
    picture = Image.fromarray(np.ascontiguousarray(image[..., ::-1]))
    pen = ImageDraw.Draw(picture)
    width = max(2, round(min(picture.size) / 120))
    for parts in people:
        for k, (a, b) in enumerate(limbs, start=1):
            if a in parts and b in parts:
                pen.line([*parts[a][:2], *parts[b][:2]], fill=colour(k), width=width)
        for x, y, _ in parts.values():
            pen.ellipse([x - width, y - width, x + width, y + width], fill="white", outline="black")
    return picture
