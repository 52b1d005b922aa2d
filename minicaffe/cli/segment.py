"""minicaffe segment"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.drawn_boxes import class_name
from minicaffe.data.drawn_masks import draw_legend, draw_mask, draw_overlay
from minicaffe.data.image_bytes import Pixels
from minicaffe.detection.class_names import default_names, read_labels
from minicaffe.detection.segmentation import class_of_pixels, is_classes, resized_classes, score_blob
from minicaffe.errors import Error, on_one_line, shortened
from minicaffe.files import replacing
from minicaffe.net import Net
from minicaffe.scaling.batch.sources import Picture

from .common import check_folder
from .each_picture import PictureOptions, check_failed
from .image_options import ShapeOptions
from .options import option, with_options
from .output_names import output_names
from .terminal import echo

PICTURES = ("_mask.png", "_overlay.png", "_legend.png")


@dataclass(frozen=True, kw_only=True)
class Options(ShapeOptions, PictureOptions):
    out: str | None = option("--out", "Write each image's mask, overlay and legend there, as PNG files.", metavar="DIR")
    classes: str | None = option("--classes", "The classes' names, one per line.  [default: VOC's for 21]", metavar="FILE")
    blob: str | None = option("--blob", "The class scores.  [default: the output with the right shape]", metavar="BLOB")


@with_options(Options)
def command(options: Options) -> None:
    """Print the share of each class in the pixels of each image of SOURCE..., by the deploy prototxt NET with WEIGHTS.

    The net's output is a score of each class for each pixel (1, K, H, W), or an ArgMax of them, as in FCN, SegNet, DeepLab,
    PSPNet and ENet. An image is resized to the net's input (--shape), and the scores to the image. --out writes NAME_mask.png,
    whose pixels are the classes, NAME_overlay.png and NAME_legend.png. A source is an image, a folder or a list (.txt, .lst).

    Example:  minicaffe segment deploy.prototxt fcn8s.caffemodel street.jpg --mean 104,117,123 --out masks
    """
    options.use_device()
    check_folder("--out", options.out)
    images = options.images
    names = read_labels(options.classes) if options.classes else None
    net = options.opened()
    options.reshape(net)
    read = (options.net, *options.weights, options.classes, options.cfg, options.mean_file)
    targets = [output_names(Path(options.out), images, read, end) for end in PICTURES] if options.out else []
    remaining, found = iter(zip(*targets, strict=True)), list[dict[str, Any]]()

    def segment(picture: Picture) -> None:
        files = next(remaining, ())
        pixels = options.put(net, picture)
        blob = score_blob(net, options.blob, options.net)
        classes = _classes(net, blob, pixels, options)
        shares = _shares(classes, _names(names, net, blob, options))
        found.append({"image": picture.name, "classes": shares})
        if not options.as_json:
            _print(picture.name, shares)
        if files:
            _draw(files, pixels, classes, shares)
            found[-1]["files"] = [str(file) for file in files]
            echo(f"  drawn: {', '.join(on_one_line(str(file)) for file in files)}", err=options.as_json)

    failed = options.do_each(images, segment)
    if options.as_json:
        echo(json.dumps(found, indent=1))
    check_failed(failed, len(images), images)


def _classes(net: Net, blob: str, pixels: Pixels, options: Options) -> Array:
    """The class of each pixel of the image in the net's input (H, W) uint8. Raises Error for a blob without such scores."""
    scores = np.asarray(net.forward(blobs=[blob])[blob])
    if scores.ndim != 4 or len(scores) != 1 or not scores.size:
        raise Error(f"{blob} of shape {scores.shape} does not hold a score of each class for each pixel: (1, K, H, W)")
    maps = scores[0].transpose(0, 2, 1) if options.order.columns_first else scores[0]
    if is_classes(net, blob):
        return resized_classes(maps[0], *pixels.shape[:2])
    if len(maps) == 1:
        raise Error(f"{blob} of shape {scores.shape} holds one number for each pixel, not a score of each class")
    return class_of_pixels(maps, *pixels.shape[:2])


def _names(names: list[str] | None, net: Net, blob: str, options: Options) -> list[str] | None:
    """The names of the classes: VOC's for 21. Raises Error for names of another number of classes."""
    count = net.blobs[blob].shape[1]
    if is_classes(net, blob):
        return names
    if names and len(names) != count:
        raise Error(f"{options.classes} has {len(names)} names, but the net has {count} classes")
    return names or default_names(count)


def _shares(classes: Array, names: list[str] | None) -> list[dict[str, Any]]:
    """The classes that are there and their shares of the pixels, the largest first."""
    counts = np.bincount(classes.reshape(-1), minlength=256)
    order = [int(k) for k in np.argsort(-counts, kind="stable") if counts[k]]
    return [
        {"class": class_name(k, names), "class_index": k, "share": round(float(counts[k]) / classes.size, 6)} for k in order
    ]


def _print(image: str, shares: list[dict[str, Any]]) -> None:
    echo(f"{on_one_line(image)}:")
    for one in shares:
        echo(f"  {100 * one['share']:5.1f} %  {shortened(on_one_line(one['class']))}")


def _draw(files: Sequence[Path], pixels: Pixels, classes: Array, shares: list[dict[str, Any]]) -> None:
    legend = [(one["class_index"], f"{one['class'][:80]}  {100 * one['share']:.1f} %") for one in shares]
    drawn = (draw_mask(classes), draw_overlay(pixels, classes), draw_legend(legend))
    for file, picture in zip(files, drawn, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as path:
            picture.save(path)
