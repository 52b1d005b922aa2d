"""Scenes of circles, squares and triangles, drawn from a seed: one seed, one scene.

A scene is 400 to 480 by 300 to 360 pixels: a background (a colour or a gradient, with stripes or blobs, and noise) and
1 to 8 shapes, turned at random, the longer side of their boxes log-uniform from 20 to 250 pixels. Larger shapes are
drawn first. Two boxes never overlap by more than IoU 0.3, and what later boxes cover of a box is at most half of it.
A box is tight around the outline as it was before anything covered it: whole pixels, both corners inclusive.

    python examples/shapes/scenes.py train --count 2000 --first-seed 0
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from rich.progress import track

CLASSES = ("__background__", "circle", "square", "triangle")
WIDTHS, HEIGHTS = (400, 480), (300, 360)
SIDES = (20, 250)
MOST_SHAPES = 8
MOST_IOU = 0.3
MOST_COVER = 0.5
LEAST_CONTRAST = 40.0
SUPERSAMPLING = 4

Image8 = NDArray[np.uint8]
Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Generator = np.random.Generator


def scene(seed: int) -> tuple[Image8, Ints, Ints]:
    """The scene of a seed: image (H, W, 3) RGB, boxes (n, 4) as x1, y1, x2, y2 inclusive, classes (n,) from 1."""
    random = np.random.default_rng(seed)
    width, height = (int(random.integers(least, most + 1)) for least, most in (WIDTHS, HEIGHTS))
    canvas = background(random, width, height)
    outlines = [outline(random, side) for side in _sides(random)]
    classes: list[int] = []
    boxes: list[list[int]] = []
    for kind, points in outlines:
        box = _place(random, points, boxes, width, height)
        if box is not None:
            _paint(random, canvas, points, box)
            classes.append(kind)
            boxes.append(box)
    canvas += random.normal(0, random.uniform(0, 10), canvas.shape).astype(np.float32)
    image = canvas.clip(0, 255).astype(np.uint8)
    return image, np.array(boxes, np.int64).reshape(-1, 4), np.array(classes, np.int64)


def background(random: Generator, width: int, height: int) -> Floats:
    """A canvas (height, width, 3) of values around 0 to 255: a gradient between two colours, stripes or blobs on it."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    angle = random.uniform(0, 2 * math.pi)
    along = (np.cos(angle) * (x / width - 0.5) + np.sin(angle) * (y / height - 0.5)).astype(np.float32) + 0.5
    first = random.uniform(30, 225, 3)
    second = first + random.uniform(-60, 60, 3)
    canvas: Floats = (first + along[..., None] * (second - first)).astype(np.float32)
    texture = random.integers(0, 3)
    if texture == 1:
        canvas += _stripes(random, x, y)[..., None] * random.uniform(-30, 30, 3).astype(np.float32)
    elif texture == 2:
        canvas += _blobs(random, width, height)
    return canvas


def outline(random: Generator, side: int) -> tuple[int, Floats]:
    """A class and the points (p, 2) of its outline, turned at random, whose box is whole pixels and starts at 0, 0."""
    kind = int(random.integers(1, len(CLASSES)))
    turn = random.uniform(0, 2 * math.pi)
    while True:
        angles = _corner_angles(random, kind) + turn
        points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        points -= points.min(axis=0)
        size = np.round(points.max(axis=0) * side / points.max())
        if size.min() >= SIDES[0]:
            return kind, (points * size / points.max(axis=0)).astype(np.float32)
        turn = random.uniform(0, 2 * math.pi)
        side = min(side + 1, SIDES[1])


def iou(box: Sequence[int], other: Sequence[int]) -> float:
    """Intersection over union of two boxes with inclusive corners."""
    common = _intersection(box, other)
    return common / (_area(box) + _area(other) - common)


def _sides(random: Generator) -> list[int]:
    """The longer sides of a scene's shapes, largest first."""
    count = random.integers(1, MOST_SHAPES + 1)
    sides = np.exp(random.uniform(math.log(SIDES[0]), math.log(SIDES[1]), count))
    return sorted((round(side) for side in sides.tolist()), reverse=True)


def _corner_angles(random: Generator, kind: int) -> Floats:
    """Where the corners of a shape lie on its circle; a circle has very many."""
    corners = {1: 90, 2: 4, 3: 3}[kind]
    angles = np.linspace(0, 2 * math.pi, corners, endpoint=False, dtype=np.float32)
    if kind == 3:
        angles += random.uniform(-0.35, 0.35, 3).astype(np.float32)
    return angles


def _place(random: Generator, points: Floats, boxes: Sequence[Sequence[int]], width: int, height: int) -> list[int] | None:
    """A box for an outline that keeps to the rules of overlap, or None where 100 tries found none."""
    w, h = (round(side) for side in points.max(axis=0).tolist())
    for _ in range(100):
        x, y = int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1))
        box = [x, y, x + w - 1, y + h - 1]
        if all(iou(box, other) <= MOST_IOU for other in boxes) and _covers(boxes, box) <= MOST_COVER:
            return box
    return None


def _covers(boxes: Sequence[Sequence[int]], box: Sequence[int]) -> float:
    """The largest part of one of boxes that the later ones and box cover, counting what they share twice."""
    drawn = [*boxes, box]
    parts = [sum(_intersection(below, above) for above in drawn[i + 1 :]) / _area(below) for i, below in enumerate(boxes)]
    return max(parts, default=0.0)


def _intersection(box: Sequence[int], other: Sequence[int]) -> int:
    w = min(box[2], other[2]) - max(box[0], other[0]) + 1
    h = min(box[3], other[3]) - max(box[1], other[1]) + 1
    return max(w, 0) * max(h, 0)


def _area(box: Sequence[int]) -> int:
    return (box[2] - box[0] + 1) * (box[3] - box[1] + 1)


def _paint(random: Generator, canvas: Floats, points: Floats, box: Sequence[int]) -> None:
    """Fill an outline on the canvas with a colour that differs from what lies under it, with or without a shade."""
    x1, y1, x2, y2 = box
    part = canvas[y1 : y2 + 1, x1 : x2 + 1]
    mask = _mask(points, part.shape[1], part.shape[0])
    under = part.mean(axis=(0, 1))
    colour = random.uniform(0, 255, 3)
    while np.linalg.norm(colour - under) < LEAST_CONTRAST:
        colour = random.uniform(0, 255, 3)
    fill = np.broadcast_to(colour.astype(np.float32), part.shape)
    if random.random() < 0.5:
        shade = np.linspace(-1, 1, part.shape[1], dtype=np.float32)[None, :, None]
        fill = fill + shade * random.uniform(-25, 25, 3).astype(np.float32)
    part += mask * (fill - part)


def _mask(points: Floats, width: int, height: int) -> Floats:
    """How much of each pixel an outline covers (height, width, 1), 0 to 1."""
    large = Image.new("L", (width * SUPERSAMPLING, height * SUPERSAMPLING))
    corners: list[Any] = [tuple(point) for point in (points * SUPERSAMPLING - 0.5).tolist()]
    ImageDraw.Draw(large).polygon(corners, fill=255)
    mask: Floats = np.asarray(large.reduce(SUPERSAMPLING), np.float32)[..., None] / np.float32(255)
    return mask


def _stripes(random: Generator, x: Floats, y: Floats) -> Floats:
    """Waves, soft or hard, 8 to 60 pixels from crest to crest, in a random direction."""
    angle, period = random.uniform(0, math.pi), random.uniform(8, 60)
    phase = (np.cos(angle) * x + np.sin(angle) * y).astype(np.float32)
    wave: Floats = np.sin(phase * np.float32(2 * math.pi / period) + np.float32(random.uniform(0, 6)))
    return np.sign(wave) if random.random() < 0.3 else wave


def _blobs(random: Generator, width: int, height: int) -> Floats:
    """Clouds of colour: a small random picture, enlarged smoothly."""
    across = int(random.integers(4, 17))
    small = random.normal(128, 40, (max(across * height // width, 2), across, 3)).clip(0, 255).astype(np.uint8)
    large = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    clouds: Floats = (np.asarray(large, np.float32) - 128) * np.float32(random.uniform(0.2, 0.8))
    return clouds


@click.command(epilog="Example: python examples/shapes/scenes.py train --count 2000 --first-seed 0")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--count", default=200, show_default=True, help="How many scenes to draw.")
@click.option("--first-seed", default=0, show_default=True, help="The seed of the first scene; the next ones count up.")
def main(out: Path, count: int, first_seed: int) -> None:
    """Write scenes as JPEG files into the folder OUT, and their boxes and classes into OUT/roidb.json."""
    out.mkdir(parents=True, exist_ok=True)
    images = []
    for seed in track(range(first_seed, first_seed + count), "scenes"):
        image, boxes, classes = scene(seed)
        name = f"{seed:06d}.jpg"
        Image.fromarray(image).save(out / name, quality=95)
        images.append({"image": name, "boxes": boxes.tolist(), "classes": classes.tolist()})
    (out / "roidb.json").write_text(json.dumps({"classes": list(CLASSES), "images": images}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
