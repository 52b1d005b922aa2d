"""minicaffe detect"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

import click
import numpy as np

from minicaffe.arrays import read_npy
from minicaffe.class_names import default_names, read_names
from minicaffe.detect import Detections, class_name, detect, draw, to_json
from minicaffe.detect_ssd import SSD_MEANS, detect_ssd, ssd_layer
from minicaffe.errors import Error
from minicaffe.files import replacing
from minicaffe.images import load_image
from minicaffe.layers.boxes import rows
from minicaffe.net import Net
from minicaffe.settings import DetectionSettings, use

from .common import (
    FiniteRange,
    allow_modules,
    check_folder,
    device_options,
    identity,
    load_net,
    numbers,
    say_loudly,
    seed_option,
    state_options,
)
from .inputs import settings_given

IMAGES = {".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp", ".gif"}


@click.command()
@click.argument("net")
@click.argument("weights")
@click.argument("images", nargs=-1, required=True, metavar="IMAGE...")
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
@device_options
@seed_option
@state_options
def command(
    net: str,
    weights: str,
    images: tuple[str, ...],
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
    seed: int,
    level: int,
    stages: tuple[str, ...],
    allow_module: tuple[str, ...],
) -> None:
    """Find objects in IMAGE..., files or folders, with the test prototxt NET of a Faster R-CNN, R-FCN, Fast R-CNN
    or SSD, and its WEIGHTS.

    Inputs and outputs go by py-faster-rcnn's names: data, im_info or rois; cls_prob, bbox_pred (class-aware or agnostic).
    An SSD net has one image input and ends in a DetectionOutput layer.

    Example:  minicaffe detect test.prototxt net.caffemodel photos/ --draw out --threshold 0.8
    """
    allow_modules(allow_module)
    check_folder("--draw", draw_dir)
    settings = settings_given(cfg, scale=scale, max_size=max_size, mean=mean, nms=nms)
    use(settings)
    files = list(image_files(images))
    inputs: list[str | Path] = [net, weights, *files, *filter(None, (classes, cfg, proposals))]
    pictures = picture_names(Path(draw_dir), files, inputs) if draw_dir else []
    loaded = load_net(net, [weights], seed=seed, level=level, stages=stages, keep="outputs")
    for_rois = {"--cfg": cfg, "--scale": scale, "--max-size": max_size, "--nms": nms, "--proposals": proposals}
    check_options(loaded, for_rois, {"--scale-factor": scale_factor})
    means = numbers("--mean", mean, 3) if mean else SSD_MEANS
    find = finder(loaded, proposals, means, scale_factor or 1.0, {"threshold": threshold, "max_detections": max_detections})
    names = read_names(classes) if classes else None
    results, failed, total, best = [], 0, 0, 0.0
    for i, file in enumerate(_progress(files, as_json)):
        try:
            image = load_image(file)
            start = time.perf_counter()
            found = find(image, file)
        except Error as error:
            if len(files) == 1:
                raise
            failed += 1
            click.echo(f"minicaffe: {file}: {str(error).removeprefix(f'{file}: ')}", err=True)
            continue
        total += len(found)
        best = max(best, best_score(loaded))
        num_classes, holder = class_count(loaded)
        if names and len(names) != num_classes and file == files[0]:
            say_loudly(f"{classes}: {len(names)} classes with the background, but {holder} has {num_classes}")
        shown = names or default_names(num_classes)
        if as_json:
            results.append({"image": str(file), "detections": to_json(found, shown)})
        else:
            _print(file, found, shown, time.perf_counter() - start)
        if pictures:
            _draw(pictures[i], image, found, shown, err=as_json)
    if as_json:
        click.echo(json.dumps(results, indent=1))
    if not total and failed < len(files):
        taken = ssd_settings(means, scale_factor or 1.0) if ssd_layer(loaded) else settings_text(settings, cfg)
        click.echo(f"nothing reaches --threshold {threshold:g}: the best score is {best:.4g}. {taken}", err=True)
    if failed:
        raise Error(f"{failed} of {len(files)} images could not be done")


def check_options(net: Net, for_rois: dict[str, Any], for_ssd: dict[str, Any]) -> None:
    """Raises Error for an option that is given and means nothing to a net of this kind."""
    is_ssd = ssd_layer(net) is not None
    why = "the prototxt of an SSD net fixes its size and suppression" if is_ssd else "only SSD nets take it"
    for option, value in (for_rois if is_ssd else for_ssd).items():
        if value is not None:
            raise Error(f"{option} does nothing here: {why}")


def finder(
    net: Net, proposals: str | None, means: Sequence[float], scale_factor: float, limits: dict[str, Any]
) -> Callable[[np.ndarray, Path], Detections]:
    """What finds the detections on an image of a file: SSD's way, or py-faster-rcnn's. limits: threshold, max_detections."""
    if ssd_layer(net):
        return lambda image, _: detect_ssd(net, image, means=means, scale_factor=scale_factor, **limits)
    return lambda image, file: detect(net, image, proposals=read_proposals(proposals, file), **limits)


def class_count(net: Net) -> tuple[int, str]:
    """The number of classes, background included, and what has so many."""
    layer = ssd_layer(net)
    return (
        (layer.param.detection_output_param.num_classes, layer.name) if layer else (net.blobs["cls_prob"].shape[1], "cls_prob")
    )


def best_score(net: Net) -> float:
    """The best score that the net's last pass gave any class but the background; 0 without any."""
    layer = ssd_layer(net)
    scores = net.blobs[net.top_names[layer.name][0]].data.reshape(-1, 7)[:, 2] if layer else rows(net.blobs["cls_prob"])[:, 1:]
    return float(scores.max(initial=0))


def settings_text(settings: DetectionSettings, cfg: str | None) -> str:
    """One line of the settings that images are made ready with, for a net that may have been trained with others."""
    test, means = settings.test, ",".join(f"{mean:g}" for mean in settings.pixel_means)
    scales = ",".join(map(str, test.scales))
    source = f"from {cfg}" if cfg else "--cfg FILE.yml changes them: give the settings that the net was trained with"
    return (
        f"Taken: short side {scales}, long side at most {test.max_size}, means {means}, "
        f"proposals >= {test.rpn_min_size:g} pixels, NMS {test.rpn_nms_thresh:g} and {test.nms:g} ({source})"
    )


def ssd_settings(means: Sequence[float], scale_factor: float) -> str:
    """The same line for an SSD net."""
    text = ",".join(f"{mean:g}" for mean in means)
    return f"Taken: means {text}, factor {scale_factor:g} (--mean and --scale-factor change them)"


def image_files(paths: Sequence[str]) -> Iterator[Path]:
    """The files named, and the images of the folders named, in order of their names."""
    for path in map(Path, paths):
        if path.is_dir():
            found = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGES)
            if not found:
                raise Error(f"{path}: no images in this folder")
            yield from found
        elif path.exists():
            yield path
        else:
            raise Error(f"{path}: no such image")


def picture_names(folder: Path, files: Sequence[Path], inputs: Sequence[str | Path]) -> list[Path]:
    """Where each file's picture goes: STEM.png in the folder, or STEM-2.png and so on, so that no two share a name and none
    replaces an input."""
    known = {found for path in inputs if (found := identity(path))}
    names: dict[Path, None] = {}
    for file in files:
        tries = (folder / f"{file.stem}{number}.png" for number in chain([""], (f"-{n}" for n in count(2))))
        names[next(name for name in tries if name not in names and identity(name) not in known)] = None
    return list(names)


def read_proposals(source: str | None, image: Path) -> np.ndarray | None:
    """The boxes (R, 4) for an image, from one .npy file or the file of the image's name in a folder."""
    if source is None:
        return None
    path = Path(source) / f"{image.stem}.npy" if Path(source).is_dir() else Path(source)
    try:
        boxes = read_npy(path)
    except OSError as error:
        raise Error(f"{path}: cannot read the proposals of {image}: {error.strerror}") from error
    if boxes.dtype.kind not in "iuf" or boxes.ndim != 2 or boxes.shape[1] != 4:
        found = f"{boxes.dtype} of shape {boxes.shape}"
        raise Error(f"{path}: proposals are numbers of shape (R, 4), x1, y1, x2, y2; got {found}")
    return boxes


def _progress(files: list[Path], quiet: bool) -> Iterator[Path]:
    """The files, with a progress bar on a terminal when there are several."""
    if len(files) < 2 or quiet or not sys.stderr.isatty():
        yield from files
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), redirect_stdout=sys.stdout.isatty()) as bar:
        yield from bar.track(files, description="detecting")


def _print(file: Path, found: Detections, names: Sequence[str] | None, seconds: float) -> None:
    click.echo(f"{file}: {len(found)} detection{'s' * (len(found) != 1)} in {seconds:.2f} s", file=sys.stdout)
    labels = [class_name(int(k), names) for k in found.classes]
    width = max(map(len, labels), default=0)
    for label, score, box in zip(labels, found.scores, found.boxes, strict=True):
        corners = "  ".join(f"{name} {value:6.1f}" for name, value in zip(("x1", "y1", "x2", "y2"), box, strict=True))
        click.echo(f"  {label:{width}}  {score:.3f}  {corners}", file=sys.stdout)


def _draw(target: Path, image: np.ndarray, found: Detections, names: Sequence[str] | None, *, err: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as path:
        draw(image, found, names).save(path)
    click.echo(f"  drawn: {target}", file=sys.stderr if err else sys.stdout)
