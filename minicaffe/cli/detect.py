"""minicaffe detect"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from minicaffe.detection.class_names import read_names
from minicaffe.detection.detect_ssd import SSD_MEANS, ssd_layer
from minicaffe.detection.detector import class_count
from minicaffe.errors import Error
from minicaffe.formats.prototxt import read_text
from minicaffe.net import Net
from minicaffe.scaling.batch.detector import Detector, Recipe
from minicaffe.scaling.batch.find import find_sources
from minicaffe.scaling.batch.parts import PART_SIZE

from .common import (
    FiniteRange,
    allow_modules,
    check_folder,
    device_flags,
    load_net,
    numbers,
    on_device,
    say_loudly,
    seed_option,
    state_options,
)
from .detect_many import detect_many, many_given
from .detect_print import nothing_found, picture_names, print_rows
from .inputs import settings_given


@click.command()
@click.argument("net")
@click.argument("weights")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--classes", metavar="FILE", help="Class names, one a line.  [default: VOC's for 21 classes, COCO's for 81]")
@click.option("--threshold", type=FiniteRange(0, 1), default=0.5, show_default=True, help="The least score shown.")
@click.option("--draw", "draw_dir", metavar="DIR", help="Write each image with its boxes into DIR.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list in place of lines.")
@click.option("--cfg", metavar="FILE.yml", help="Settings in py-faster-rcnn's format.")
@click.option("--scale", type=click.IntRange(1), help="The short side in pixels that images are scaled to.  [default: 600]")
@click.option("--max-size", type=click.IntRange(1), help="The most pixels of the long side.  [default: 1000]")
@click.option(
    "--mean", metavar="B,G,R", help="Subtracted from the pixels.  [default: 102.9801,115.9465,122.7717; SSD nets: 104,117,123]"
)
@click.option(
    "--scale-factor", type=FiniteRange(0, min_open=True), help="For SSD nets: multiplies the pixels after that.  [default: 1]"
)
@click.option("--nms", type=FiniteRange(0, 1), help="Overlap above which the lower score is dropped.  [default: 0.3]")
@click.option("--max-detections", type=click.IntRange(1), default=100, show_default=True, help="The most detections an image.")
@click.option(
    "--proposals", metavar="FILE.npy|DIR", help="For nets that take rois: boxes (R, 4); DIR holds IMAGE-NAME.npy files."
)
@click.option("--out", metavar="DIR|URI", help="Write Parquet files there in place of lines; a run that was stopped goes on.")
@click.option("--engine", type=click.Choice(["local", "ray"]), help="Who does the images of --out.  [default: local]")
@click.option("--address", help="The Ray cluster.  [default: a Ray of its own on this machine]")
@click.option("--workers", type=click.IntRange(1), help="How many actors on Ray.  [default: one for each GPU, or CPU]")
@click.option("--part-size", type=click.IntRange(1), help=f"The images of a Parquet file.  [default: {PART_SIZE}]")
@device_flags
@seed_option
@state_options
def command(
    net: str,
    weights: str,
    sources: tuple[str, ...],
    classes: str | None,
    threshold: float,
    draw_dir: str | None,
    as_json: bool,
    cfg: str | None,
    scale: int | None,
    max_size: int | None,
    mean: str | None,
    scale_factor: float | None,
    nms: float | None,
    max_detections: int,
    proposals: str | None,
    out: str | None,
    engine: str | None,
    address: str | None,
    workers: int | None,
    part_size: int | None,
    device: str | None,
    gpu: str | None,
    seed: int,
    level: int,
    stages: tuple[str, ...],
    allow_module: tuple[str, ...],
) -> None:
    """Find objects in SOURCE..., with the test prototxt NET of a Faster R-CNN, R-FCN, Fast R-CNN or SSD, and its WEIGHTS.
    A source is an image, a folder, a list (.txt, .lst: a path a line), a Parquet file, or a URI of one of them.

    Inputs and outputs go by py-faster-rcnn's names: data, im_info or rois; cls_prob, bbox_pred (class-aware or agnostic).
    An SSD net has one image input and ends in a DetectionOutput layer.

    Example:  minicaffe detect test.prototxt net.caffemodel photos/ --draw out --threshold 0.8
    """
    allow_modules(allow_module)
    check_folder("--draw", draw_dir)
    many = many_given(
        sources, out, engine, address, workers, part_size, f"gpu:{gpu}" if gpu else device, allow_module, draw_dir, as_json
    )
    settings = settings_given(cfg, scale=scale, max_size=max_size, mean=mean, nms=nms)
    images = find_sources(sources)
    pictures = picture_names(Path(draw_dir), images, [net, weights, classes, cfg, proposals]) if draw_dir else []
    with on_device(*(("cpu", None) if engine == "ray" else (device, gpu))):
        loaded = load_net(net, [weights], seed=seed, level=level, stages=stages, keep="outputs", settings=settings)
        for_rois = {"--cfg": cfg, "--scale": scale, "--max-size": max_size, "--nms": nms, "--proposals": proposals}
        check_options(loaded, for_rois, {"--scale-factor": scale_factor})
        means = numbers("--mean", mean, 3) if mean else SSD_MEANS
        names = read_names(classes) if classes else None
        recipe = Recipe(
            net, read_text(net), settings, threshold, max_detections, proposals, means, scale_factor or 1.0,
            tuple(names) if names else None, seed, level, stages,
        )  # fmt: skip
        detector = Detector(loaded, recipe)
        check_names(classes, names, loaded)
        done = detect_many(detector, images, many) if many else print_rows(detector, images, pictures, as_json)
    if not done.detections and done.errors < done.images:
        nothing_found(detector, done.best, cfg)
    if done.errors and not many:
        raise Error(f"{done.errors} of {done.images} images could not be done")


def check_names(file: str | None, names: Sequence[str] | None, net: Net) -> None:
    """Say loudly where a list of class names is of another length than the net's classes."""
    classes, holder = class_count(net)
    if names and len(names) != classes:
        say_loudly(f"{file}: {len(names)} classes with the background, but {holder} has {classes}")


def check_options(net: Net, for_rois: dict[str, Any], for_ssd: dict[str, Any]) -> None:
    """Raises Error for an option that is given and means nothing to a net of this kind."""
    is_ssd = ssd_layer(net) is not None
    why = "the prototxt of an SSD net fixes its size and suppression" if is_ssd else "only SSD nets take it"
    for option, value in (for_rois if is_ssd else for_ssd).items():
        if value is not None:
            raise Error(f"{option} does nothing here: {why}")
