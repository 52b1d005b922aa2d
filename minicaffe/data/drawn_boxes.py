"""Boxes drawn on an image: a frame, the class and the score of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from minicaffe.errors import on_one_line

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

LONGEST_LABEL = 100
"""Most letters of a class's name that are drawn: a file may contain a name of millions."""

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000", "#f032e6", "#000075")


def draw_boxes(
    image: NDArray[np.uint8], boxes: Floats, scores: Floats, classes: Ints, class_names: Sequence[str] | None = None
) -> Image.Image:
    """A picture of image (H, W, 3), BGR, with a labelled frame around each of boxes (n, 4), the first on top."""
    picture = Image.fromarray(np.ascontiguousarray(image[..., ::-1]))
    pen = ImageDraw.Draw(picture)
    size = max(11, round(min(picture.size) / 28))
    font = default_font(size)
    frame = max(2, size // 6)
    order = range(len(scores) - 1, -1, -1)
    for i in order:
        left, top, right, bottom = boxes[i].tolist()
        pen.rectangle([left, top, max(left, right), max(top, bottom)], outline=colour(classes[i]), width=frame)
    for i in order:
        name = on_one_line(class_name(int(classes[i]), class_names))[:LONGEST_LABEL]
        label = f"{name} {scores[i]:.2f}"
        _label(pen, font, label, boxes[i], colour(classes[i]))
    return picture


def class_name(index: int, names: Sequence[str] | None) -> str:
    """The name of a class, or "class 3" if it has no name."""
    return names[index] if names is not None and 0 <= index < len(names) else f"class {index}"


def _label(pen: ImageDraw.ImageDraw, font: Any, text: str, box: Floats, colour: str) -> None:
    """Write white text on a plate at the top left corner of box, moved to stay inside the picture."""
    left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
    width, height = right - left + 6, bottom - top + 6
    x = min(max(float(box[0]), 0), max(pen.im.size[0] - width, 0))
    y = float(box[1]) - height if box[1] >= height else float(box[1])
    y = min(max(y, 0), max(pen.im.size[1] - height, 0))
    pen.rectangle([x, y, x + width, y + height], fill=colour)
    pen.text((x + 3 - left, y + 3 - top), text, fill="white", font=font)


def default_font(size: int) -> Any:
    """Pillow's default font; before Pillow 10.1 it has a fixed size."""
    try:
        return ImageFont.load_default(size=size)
    except TypeError:
        return ImageFont.load_default()


def colour(k: Any) -> str:
    """The colour of a class, "#rrggbb"."""
    return COLOURS[(int(k) - 1) % len(COLOURS)]
