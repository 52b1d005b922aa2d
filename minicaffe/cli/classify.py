"""classify: the best classes of images, or of clips, consecutive frames of a video for a net such as C3D."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np

from minicaffe.blob import Array
from minicaffe.data.drawings import draw_scores
from minicaffe.data.image_bytes import Pixels
from minicaffe.data.images import resize_bilinear
from minicaffe.detection.class_names import read_labels
from minicaffe.detection.classification import best_classes, check_names
from minicaffe.detection.inputs import check_scores, put_array
from minicaffe.detection.task import softmax_output
from minicaffe.errors import Error, on_one_line, shortened
from minicaffe.net import Net
from minicaffe.scaling.batch.sources import Picture, Sources

from .common import check_folder
from .image_options import OrderOptions
from .options import option, with_options
from .pictures import DataLayerOptions, Found, as_read


@dataclass(frozen=True, kw_only=True)
class Options(DataLayerOptions):
    classes: str | None = option("--classes", "Class names, one per line, as in synset_words.txt.", metavar="FILE")
    labels: str | None = option("--labels", "The old name of --classes.", metavar="FILE", hidden=True)
    top: int = option("--top", "Number of classes to show for each image.", type=click.IntRange(1), default=5)
    draw_dir: str | None = option("--draw", "Write each image with its best classes into DIR.", metavar="DIR")
    blob: str | None = option("--blob", "Blob of the scores.  [default: the output of the net's Softmax]", metavar="BLOB")


@with_options(Options)
def classify_command(options: Options) -> None:
    """Print the best classes of each image of SOURCE... by the deploy prototxt NET with WEIGHTS.

    A source is an image, a folder, a pattern, a video, a list (.txt, .lst: one path per line), a Parquet file, or a URI.

    Images are resized to the net's input, as in Caffe's example. Set --mean, --mean-file, --rgb and --scale-factor as in
    training. A net with an input (N, 3, L, H, W), such as C3D, gets clips of L consecutive frames; --draw draws the first
    frame.

    Example:  minicaffe classify deploy.prototxt net.caffemodel cat.jpg --classes synset_words.txt --mean 104,117,123
    """
    options.use_device()
    options = replace(as_read(options), classes=options.classes or options.labels)
    images = options.images
    check_folder("--draw", options.draw_dir)
    names = read_labels(options.classes) if options.classes else None
    files = dict[str, Path]()
    if options.draw_dir:
        paths = options.output_names(options.draw_dir, ".png", options.classes)
        files = dict(zip(images.names(), paths, strict=True))
    net = options.opened()

    def classified(name: str, pixels: Pixels, file: Path | None) -> Found:
        return _found(name, _best(_scores(net, options), names, options), pixels, file)

    if clip := clip_input(net):
        results = []
        for pictures in clips(images, net.blobs[clip].shape[2]):
            put_clip(net, clip, pictures, options)
            first = pictures[0]
            name = f"{first.name} to {pictures[-1].name}"
            results.append(options.report(classified(name, first.pixels(), files.get(first.name))))
        options.print_json(results)
    else:
        options.report_each(images, lambda one: classified(one.name, options.put(net, one), files.get(one.name)))


def _found(name: str, best: list[dict[str, Any]], pixels: Pixels, file: Path | None) -> Found:
    """Return the best classes of an image; with a file, also the picture that shows them."""
    values = {"image": name, "classes": best}
    lines = [f"  {one['score']:.4f}  {shortened(on_one_line(str(one['class'])))}" for one in best]
    lines.insert(0, f"{on_one_line(name)}:")
    if not file:
        return Found(values, lines)
    drawn = draw_scores(pixels, [(one["class"], one["score"]) for one in best])
    return Found({**values, "file": str(file)}, lines, {file: drawn})


def _scores(net: Net, options: Options) -> Array:
    """Return the scores (K,) of the image or clip in the net's input. Raises Error for a net without scores."""
    blob = options.blob or softmax_output(net, options.net)
    scores = net.forward(blobs=[blob])[blob]
    if scores.size != scores.shape[1 if scores.ndim > 1 else 0]:
        raise Error(f"{blob} of shape {scores.shape} does not hold one score for each class")
    return np.asarray(scores).reshape(-1)


def _best(scores: Array, names: list[str] | None, options: Options) -> list[dict[str, Any]]:
    """Return the best classes; equal scores keep the classes' order. Raises Error for a wrong number of names, and for NaN."""
    if names:
        check_names(names, str(options.classes), len(scores))
    check_scores(scores)
    return best_classes(scores, names, options.top)


def clip_input(net: Net) -> str | None:
    """Return the name of the first input of shape (N, 3, L, H, W), or None."""
    shapes = {name: net.blobs[name].shape for name in net.inputs}
    return next((name for name, shape in shapes.items() if len(shape) == 5 and shape[1] == 3 and 0 not in shape), None)


def clips(images: Sources, length: int) -> Iterator[list[Picture]]:
    """Yield the clips of each source: `length` consecutive images each. A shorter rest is left out.

    Raises Error for a source with fewer images.
    """
    for stretch in images.stretches:
        if len(stretch) < length:
            first = next(iter(stretch.names()), stretch.base)
            raise Error(f"{first}: a clip has {length} frames, but its source has {len(stretch)}")
        pictures = stretch.pictures()
        for _ in range(len(stretch) // length):
            yield list(islice(pictures, length))


def put_clip(net: Net, name: str, clip: list[Picture], options: OrderOptions) -> None:
    """Put a clip's frames, each resized, into an input as a batch of 1. Raises Error for a frame that cannot be read."""
    settings, order = options.settings, -1 if options.rgb else 1
    if options.rgb:
        settings = replace(settings, pixel_means=settings.pixel_means[::-1])
    height, width = net.blobs[name].shape[3:]
    means = settings.pixel_means
    frames = [resize_bilinear(picture.pixels()[..., ::order], height, width, means=means) for picture in clip]
    put_array(net, name, np.stack(frames).transpose(3, 0, 1, 2)[None] * np.float32(options.factor))
