"""Pictures of digit strings, drawn from a seed: one seed, one picture and its text.

A picture is grey, 96 x 32 pixels: 3 to 7 digits in Pillow's font, at sizes up to 24, up to 4 degrees askew, bright on dark or
dark on bright, on a gradient, with noise.

    python examples/reader/strings.py reader --count 12000
"""

from __future__ import annotations

import math
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from rich.progress import track

WIDTH, HEIGHT = 96, 32
LENGTHS = (3, 7)
SIZES = (16, 24)
MOST_TURN = 4.0
LEAST_CONTRAST = 60.0

Image8 = NDArray[np.uint8]
Generator = np.random.Generator


def string(seed: int) -> tuple[Image8, str]:
    """The picture (32, 96), grey, and the text of a seed."""
    random = np.random.default_rng(seed)
    text = "".join(map(str, random.integers(0, 10, random.integers(LENGTHS[0], LENGTHS[1] + 1))))
    cover = _cover(random, text)
    along = np.linspace(-0.5, 0.5, WIDTH)[None, :] * random.uniform(-50, 50)
    paper, ink = random.uniform(0, 255, 2)
    while abs(paper - ink) < LEAST_CONTRAST:
        paper, ink = random.uniform(0, 255, 2)
    canvas = paper + along + cover * (ink - paper)
    canvas += random.normal(0, random.uniform(0, 12), canvas.shape)
    return canvas.clip(0, 255).astype(np.uint8), text


def _cover(random: Generator, text: str) -> NDArray[np.float64]:
    """How much of each pixel the text covers (32, 96), 0 to 1."""
    for size in range(int(random.integers(SIZES[0], SIZES[1] + 1)), 7, -1):
        font = ImageFont.load_default(size)
        left, top, right, bottom = font.getbbox(text)
        if right - left <= WIDTH - 4:
            break
    wide, high = WIDTH - (right - left), HEIGHT - (bottom - top)
    x, y = random.uniform(2, max(wide - 2, 2)) - left, high / 2 + random.uniform(-1, 1) * min(3, high / 2) - top
    picture = Image.new("L", (WIDTH, HEIGHT))
    ImageDraw.Draw(picture).text((x, y), text, fill=255, font=font)
    # the turn must not lift an end of the text out of the picture
    most = min(MOST_TURN, math.degrees(math.atan2(max(high / 2 - 3, 0), (right - left) / 2)))
    turned = picture.rotate(random.uniform(-most, most), Image.Resampling.BILINEAR, center=(x + (left + right) / 2, HEIGHT / 2))
    return np.asarray(turned, np.float64) / 255


@click.command(epilog="Example: python examples/reader/strings.py reader --count 12000")
@click.argument("out", type=click.Path(path_type=Path, file_okay=False))
@click.option("--count", default=12000, show_default=True, help="How many pictures to draw.")
@click.option("--first-seed", default=0, show_default=True, help="The seed of the first picture; the next ones count up.")
def main(out: Path, count: int, first_seed: int) -> None:
    """Write OUT/strings.h5 with the datasets data (count, 1, 32, 96), 0 to 255 less 128, over 128, and label (count, 7), where
    the digit d is d + 1 and 0 fills up; and OUT/list.txt, which names it."""
    import h5py

    out.mkdir(parents=True, exist_ok=True)
    data = np.zeros((count, 1, HEIGHT, WIDTH), np.float16)
    label = np.zeros((count, LENGTHS[1]), np.uint8)
    for i in track(range(count), "strings"):
        image, text = string(first_seed + i)
        data[i, 0] = (image.astype(np.float32) - 128) / 128
        label[i, : len(text)] = [int(digit) + 1 for digit in text]
    with h5py.File(out / "strings.h5", "w") as file:
        file["data"], file["label"] = data, label
    (out / "list.txt").write_text(f"{(out / 'strings.h5').as_posix()}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
