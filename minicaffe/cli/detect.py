"""minicaffe detect"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from minicaffe.data.settings import DetectionSettings
from minicaffe.detection.class_names import read_names
from minicaffe.detection.detect_ssd import SSD_MEANS, ssd_layer
from minicaffe.detection.detector import class_count
from minicaffe.errors import Error
from minicaffe.formats.prototxt import read_text
from minicaffe.net import Net
from minicaffe.scaling.batch.detector import Detector, Recipe
from minicaffe.scaling.batch.find import find_sources

from .common import check_folder, warn
from .detect_many import BatchOptions, detect_many, refuse
from .detect_print import nothing_found, picture_names, print_rows
from .groups import ImageOptions, classes_option, seed_option
from .options import FiniteRange, argument, option, with_options


@dataclass(frozen=True, kw_only=True)
class Options(ImageOptions, BatchOptions):
    net: str = argument()
    weights: str = argument()
    sources: tuple[str, ...] = argument(required=True, metavar="SOURCE...")
    classes: str | None = classes_option()
    threshold: float = option("--threshold", "Lowest score shown.", type=FiniteRange(0, 1), default=0.5)
    draw_dir: str | None = option("--draw", "Write each image with its boxes into DIR.", metavar="DIR")
    as_json: bool = option("--json", "Print one JSON list instead of lines.")
    scale: int | None = option("--scale", "Pixels of the short side.  [default: 600]", type=click.IntRange(1))
    max_size: int | None = option("--max-size", "Most pixels of the long side.  [default: 1000]", type=click.IntRange(1))
    nms: float | None = option("--nms", "Overlap that drops the lower score.  [default: 0.3]", type=FiniteRange(0, 1))
    max_detections: int = option("--max-detections", "Maximum per image.", type=click.IntRange(1), default=100)
    proposals: str | None = option(
        "--proposals", "Boxes (R, 4) for nets that take rois; in DIR: IMAGE-NAME.npy.", metavar="FILE.npy|DIR"
    )
    seed: int = seed_option()

    @cached_property
    def settings(self) -> DetectionSettings:
        settings = super().settings
        given: dict[str, Any] = {"scales": self.scale and (self.scale,), "max_size": self.max_size, "nms": self.nms}
        test = dataclasses.replace(settings.test, **{name: value for name, value in given.items() if value is not None})
        return dataclasses.replace(settings, test=test)


@with_options(Options)
def command(options: Options) -> None:
    """Find objects in SOURCE... with the test prototxt NET of a Faster R-CNN, R-FCN, Fast R-CNN or SSD, and its WEIGHTS.
    A source is an image, a folder, a list (.txt, .lst: one path per line), a Parquet file, or a URI of one of them.

    Blobs must have py-faster-rcnn's names: data, im_info or rois; cls_prob, bbox_pred (class-aware or agnostic).
    An SSD net has one image input and ends in a DetectionOutput layer.

    Example:  minicaffe detect test.prototxt net.caffemodel photos/ --draw out --threshold 0.8
    """
    check_folder("--draw", options.draw_dir)
    options.check(options.sources, {"--draw": options.draw_dir, "--json": options.as_json or None})
    images = find_sources(options.sources)
    inputs = [options.net, options.weights, options.classes, options.cfg, options.proposals]
    pictures = picture_names(Path(options.draw_dir), images, inputs) if options.draw_dir else []
    if options.engine != "ray":
        options.use_device()
    net = options.load(options.net, [options.weights], keep="outputs")
    detector = Detector(net, _recipe(net, options))
    _check_names(detector, options.classes)
    if options.out is None:
        done = print_rows(detector, images, pictures, options.as_json)
    else:
        done = detect_many(detector, images, options)
    if not done.detections and done.errors < done.images:
        nothing_found(detector, done.best, options.cfg)
    if done.errors and options.out is None:
        raise Error(f"{done.errors} of {done.images} images could not be done")


def _recipe(net: Net, options: Options) -> Recipe:
    """How the net detects. Raises Error for an option that does not apply to a net of this kind."""
    if ssd_layer(net):
        given = {"--cfg": options.cfg, "--scale": options.scale, "--max-size": options.max_size, "--nms": options.nms}
        fixed = "here: the prototxt of an SSD net fixes its size and suppression"
        refuse(fixed, {**given, "--proposals": options.proposals})
    else:
        refuse("here: only SSD nets take it", {"--scale-factor": options.scale_factor})
    names = read_names(options.classes) if options.classes else None
    return Recipe(
        net=options.net,
        text=read_text(options.net),
        settings=options.settings,
        threshold=options.threshold,
        max_detections=options.max_detections,
        proposals=options.proposals,
        means=options.mean or SSD_MEANS,
        scale_factor=options.factor,
        names=tuple(names) if names else None,
        seed=options.seed,
        level=options.level,
        stages=options.stages,
        strict=not options.skip_unknown,
        fork=options.fork or "",
    )


def _check_names(detector: Detector, file: str | None) -> None:
    """Warn if the number of class names is not the net's number of classes."""
    names, (classes, holder) = detector.recipe.names, class_count(detector.net)
    if names and len(names) != classes:
        warn(f"{file}: {len(names)} classes with the background, but {holder} has {classes}")
