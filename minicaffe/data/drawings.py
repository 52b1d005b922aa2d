"""Pictures of results: boxes, people, scores, masks and flow, drawn on images.

A flow has Middlebury's colours: the hue is the direction, white is no motion, and the longest is saturated. The wheel has 55
colours: red to yellow in 15 steps, to green in 6, to cyan in 4, to blue in 11, to magenta in 13, to red in 6.
Source: Baker et al. 2011, and Middlebury's colorcode.cpp (Scharstein, 2007).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from minicaffe.blob import Array
from minicaffe.errors import on_one_line
from minicaffe.formats.flo import UNKNOWN

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

LONGEST_LABEL = 100
"""Most letters of a class's name that are drawn: a file may contain a name of millions."""

COLOURS = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#808000", "#f032e6", "#000075")


def draw_boxes(
    image: NDArray[np.uint8], boxes: Floats, scores: Floats, classes: Ints, class_names: Sequence[str] | None = None
) -> Image.Image:
    """Return a picture of image (H, W, 3), BGR, with a labelled frame around each of boxes (n, 4), the first on top."""
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
    """Return the name of a class, or "class 3" if it has no name."""
    return names[index] if names is not None and 0 <= index < len(names) else f"class {index}"


def _label(pen: ImageDraw.ImageDraw, font: Any, text: str, box: Floats, colour: str) -> None:
    """Write white text on a plate at the top left corner of box, inside the picture."""
    left, top, right, bottom = pen.textbbox((0, 0), text, font=font)
    width, height = right - left + 6, bottom - top + 6
    x = min(max(float(box[0]), 0), max(pen.im.size[0] - width, 0))
    y = float(box[1]) - height if box[1] >= height else float(box[1])
    y = min(max(y, 0), max(pen.im.size[1] - height, 0))
    pen.rectangle([x, y, x + width, y + height], fill=colour)
    pen.text((x + 3 - left, y + 3 - top), text, fill="white", font=font)


def default_font(size: int) -> Any:
    """Return Pillow's default font. Before Pillow 10.1 it has a fixed size."""
    try:
        return ImageFont.load_default(size=size)
    except TypeError:
        return ImageFont.load_default()


def colour(k: Any) -> str:
    """Return the colour of a class, "#rrggbb"."""
    return COLOURS[(int(k) - 1) % len(COLOURS)]


Place = tuple[float, float, float]


def draw_people(
    image: NDArray[np.uint8], people: Sequence[Mapping[int, Place]], limbs: Sequence[tuple[int, int]]
) -> Image.Image:
    """Return a picture of image (H, W, 3), BGR, with the limbs of people. A limb has one colour in all people.

    people: for each person a mapping from a part's number to its x, y and score.
    """
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


LEAST_WIDTH = 320
"""Pixels of a picture's width: a smaller image is enlarged, so that names have room."""


def draw_scores(image: NDArray[np.uint8], rows: Sequence[tuple[str, float]]) -> Image.Image:
    """Return a picture of image (H, W, 3), BGR, and below it a line for each class: its name, its score and a bar.

    A bar's length is the score's share of 1, or of the greatest score if that is above 1. A score below 0 has no bar.
    """
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
    """Return a colour, "#rrggbb", mixed with white, so that black letters can be read on it."""
    return tuple(255 - (255 - int(colour[k : k + 2], 16)) // 2 for k in (1, 3, 5))


Image8 = NDArray[np.uint8]


def palette() -> Image8:
    """Return the colours (256, 3), RGB, of PASCAL VOC's masks.

    Three bits of the class at a time, the lowest first, are bits of red, green and blue, the highest first.
    """
    classes, colours = np.arange(256), np.zeros((256, 3), np.uint8)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= (((classes >> channel) & 1) << (7 - bit)).astype(np.uint8)
        classes = classes >> 3
    return colours


def draw_mask(classes: Image8) -> Image.Image:
    """Return classes (H, W) as a picture whose pixels are the classes, shown in palette()'s colours."""
    picture = Image.fromarray(classes)
    picture.putpalette(palette().tobytes())
    return picture


def draw_map(probabilities: NDArray[np.float32]) -> Image.Image:
    """Return probabilities (H, W), 0 to 1, as a grey picture, black to white."""
    return Image.fromarray((255 * probabilities).round().clip(0, 255).astype(np.uint8))


def draw_overlay(image: Image8, classes: Image8) -> Image.Image:
    """Return image (H, W, 3), BGR, half covered by the colours of classes (H, W)."""
    photo = Image.fromarray(np.ascontiguousarray(image[..., ::-1]))
    return Image.blend(photo, draw_mask(classes).convert("RGB"), 0.5)


def draw_legend(rows: Sequence[tuple[int, str]]) -> Image.Image:
    """Return a picture with a line for each class and its text."""
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


_STEPS = ((15, 1, 1), (6, 0, -1), (4, 2, 1), (11, 1, -1), (13, 0, 1), (6, 2, -1))
"""For each stretch: steps, the channel that changes, up or down."""


@cache
def wheel() -> Array:
    """Return the colours (55, 3), RGB, from 0 to 255, in the order of the angle."""
    rows, colour = [], [255, 0, 0]
    for steps, channel, sign in _STEPS:
        for k in range(steps):
            step = 255 * k // steps
            colour[channel] = step if sign > 0 else 255 - step
            rows.append(list(colour))
        colour[channel] = 255 if sign > 0 else 0
    return np.array(rows, np.float64)


def draw_flow(flow: Array, longest: float | None = None) -> Image.Image:
    """Return a picture of flow (2, H, W), u and v.

    longest: the length that is saturated (default: the flow's); longer ones are darker, unknown ones (beyond 1e9, NaN) black.
    """
    u, v = flow.astype(np.float64)
    with np.errstate(invalid="ignore"):
        known = np.maximum(np.abs(u), np.abs(v)) <= UNKNOWN
    u, v = np.where(known, u, 0), np.where(known, v, 0)
    length = np.hypot(u, v)
    part = length / (longest or length.max() or 1)
    colours = wheel()
    place = (np.arctan2(-v, -u) / np.pi + 1) / 2 * (len(colours) - 1)
    low = np.floor(place).astype(np.intp)
    share = (place - low)[..., None]
    hue = ((1 - share) * colours[low] + share * colours[(low + 1) % len(colours)]) / 255
    part = part[..., None]
    pixels = np.where(part <= 1, 1 - part * (1 - hue), 0.75 * hue) * known[..., None]
    return Image.fromarray(np.floor(255 * pixels).astype(np.uint8))
