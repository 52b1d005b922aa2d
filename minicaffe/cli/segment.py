"""segment: the class of each pixel, a map of probabilities, or instances with their masks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import click
import numpy as np
from PIL import Image

from minicaffe import rng
from minicaffe.blob import Array
from minicaffe.data.drawings import class_name, draw_legend, draw_map, draw_mask, draw_overlay
from minicaffe.data.image_bytes import Pixels
from minicaffe.detection.class_names import default_names, read_labels
from minicaffe.detection.detect import to_json
from minicaffe.detection.instances import SCORES, Instances, find_instances, has_instances, painted
from minicaffe.detection.sampling import sampled
from minicaffe.detection.segmentation import (
    class_of_pixels,
    is_classes,
    is_probability,
    probability_of_pixels,
    resized_classes,
    score_blob,
)
from minicaffe.errors import Error, on_one_line, shortened
from minicaffe.formats.prototxt import NetFile, fill_variables, parse_net, read_text
from minicaffe.net import Net
from minicaffe.scaling.batch.sources import Picture

from .common import check_folder, refuse
from .detect import detection_lines
from .options import FiniteRange, option, with_options
from .pictures import DataLayerOptions, Found, as_read

PICTURES = ("_mask.png", "_overlay.png", "_legend.png", "_map.png", "_variance.png")
"""The map is of probabilities, the first three of classes and of instances."""
Findings = tuple[dict[str, Any], list[str], dict[str, Image.Image]]
"""The findings in an image: for JSON, as lines, and as pictures by the ends of their names."""


def _variable(text: str) -> tuple[str, str]:
    """Return the name and the value of NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (equals and name):
        raise Error(f"--define {text}: write it as NAME=VALUE")
    return name, value


@dataclass(frozen=True, kw_only=True)
class Options(DataLayerOptions):
    out: str | None = option("-o --out", "Write each image's mask, overlay and legend there as PNG files.", metavar="DIR")
    classes: str | None = option("--classes", "Class names, one per line.  [default: VOC's for 21]", metavar="FILE")
    blob: str | None = option("--blob", "Blob of the class scores.  [default: the output with the right shape]", metavar="BLOB")
    define: tuple[tuple[str, str], ...] = option(
        "--define", "Value of the variable ${NAME} in a template; may be repeated.", metavar="NAME=VALUE", type=_variable
    )
    samples: int | None = option(
        "--samples",
        "Run the net N times with random Dropout masks; the classes of the mean, and the variance.",
        type=click.IntRange(2),
    )
    threshold: float | None = option(
        "--threshold", "MNC: score that an instance must exceed.  [default: 0.5]", type=FiniteRange(0, 1)
    )

    @cached_property
    def net_file(self) -> NetFile:
        """The net, with its variables filled in. Raises Error."""
        return parse_net(fill_variables(read_text(self.net), dict(self.define)), self.net, warn=False)


@with_options(Options)
def segment_command(options: Options) -> None:
    """Find the class of each pixel in the images SOURCE... and print each class's share.

    A source is an image, a folder, a pattern, a video, a list (.txt, .lst: one path per line), a Parquet file, or a URI.

    The output of NET is a score of each class for each pixel (1, K, H, W), or their ArgMax, as in FCN, SegNet, DeepLab, PSPNet
    and ENet. Images are resized to the net's input (--shape), and the scores to the image. --out writes NAME_mask.png, whose
    pixels are the classes, NAME_overlay.png and NAME_legend.png.

    For a map of a Sigmoid, as in HED, --out writes NAME_map.png, and the share of pixels above 0.5 is printed. For an
    MNC net, each instance is printed with class, score and box. The mask's pixels are then the numbers of the instances.

    With --samples, for Bayesian SegNet, --out also writes NAME_variance.png: the variance of the scores, white where it is
    largest. The samples of each image start from --seed.

    Example:  minicaffe segment deploy.prototxt fcn8s.caffemodel street.jpg --mean 104,117,123 --out masks
    """
    options.use_device()
    options = as_read(options)
    check_folder("--out", options.out)
    images = options.images
    names = read_labels(options.classes) if options.classes else None
    net = options.opened()
    _refuse_others(net, options)
    out, others = options.out, (options.classes, options.cfg)
    targets = [options.output_names(out, end, *others) for end in PICTURES] if out else []
    remaining = iter(zip(*targets, strict=True))

    def segment(picture: Picture) -> Found:
        files = dict(zip(PICTURES, next(remaining, ())))
        values, lines, drawn = _found(net, options.put(net, picture), names, options)
        values = {"image": picture.name, **values}
        lines = [f"{on_one_line(picture.name)}:", *lines]
        if not files:
            return Found(values, lines)
        pictures = {files[end]: picture for end, picture in drawn.items()}
        return Found({**values, "files": [str(file) for file in pictures]}, lines, pictures)

    options.report_each(images, segment)


def _refuse_others(net: Net, options: Options) -> None:
    """Raise Error for options of the other kind of net."""
    if not options.blob and has_instances(net):
        refuse("for class scores: MNC's net has instances", {"--samples": options.samples})
    else:
        refuse("for class scores: it is for the instances of MNC's net", {"--threshold": options.threshold})


def _found(net: Net, pixels: Pixels, names: list[str] | None, options: Options) -> Findings:
    """Return the net's findings in the image in its input. Raises Error."""
    if not options.blob and has_instances(net):
        threshold = 0.5 if options.threshold is None else options.threshold
        instances = find_instances(net, *pixels.shape[:2], threshold=threshold)
        return _of_instances(instances, threshold, pixels, _names(names, net, SCORES, options))
    blob = score_blob(net, options.blob, options.net)
    if options.samples and is_classes(net, blob):
        raise Error(f"{blob} holds the classes of an ArgMax, which have no mean: name the blob of their scores with --blob")
    maps, variance = _maps(net, blob, options)
    if is_probability(net, blob):
        found = _of_probabilities(maps[0], pixels)
    else:
        found = _of_classes(_classes(net, blob, maps, pixels), pixels, _names(names, net, blob, options))
    return found if variance is None else _with_variance(found, variance, pixels)


def _maps(net: Net, blob: str, options: Options) -> tuple[Array, Array | None]:
    """Return the blob's maps (K, h, w), rows first, for the image in the net's input, and with --samples their variance.

    Raises Error for a blob without such scores.
    """
    variance = None
    if options.samples:
        rng.set_random_seed(options.seed)  # an image's samples do not depend on the images before it
        scores, variance = sampled(net, blob, options.samples)
    else:
        scores = np.asarray(net.forward(blobs=[blob])[blob])
    if scores.ndim != 4 or len(scores) != 1 or not scores.size:
        raise Error(f"{blob} of shape {scores.shape} does not hold a score of each class for each pixel: (1, K, H, W)")

    def rows_first(array: Array) -> Array:
        maps: Array = array[0].transpose(0, 2, 1) if options.order.columns_first else array[0]
        return maps

    return rows_first(scores), None if variance is None else rows_first(variance)


def _classes(net: Net, blob: str, maps: Array, pixels: Pixels) -> Array:
    """Return the class of each pixel (H, W), uint8, from the maps (K, h, w). Raises Error for maps that are no scores."""
    if is_classes(net, blob):
        return resized_classes(maps[0], *pixels.shape[:2])
    if len(maps) == 1:
        shape = net.blobs[blob].shape
        raise Error(f"{blob} of shape {shape} holds one number for each pixel, not a score of each class, nor a Sigmoid's")
    return class_of_pixels(maps, *pixels.shape[:2])


def _names(names: list[str] | None, net: Net, blob: str, options: Options) -> list[str] | None:
    """Return the names of the classes: VOC's for 21. Raises Error for names of another number of classes."""
    count = net.blobs[blob].shape[1]
    if is_classes(net, blob):
        return names
    if names and len(names) != count:
        raise Error(f"{options.classes} has {len(names)} names, but the net has {count} classes")
    return names or default_names(count)


def _shares(classes: Array, names: list[str] | None) -> list[dict[str, Any]]:
    """Return the classes that occur, and their shares of the pixels, the largest first."""
    counts = np.bincount(classes.reshape(-1), minlength=256)
    order = [int(k) for k in np.argsort(-counts, kind="stable") if counts[k]]
    return [
        {"class": class_name(k, names), "class_index": k, "share": round(float(counts[k]) / classes.size, 6)} for k in order
    ]


def _of_classes(classes: Array, pixels: Pixels, names: list[str] | None) -> Findings:
    shares = _shares(classes, names)
    lines = [f"  {100 * one['share']:5.1f} %  {shortened(on_one_line(one['class']))}" for one in shares]
    legend = [(one["class_index"], f"{one['class'][:80]}  {100 * one['share']:.1f} %") for one in shares]
    return {"classes": shares}, lines, _pictures(classes, pixels, legend)


def _of_instances(found: Instances, threshold: float, pixels: Pixels, names: list[str] | None) -> Findings:
    numbers, rows = painted(found, *pixels.shape[:2]), to_json(found.detections, names)
    lines = detection_lines(found.detections, names)
    lines = lines or [f"  nothing reaches --threshold {threshold:g}: the best score is {found.detections.best:.4g}"]
    each = enumerate(zip(rows, found.detections.scores, strict=True), 1)
    legend = [(i, f"{i} {row['class'][:80]}  {score:.3f}") for i, (row, score) in each]
    return {"instances": rows}, lines, _pictures(numbers, pixels, legend)


def _pictures(numbers: Array, pixels: Pixels, legend: list[tuple[int, str]]) -> dict[str, Image.Image]:
    drawn = draw_mask(numbers), draw_overlay(pixels, numbers), draw_legend(legend)
    return dict(zip(PICTURES, drawn))


def _of_probabilities(probabilities: Array, pixels: Pixels) -> Findings:
    found = probability_of_pixels(probabilities, *pixels.shape[:2])
    share, mean = float((found > 0.5).mean()), float(found.mean(dtype=np.float64))
    lines = [f"  {100 * share:5.1f} %  above 0.5 (mean {mean:.4f})"]
    return {"above_half": round(share, 6), "mean": round(mean, 6)}, lines, {"_map.png": draw_map(found)}


def _with_variance(found: Findings, variance: Array, pixels: Pixels) -> Findings:
    """Return the findings with the variance (K, h, w) of the scores, its mean over the classes."""
    values, lines, drawn = found
    each = variance.mean(axis=0)
    mean, largest = float(each.mean()), float(each.max())
    resized = probability_of_pixels(each / largest, *pixels.shape[:2])  # scaled first: float32 rounds 1e-50 to 0
    peak = resized.max()  # 0 if the photo is small and skips the only pixels that vary
    picture = draw_map(resized / peak if peak else resized)
    line = f"  variance: mean {mean:.4g}, largest {largest:.4g}"
    numbers = {"mean": float(f"{mean:.6g}"), "largest": float(f"{largest:.6g}")}
    return {**values, "variance": numbers}, [*lines, line], {**drawn, "_variance.png": picture}
