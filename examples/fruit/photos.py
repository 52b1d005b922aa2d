"""Draw photos of fruit on a table from a seed, with the .xml files that labelImg writes.

    python examples/fruit/photos.py photos --count 40
    python examples/fruit/photos.py new-photos --count 60 --first-seed 1000

A photo is 640 by 480 pixels and shows 2 to 6 oranges, bananas and pears, 70 to 210 pixels long, under a light from one side.
A box is tight around the whole fruit, including parts that other fruit covers. No box covers more than half of another one.
"""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import click
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

CLASSES = ("orange", "banana", "pear")
COLOURS = {"orange": (232, 130, 28), "banana": (228, 196, 60), "pear": (150, 172, 62)}
WIDTH, HEIGHT = 640, 480
LENGTHS = (70, 210)
MOST_FRUIT = 6
MOST_COVER = 0.5
SUPERSAMPLING = 2

Floats = NDArray[np.float32]
Box = tuple[int, int, int, int]
Generator = np.random.Generator


def photo(seed: int) -> tuple[Image.Image, list[tuple[str, Box]]]:
    """Return the photo of a seed, and each fruit's class and box x1, y1, x2, y2, from 0 and with both corners inside."""
    random = np.random.default_rng(seed)
    canvas = table(random)
    light = random.uniform(0, 2 * math.pi)
    fruit: list[tuple[str, Box]] = []
    for _ in range(int(random.integers(2, MOST_FRUIT + 1))):
        name = str(random.choice(CLASSES))
        mask = outline(random, name)
        height, width = mask.shape
        for _ in range(50):
            x, y = int(random.integers(0, WIDTH - width + 1)), int(random.integers(0, HEIGHT - height + 1))
            box = (x, y, x + width - 1, y + height - 1)
            if all(_covered(other, box) <= MOST_COVER and _covered(box, other) <= MOST_COVER for _, other in fruit):
                _lay(random, canvas, mask, name, (x, y), light)
                fruit.append((name, box))
                break
    canvas *= random.uniform(0.75, 1.15)
    canvas += random.normal(0, random.uniform(2, 8), canvas.shape).astype(np.float32)
    image = Image.fromarray(canvas.clip(0, 255).astype(np.uint8))
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0, 1))), fruit


def table(random: Generator) -> Floats:
    """Return a table top (HEIGHT, WIDTH, 3): a colour, its grain along one direction, and a light that falls off."""
    colour = np.array([(150, 108, 70), (196, 186, 172), (96, 74, 60), (120, 134, 146)][random.integers(4)], np.float32)
    colour += random.uniform(-15, 15, 3).astype(np.float32)
    small = random.normal(0, 1, (60, 8) if random.random() < 0.5 else (8, 60)).astype(np.float32)
    grain = np.asarray(Image.fromarray(small).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float32)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    angle = random.uniform(0, 2 * math.pi)
    along = (math.cos(angle) * (x / WIDTH - 0.5) + math.sin(angle) * (y / HEIGHT - 0.5)).astype(np.float32)
    canvas: Floats = (colour + grain[..., None] * np.float32(random.uniform(3, 12))) * (1 + 0.35 * along[..., None])
    return canvas


def outline(random: Generator, name: str) -> Floats:
    """Return the part of each pixel (height, width), 0 to 1, that a fruit covers: turned at random, cut to its box."""
    length = math.exp(random.uniform(math.log(LENGTHS[0]), math.log(LENGTHS[1])))
    room = 2 * SUPERSAMPLING * math.ceil(length)
    large = Image.new("L", (room, room))
    draw = ImageDraw.Draw(large)
    for disc in _discs(random, name):
        x, y, radius = (SUPERSAMPLING * length * value for value in disc)
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    turned = large.rotate(random.uniform(0, 360), Image.Resampling.BICUBIC)
    mask: Floats = np.asarray(turned.reduce(SUPERSAMPLING), np.float32) / np.float32(255)
    rows, columns = (np.flatnonzero((mask > 0.5).any(axis=axis)) for axis in (1, 0))
    return mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _discs(random: Generator, name: str) -> list[tuple[float, float, float]]:
    """Return the discs whose union is a fruit of length about 1 around (1, 1): their centres and radii."""
    steps = np.linspace(-1, 1, 41).tolist()
    if name == "orange":
        return [(1, 1, 0.36)]
    if name == "banana":
        bend = random.uniform(0.25, 0.4)
        return [(1 + 0.42 * t, 0.85 + bend * t * t, 0.025 + 0.115 * math.sqrt(1 - t * t)) for t in steps]
    neck = random.uniform(0.13, 0.18)
    return [(1 + 0.3 * t, 1, neck + (0.3 - neck) * (1 + math.tanh(3 * t)) / 2) for t in steps]


def _lay(random: Generator, canvas: Floats, mask: Floats, name: str, at: tuple[int, int], light: float) -> None:
    """Draw a fruit and its shadow with its box's corner at `at`. light: the direction it comes from."""
    (x, y), (height, width) = at, mask.shape
    reach = max(4, min(height, width) // 6)
    whole = np.zeros((HEIGHT, WIDTH), np.float32)
    whole[y : y + height, x : x + width] = mask
    away = np.roll(whole, (-round(reach * math.sin(light)), -round(reach * math.cos(light))), axis=(0, 1))
    canvas *= 1 - np.float32(0.55) * _blurred(away, reach / 2)[..., None]
    # The blurred mask is like a height: its slope towards the light is the brightness.
    height_map = np.sqrt(_blurred(np.pad(mask, reach), reach * 1.2))
    slope_y, slope_x = np.gradient(height_map)
    bright = -(slope_x * math.cos(light) + slope_y * math.sin(light)) * reach
    bright = np.float32(0.85) + bright[reach:-reach, reach:-reach] * np.float32(0.9)
    colour = np.array(COLOURS[name], np.float32) + random.uniform(-18, 18, 3).astype(np.float32)
    spots = random.normal(0, 6, mask.shape).astype(np.float32)
    skin = colour * bright[..., None] + spots[..., None]
    part = canvas[y : y + height, x : x + width]
    part += mask[..., None] * (skin - part)


def _blurred(mask: Floats, radius: float) -> Floats:
    image = Image.fromarray((mask * 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(radius))
    blurred: Floats = np.asarray(image, np.float32) / np.float32(255)
    return blurred


def _covered(box: Box, by: Box) -> float:
    """Return the part of a box that another one covers."""
    wide = min(box[2], by[2]) - max(box[0], by[0]) + 1
    high = min(box[3], by[3]) - max(box[1], by[1]) + 1
    return max(wide, 0) * max(high, 0) / ((box[2] - box[0] + 1) * (box[3] - box[1] + 1))


def annotation(name: str, fruit: list[tuple[str, Box]]) -> ElementTree.ElementTree:
    """Return the .xml of a photo, as labelImg writes it: coordinates count from 1."""
    root = ElementTree.Element("annotation")
    ElementTree.SubElement(root, "filename").text = name
    size = ElementTree.SubElement(root, "size")
    for key, value in (("width", WIDTH), ("height", HEIGHT), ("depth", 3)):
        ElementTree.SubElement(size, key).text = str(value)
    for kind, corners in fruit:
        item = ElementTree.SubElement(root, "object")
        for key, text in (("name", kind), ("pose", "Unspecified"), ("truncated", "0"), ("difficult", "0")):
            ElementTree.SubElement(item, key).text = text
        box = ElementTree.SubElement(item, "bndbox")
        for key, corner in zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True):
            ElementTree.SubElement(box, key).text = str(corner + 1)
    ElementTree.indent(root)
    return ElementTree.ElementTree(root)


@click.command(epilog="Example: python examples/fruit/photos.py photos --count 40")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--count", default=40, show_default=True, help="The number of photos.")
@click.option(
    "--first-seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="The seed of the first photo; the next ones count up.",
)
def main(out: Path, count: int, first_seed: int) -> None:
    """Draw photos as JPEG files into the folder OUT, each with an .xml file of its boxes."""
    out.mkdir(parents=True, exist_ok=True)
    for seed in range(first_seed, first_seed + count):
        image, fruit = photo(seed)
        image.save(out / f"{seed:04d}.jpg", quality=88)
        annotation(f"{seed:04d}.jpg", fruit).write(out / f"{seed:04d}.xml", encoding="utf-8")


if __name__ == "__main__":
    main()
