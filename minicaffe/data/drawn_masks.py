"""The classes of an image's pixels as pictures: a mask in colours, the photo under it, a legend; probabilities in grey."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from minicaffe.errors import on_one_line

from .drawn_boxes import LONGEST_LABEL, default_font

Image8 = NDArray[np.uint8]


def palette() -> Image8:
    """The colours (256, 3), RGB, of PASCAL VOC's masks: three bits of the class at a time, the lowest first, are bits of red,
    green and blue, the highest first."""
    classes, colours = np.arange(256), np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= (((classes >> channel) & 1) << (7 - bit)).astype(np.uint8)
        classes = classes >> 3
    return colours


def draw_mask(classes: Image8) -> Image.Image:
    """classes (H, W) as a picture whose pixels are the classes, shown in palette()'s colours."""
    picture = Image.fromarray(classes)
    picture.putpalette(palette().tobytes())
    return picture


def draw_map(probabilities: NDArray[np.float32]) -> Image.Image:
    """probabilities (H, W), 0 to 1, as a grey picture, black to white."""
    return Image.fromarray((255 * probabilities).round().clip(0, 255).astype(np.uint8))


def draw_overlay(image: Image8, classes: Image8) -> Image.Image:
    """image (H, W, 3), BGR, half covered by the colours of classes (H, W)."""
    photo = Image.fromarray(np.ascontiguousarray(image[..., ::-1]))
    return Image.blend(photo, draw_mask(classes).convert("RGB"), 0.5)


def draw_legend(rows: Sequence[tuple[int, str]]) -> Image.Image:
    """A picture with a line for each class and its text."""
    font, line, colours = default_font(14), 24, palette()
    texts = [on_one_line(text)[:LONGEST_LABEL] for _, text in rows]
    width = max((int(font.getbbox(text)[2]) for text in texts), default=0)
    picture = Image.new("RGB", (width + 48, line * max(len(rows), 1) + 8), "white")
    pen = ImageDraw.Draw(picture)
    for i, ((k, _), text) in enumerate(zip(rows, texts, strict=True)):
        y = 4 + i * line
        pen.rectangle([8, y + 3, 32, y + line - 4], fill=tuple(colours[k].tolist()), outline="black")
        pen.text((40, y + 3), text, fill="black", font=font)
    return picture
