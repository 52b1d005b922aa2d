"""minicaffe classify"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from minicaffe.blob import Array
from minicaffe.data.drawings import draw_scores
from minicaffe.data.image_bytes import Pixels
from minicaffe.detection.class_names import read_labels
from minicaffe.detection.inputs import check_scores
from minicaffe.errors import Error, on_one_line, shortened
from minicaffe.files import replacing
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.net import Net
from minicaffe.scaling.batch.sources import Picture

from .clips import clip_input, clips, put_clip
from .common import check_folder
from .each_picture import DataLayerOptions, as_read, check_failed
from .options import option, with_options
from .output_names import output_names
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(DataLayerOptions):
    labels: str | None = option("--labels", "The classes' names, one per line, as in synset_words.txt.", metavar="FILE")
    top: int = option("--top", "Classes shown of each image.", type=click.IntRange(1), default=5)
    draw_dir: str | None = option("--draw", "Write each image with its best classes into DIR.", metavar="DIR")
    blob: str | None = option("--blob", "The scores.  [default: the output of the net's Softmax]", metavar="BLOB")

    def files(self) -> dict[str, Path]:
        """Where each image is drawn; empty without --draw. Raises Error."""
        check_folder("--draw", self.draw_dir)
        if self.draw_dir is None:
            return {}
        read = (self.net, *self.weights, self.labels, self.mean_file)
        return dict(zip(self.images.names(), output_names(Path(self.draw_dir), self.images, read, ".png"), strict=True))


@with_options(Options)
def command(options: Options) -> None:
    """Print the best classes of each image of SOURCE... by the deploy prototxt NET with WEIGHTS.

    An image is resized to the net's input, as in Caffe's example. --mean, --mean-file, --rgb and --scale-factor say how the net
    was trained. A source is an image, a folder, a video or a list (.txt, .lst: one path per line). A net of clips, whose input
    is (N, 3, L, H, W), as C3D's, gets each L consecutive frames of a source; --draw draws the first of them.

    Example:  minicaffe classify deploy.prototxt net.caffemodel cat.jpg --labels synset_words.txt --mean 104,117,123
    """
    options.use_device()
    options = as_read(options)
    images = options.images
    names = read_labels(options.labels) if options.labels else None
    files = options.files()
    net = options.opened()
    found = list[dict[str, Any]]()

    def classified(name: str, pixels: Pixels, file: Path | None) -> None:
        found.append({"image": name, "classes": _best(_scores(net, options), names, options)})
        if not options.as_json:
            _print(name, found[-1]["classes"])
        if file:
            _draw(file, pixels, found[-1]["classes"])
            found[-1]["file"] = str(file)
            echo(f"  drawn: {on_one_line(str(file))}", err=options.as_json)

    def classify(picture: Picture) -> None:
        classified(picture.name, options.put(net, picture), files.get(picture.name))

    if clip := clip_input(net):
        for pictures in clips(images, net.blobs[clip].shape[2]):
            put_clip(net, clip, pictures, options)
            first = pictures[0]
            classified(f"{first.name} to {pictures[-1].name}", first.pixels(), files.get(first.name))
        failed = 0
    else:
        failed = options.do_each(images, classify)
    if options.as_json:
        echo(json.dumps(found, indent=1))
    check_failed(failed, len(images), images)


def _scores(net: Net, options: Options) -> Array:
    """The scores (K,) of the image or clip in the net's input. Raises Error for a net without scores."""
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


def _best(scores: Array, names: list[str] | None, options: Options) -> list[dict[str, Any]]:
    """The best classes, the first of equal ones first. Raises Error for names that do not fit, and for NaN."""
    if names and len(names) != len(scores):
        raise Error(f"{options.labels} has {len(names)} names, but the net has {len(scores)} classes")
    check_scores(scores)
    order = np.argsort(-scores, kind="stable")[: options.top]
    return [
        {"class": names[k] if names else f"class {k}", "class_index": int(k), "score": round(float(scores[k]), 6)}
        for k in order
    ]


def _print(image: str, best: list[dict[str, Any]]) -> None:
    echo(f"{on_one_line(image)}:")
    for one in best:
        echo(f"  {one['score']:.4f}  {shortened(on_one_line(str(one['class'])))}")


def _draw(file: Path, pixels: Pixels, best: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as path:
        draw_scores(pixels, [(one["class"], one["score"]) for one in best]).save(path, "PNG")
