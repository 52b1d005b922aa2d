"""Small images with label images: each pixel's label says where it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from batches import image
from numpy.typing import NDArray
from PIL import Image

COLOURS = np.random.default_rng(0).integers(0, 256, (256, 3), dtype=np.uint8)
"""A palette without order, as VOC's."""


def labels(seed: int, height: int = 5, width: int = 7) -> NDArray[np.uint8]:
    """Return the label of each pixel (H, W), all different: seed more than its index."""
    return (np.arange(height * width, dtype=np.uint8) + np.uint8(seed)).reshape(height, width)


def save_labels(path: Path, values: NDArray[np.uint8], kind: str = "P") -> None:
    """Write a label image: kind P with a palette, L grey, RGB with the grey value thrice."""
    picture = Image.fromarray(values)
    if kind == "P":
        picture.putpalette(COLOURS.tobytes())
    picture.convert(kind).save(path) if kind == "RGB" else picture.save(path)


def save_pairs(folder: Path, count: int, kind: str = "P", height: int = 5, width: int = 7) -> None:
    """im0.png, lab0.png, im1.png, ... in folder/images, and folder/list.txt."""
    (folder / "images").mkdir(exist_ok=True)
    for i in range(count):
        Image.fromarray(image(i, height, width)).save(folder / "images" / f"im{i}.png")
        save_labels(folder / "images" / f"lab{i}.png", labels(i, height, width), kind)
    (folder / "list.txt").write_text("".join(f"im{i}.png lab{i}.png\n" for i in range(count)))


def blob(i: int, height: int = 5, width: int = 7) -> NDArray[np.float32]:
    """Return an image as the net sees it: (3, H, W), blue, green, red."""
    return image(i, height, width)[:, :, ::-1].transpose(2, 0, 1).astype(np.float32)


def check_aligned(data: NDArray[np.float32], found: NDArray[np.float32], i: int, width: int = 7) -> None:
    """Check that each pixel of data (3, H, W) is the one of image i (5 rows) that its label (H, W) names."""
    rows, columns = np.divmod(found.astype(int) - i, width)
    np.testing.assert_array_equal(data, blob(i, width=width)[:, rows, columns])
