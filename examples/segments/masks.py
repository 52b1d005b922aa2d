"""Scenes of circles, squares and triangles with the class of each pixel, drawn from a seed: one seed, one scene.

A scene is 128 x 96 pixels: a gradient between two colours with noise, and 1 to 4 shapes of 24 to 60 pixels across, turned at
random. A later shape may cover an earlier one.

    python examples/segments/masks.py segments/train --count 2000 --first-seed 0
"""

from __future__ import annotations

import math
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from rich.progress import track

CLASSES = ("background", "circle", "square", "triangle")
WIDTH, HEIGHT = 128, 96
SIZES = (24, 60)
MOST_SHAPES = 4
LEAST_CONTRAST = 60.0
CORNERS = {1: 60, 2: 4, 3: 3}
SUPERSAMPLING = 4

Image8 = NDArray[np.uint8]
Floats = NDArray[np.float32]
Generator = np.random.Generator


def scene(seed: int) -> tuple[Image8, Image8]:
    """The scene of a seed: image (96, 128, 3) RGB, classes (96, 128) from 0, the background."""
    random = np.random.default_rng(seed)
    canvas = _background(random)
    classes = np.zeros((HEIGHT, WIDTH), np.uint8)
    for _ in range(random.integers(1, MOST_SHAPES + 1)):
        kind = int(random.integers(1, len(CLASSES)))
        cover = _cover(_outline(random, kind))
        under = canvas[cover > 0.5].mean(axis=0)
        colour = random.uniform(0, 255, 3)
        while np.linalg.norm(colour - under) < LEAST_CONTRAST:
            colour = random.uniform(0, 255, 3)
        canvas += cover[..., None] * (colour.astype(np.float32) - canvas)
        classes[cover >= 0.5] = kind
    canvas += random.normal(0, random.uniform(0, 10), canvas.shape).astype(np.float32)
    return canvas.clip(0, 255).astype(np.uint8), classes


def _background(random: Generator) -> Floats:
    """A canvas (96, 128, 3): a gradient in a random direction between two colours."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    angle = random.uniform(0, 2 * math.pi)
    along = np.cos(angle) * (x / WIDTH - 0.5) + np.sin(angle) * (y / HEIGHT - 0.5) + 0.5
    first = random.uniform(30, 225, 3)
    canvas: Floats = (first + along[..., None] * random.uniform(-60, 60, 3)).astype(np.float32)
    return canvas


def _outline(random: Generator, kind: int) -> Floats:
    """The corners (p, 2) of a shape, x and y in pixels, wholly inside the scene."""
    size, corners = random.uniform(*SIZES), CORNERS[kind]
    angles = np.linspace(0, 2 * math.pi, corners, endpoint=False) + random.uniform(0, 2 * math.pi)
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points = (points - points.min(axis=0)) * size / np.ptp(points, axis=0).max()
    room = np.array([WIDTH, HEIGHT]) - points.max(axis=0)
    moved: Floats = (points + random.uniform(0, 1, 2) * room).astype(np.float32)
    return moved


def _cover(points: Floats) -> Floats:
    """How much of each pixel an outline covers (96, 128), 0 to 1."""
    large = Image.new("L", (WIDTH * SUPERSAMPLING, HEIGHT * SUPERSAMPLING))
    ImageDraw.Draw(large).polygon([(x, y) for x, y in (points * SUPERSAMPLING - 0.5).tolist()], fill=255)
    cover: Floats = np.asarray(large.reduce(SUPERSAMPLING), np.float32) / np.float32(255)
    return cover


@click.command(epilog="Example: python examples/segments/masks.py segments/train --count 2000 --first-seed 0")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--count", default=200, show_default=True, help="How many scenes to draw.")
@click.option("--first-seed", default=0, show_default=True, help="The seed of the first scene; the next ones count up.")
def main(out: Path, count: int, first_seed: int) -> None:
    """Write scenes as PNG files into the folder OUT, their classes too, and OUT/list.txt with a line IMAGE CLASSES for each."""
    out.mkdir(parents=True, exist_ok=True)
    lines = []
    for seed in track(range(first_seed, first_seed + count), "scenes"):
        image, classes = scene(seed)
        names = f"{seed:06d}.png", f"{seed:06d}_classes.png"
        Image.fromarray(image).save(out / names[0])
        Image.fromarray(classes).save(out / names[1])
        lines.append(" ".join((out / name).as_posix() for name in names) + "\n")
    (out / "list.txt").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
