"""Average precision of a shapes detector, class by class, at IoU 0.5 on scenes that it never saw.

    python examples/shapes/evaluate.py examples/shapes/rfcn/test.prototxt examples/shapes/rfcn/shapes_rfcn.caffemodel

Training used the seeds from 0 on; the seeds here start at 1000000.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
import numpy as np
from rich.progress import track
from scenes import CLASSES, scene

from minicaffe import TEST, Net
from minicaffe.average_precision import ImageBoxes, average_precision
from minicaffe.detection import Detector, load

SETTINGS = Path(__file__).with_name("shapes.yml")


def evaluate(detector: Detector, seeds: Iterable[int]) -> dict[str, float]:
    """Average precision at IoU 0.5 of each class over the scenes of seeds, and "mAP", their mean."""
    kinds = range(1, len(CLASSES))
    found: dict[int, list[ImageBoxes]] = {k: [] for k in kinds}
    truth: dict[int, list[ImageBoxes]] = {k: [] for k in kinds}
    for seed in seeds:
        image, boxes, classes = scene(seed)
        detections = detector(np.ascontiguousarray(image[..., ::-1]))
        for k in kinds:
            mine = detections.classes == k
            found[k].append(ImageBoxes(detections.boxes[mine], detections.scores[mine]))
            truth[k].append(ImageBoxes(boxes[classes == k]))
    result = {CLASSES[k]: average_precision(found[k], truth[k]) for k in kinds}
    return result | {"mAP": float(np.mean(list(result.values())))}


def detector_of(net: str | Path, weights: str | Path, cfg: str | Path = SETTINGS) -> Detector:
    """Return the detector of a test prototxt, for scores from 0.01. cfg: not for an SSD, whose prototxt has its settings."""
    return load(net, weights, cfg if "im_info" in Net(net, TEST).inputs else None, threshold=0.01)


@click.command()
@click.argument("net", type=click.Path(exists=True))
@click.argument("weights", type=click.Path(exists=True))
@click.option("--count", default=200, show_default=True, help="How many scenes.")
@click.option("--first-seed", default=1_000_000, show_default=True, help="The seed of the first scene.")
@click.option(
    "--cfg",
    default=SETTINGS,
    show_default="shapes.yml",
    type=click.Path(exists=True),
    help="Detection settings; not for an SSD.",
)
def main(net: str, weights: str, count: int, first_seed: int, cfg: str) -> None:
    """Print the average precision at IoU 0.5 of the test prototxt NET with WEIGHTS."""
    detector = detector_of(net, weights, cfg)
    seeds = track(range(first_seed, first_seed + count), "scenes", transient=True)
    for name, precision in evaluate(detector, seeds).items():
        click.echo(f"{name:10} {precision:.4f}")


if __name__ == "__main__":
    main()
