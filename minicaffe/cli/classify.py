"""minicaffe classify"""

from __future__ import annotations

import json
from dataclasses import dataclass

import click
import numpy as np

from minicaffe.blob import Array
from minicaffe.detection.inputs import Order, image_inputs, put_image
from minicaffe.errors import Error, on_one_line, shortened
from minicaffe.files import read_text
from minicaffe.layers.softmax import Softmax
from minicaffe.net import Net
from minicaffe.scaling.batch.find import find_sources
from minicaffe.scaling.batch.sources import Picture

from .groups import DeviceOptions, NetOptions, random_weights_option
from .image_options import ImageOptions
from .options import argument, option, with_options
from .progress import counted
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(ImageOptions, NetOptions, DeviceOptions):
    net: str = argument()
    weights_and_sources: tuple[str, ...] = argument(required=True, metavar="WEIGHTS SOURCE...")
    labels: str | None = option("--labels", "The classes' names, one per line, as in synset_words.txt.", metavar="FILE")
    top: int = option("--top", "Classes shown of each image.", type=click.IntRange(1), default=5)
    blob: str | None = option("--blob", "The scores.  [default: the output of the net's Softmax]", metavar="BLOB")
    as_json: bool = option("--json", "Print one JSON list instead of lines.")
    random_weights: bool = random_weights_option()


@with_options(Options)
def command(options: Options) -> None:
    """Print the best classes of each image of SOURCE... by the deploy prototxt NET with WEIGHTS.

    An image is resized to the net's input, as in Caffe's example. --mean, --mean-file, --rgb and --scale-factor say how the net
    was trained. A source is an image, a folder or a list (.txt, .lst: one path per line).

    Example:  minicaffe classify deploy.prototxt net.caffemodel cat.jpg --labels synset_words.txt --mean 104,117,123
    """
    options.use_device()
    weights = () if options.random_weights else options.weights_and_sources[:1]
    sources = options.weights_and_sources[len(weights) :]
    if not sources:
        raise click.UsageError(f"Missing argument: nothing follows the weights {weights[0]}")
    names = _names(options.labels) if options.labels else None
    images = find_sources(sources)
    net = options.load(options.net, weights, keep="outputs")
    found, failed = [], 0
    pictures = images.pictures()
    for picture in counted(pictures, "images", len(images)) if len(images) > 1 and not options.as_json else pictures:
        try:
            best = _best(_scores(net, picture, options), names, options)
        except Error as error:
            if len(images) == 1:
                raise
            failed += 1
            echo(f"minicaffe: {on_one_line(str(error))}", err=True)
            continue
        found.append({"image": picture.name, "classes": best})
        if not options.as_json:
            _print(picture.name, best)
    if options.as_json:
        echo(json.dumps(found, indent=1))
    if failed:
        raise Error(f"{failed} of {len(images)} images could not be done")


def _names(path: str) -> list[str]:
    """The names in a file: "n01440764 tench, Tinca tinca" without its number. Raises Error."""
    try:
        lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise Error(f"{path}: not a text file; write one class name a line") from error
    if not lines:
        raise Error(f"{path}: no class names; write one a line")
    synsets = all(line[:1] == "n" and line[1:9].isdigit() and line[9:10] in (" ", "\t", "") for line in lines)
    return [line[10:] or line for line in lines] if synsets else lines


def _scores(net: Net, picture: Picture, options: Options) -> Array:
    """The scores (K,) of an image. Raises Error for a net without an image's input, or scores."""
    inputs = image_inputs(net)
    if not inputs:
        raise Error(f"{options.net}: the net has no input for an image; its inputs are {', '.join(net.inputs) or 'none'}")
    pixels = picture.pixels()
    name = inputs[0]
    net.blobs[name].reshape(1, *net.blobs[name].shape[1:])
    put_image(net, name, pixels, options.settings, Order(rgb=options.rgb))
    net.blobs[name].data[...] *= net.dtype.type(options.factor)
    blob = options.blob or _softmax(net, options.net)
    scores = net.forward(blobs=[blob])[blob]
    if scores.size != scores.shape[1 if scores.ndim > 1 else 0]:
        raise Error(f"{blob} of shape {scores.shape} does not hold one score for each class")
    return np.asarray(scores).reshape(-1)


def _softmax(net: Net, file: str) -> str:
    """The output of the net's last Softmax. Raises Error."""
    found = [top for node in net.nodes if isinstance(node.layer, Softmax) for top in node.top_names if top in net.outputs]
    if len(found) != 1:
        what = f"{len(found)} outputs that a Softmax makes" if found else "no output that a Softmax makes"
        raise Error(f"{file}: {what}; its outputs are {', '.join(net.outputs)}: choose one with --blob")
    return found[0]


def _best(scores: Array, names: list[str] | None, options: Options) -> list[dict[str, object]]:
    """The best classes, the first of equal ones first. Raises Error for names that do not fit, and for NaN."""
    if names and len(names) != len(scores):
        raise Error(f"{options.labels} has {len(names)} names, but the net has {len(scores)} classes")
    if not np.isfinite(scores).all():
        raise Error("the net gives scores that are NaN or infinite: minicaffe.check_finite finds the first such layer")
    order = np.argsort(-scores, kind="stable")[: options.top]
    return [
        {"class": names[k] if names else f"class {k}", "class_index": int(k), "score": round(float(scores[k]), 6)}
        for k in order
    ]


def _print(image: str, best: list[dict[str, object]]) -> None:
    echo(f"{on_one_line(image)}:")
    for one in best:
        echo(f"  {one['score']:.4f}  {shortened(on_one_line(str(one['class'])))}")
