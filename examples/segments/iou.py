"""Intersection over union of each class, in the pixels of scenes that the net never saw.

    python examples/segments/iou.py

Training used the seeds from 0 on; the seeds here start at 1000000.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
import numpy as np
from masks import CLASSES, scene
from rich.progress import track

from minicaffe import TEST, Net

FOLDER = Path(__file__).parent


def ious(net: Net, seeds: Iterable[int]) -> dict[str, float]:
    """The IoU of each class over all pixels of the scenes of seeds, and "mean", their mean."""
    counts = np.zeros((len(CLASSES), len(CLASSES)), np.int64)  # true class, found class
    for seed in seeds:
        image, classes = scene(seed)
        net.blobs["data"].data[0] = (image[..., ::-1].transpose(2, 0, 1).astype(np.float32) - 128) / 128
        found = net.forward()["prob"][0].argmax(axis=0)
        pairs = classes.astype(np.int64) * len(CLASSES) + found
        counts += np.bincount(pairs.reshape(-1), minlength=counts.size).reshape(counts.shape)
    both = np.diag(counts)
    found_ious = both / (counts.sum(axis=0) + counts.sum(axis=1) - both)
    return dict(zip(CLASSES, found_ious.tolist(), strict=True)) | {"mean": float(found_ious.mean())}


@click.command()
@click.argument("weights", type=click.Path(exists=True), default=str(FOLDER / "segments.caffemodel"))
@click.option("--count", default=200, show_default=True, help="How many scenes.")
@click.option("--first-seed", default=1_000_000, show_default=True, help="The seed of the first scene.")
def main(weights: str, count: int, first_seed: int) -> None:
    """Print the intersection over union of test.prototxt with WEIGHTS (default: segments.caffemodel)."""
    net = Net(str(FOLDER / "test.prototxt"), weights, TEST)
    seeds = track(range(first_seed, first_seed + count), "scenes", transient=True)
    for name, iou in ious(net, seeds).items():
        click.echo(f"{name:10} {iou:.4f}")


if __name__ == "__main__":
    main()
