"""The part of the strings that are read without an error, of strings that the net never saw.

    python examples/reader/accuracy.py

Training used the seeds from 0 on; the seeds here start at 1000000.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
import numpy as np
from rich.progress import track
from strings import string

from minicaffe import TEST, Net
from minicaffe.detection.reading import read_text

FOLDER = Path(__file__).parent


def accuracy(net: Net, seeds: Iterable[int]) -> float:
    """The part of the strings of seeds whose every digit is read right, 0 to 1."""
    right = []
    for seed in seeds:
        image, text = string(seed)
        net.blobs["data"].data[0, 0] = (image.astype(np.float32) - 128) / 128
        right.append(read_text(net.forward()["prob"][:, 0], "0123456789", blank=0) == text)
    return float(np.mean(right))


@click.command()
@click.argument("weights", type=click.Path(exists=True), default=str(FOLDER / "reader.caffemodel"))
@click.option("--count", default=1000, show_default=True, help="How many strings.")
@click.option("--first-seed", default=1_000_000, show_default=True, help="The seed of the first string.")
def main(weights: str, count: int, first_seed: int) -> None:
    """Print the part of the strings that test.prototxt reads right with WEIGHTS (default: reader.caffemodel)."""
    net = Net(str(FOLDER / "test.prototxt"), weights, TEST)
    seeds = track(range(first_seed, first_seed + count), "strings", transient=True)
    click.echo(f"strings read right  {accuracy(net, seeds):.4f}")


if __name__ == "__main__":
    main()
