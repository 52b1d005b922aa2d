"""explain: the arithmetic of one number or one gradient of a layer."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property

import click

from minicaffe.data.images import load_image
from minicaffe.detection.class_names import read_labels
from minicaffe.detection.task import names_for
from minicaffe.errors import Error
from minicaffe.formats.prototxt import read_net
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.net import Net
from minicaffe.tracing.class_maps import class_map, class_score
from minicaffe.tracing.explanations import explain
from minicaffe.tracing.explanations.explanation import Explanation
from minicaffe.tracing.explanations.proposals import STEP
from minicaffe.tracing.explanations.terms import ROWS
from minicaffe.tracing.receptive_fields import receptive_field
from minicaffe.tracing.trace_facts import found_detections

from .common import PICTURES, check_target, save_png
from .groups import DeviceOptions, NetOptions, random_weights_option, weights_option
from .image_options import InputOptions, RoidbOptions
from .options import argument, option, with_options
from .terminal import echo, warn


def _index(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """Return the index of --at, such as 0,12,2,5. Raises Error."""
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise Error(f"{option.opts[0]} {text}: give whole numbers with commas between them, as 0,12,2,5") from None


@dataclass(frozen=True, kw_only=True)
class Options(InputOptions, RoidbOptions, NetOptions, DeviceOptions):
    net: str = argument()
    weights_and_layer: tuple[str, ...] = argument(required=True, metavar="[WEIGHTS]... LAYER")
    more_weights: tuple[str, ...] = weights_option()
    image: str | None = option("--image", "Image for the net's image input, preprocessed as by run.", metavar="FILE")
    roi: int | None = option("--roi", "ROI layers, Proposal, ProposalTarget, BoxAnnotatorOHEM, detection: index of the roi.")
    channel: int | None = option("--channel", "ROI layers: channel of the top; with --backward, of the map.")
    bin: tuple[int, ...] | None = option("--bin", "ROI layers: row and column of the bin.", callback=_index, metavar="PH,PW")
    index: int | None = option("--index", "DetectionOutput, detection: index of the detection.")
    anchor: tuple[int, ...] | None = option(
        "--anchor", "Proposal: follow anchor A at ROW, COLUMN of the map.", callback=_index, metavar="ROW,COLUMN,A"
    )
    at: tuple[int, ...] | None = option(
        "--at", "Index in the top; with --backward, in the bottom.", callback=_index, metavar="N,C,H,W"
    )
    top: int = option("--top", "Index of the top.", default=0)
    backward: bool = option(
        "--backward", "Explain the gradient of one element of a bottom: the contribution of each element of the top."
    )
    weight: str | None = option(
        "--weight", "Explain the gradient of one element (--at) of a weight blob: 0, bias or conv1.0.", metavar="BLOB"
    )
    bottom: int = option("--bottom", "With --backward: index of the bottom.", default=0)
    cell: tuple[int, ...] | None = option(
        "--cell", "With --backward, ROI layers: cell of the map.", callback=_index, metavar="H,W"
    )
    item: int | None = option("--item", "With --backward, ROI layers: image of the batch.  [default: 0]")
    dy: str | None = option(
        "--dy", "With --backward: gradient of the top.  [default: the loss's, or ones]", type=click.Choice(["ones", "random"])
    )
    cam: str | None = option(
        "--cam",
        "Explain the class activation map (Grad-CAM) of a score at LAYER; --at H,W selects the cell.  [--at default: the"
        " greatest]",
        metavar="best|class:K|detection:K",
    )
    draw: str | None = option("--draw", "With --cam: write the map on the image.", metavar="FILE.png")
    rows: int = option("--rows", "Maximum of rows per table.", type=click.IntRange(1), default=ROWS)
    random_weights: bool = random_weights_option()

    @cached_property
    def layer(self) -> str:
        """The layer: the last word, or the first one where that alone is a layer's name."""
        first, last = self.weights_and_layer[0], self.weights_and_layer[-1]
        names = {STEP, *(layer.name for layer in read_net(self.net, warn=False).param.layer)}
        return first if first in names and last not in names else last

    @property
    def weights(self) -> tuple[str, ...]:
        words = self.weights_and_layer
        return words[1:] if self.layer == words[0] else words[:-1]


@with_options(Options)
def explain_command(options: Options) -> None:
    """Show the arithmetic of one number of a LAYER of the prototxt NET with WEIGHTS.

    With --backward or --weight the number is one of a gradient.

    Select the number with --at N,C,H,W. In a ROI layer use --roi, --channel and --bin; with --backward, --channel and --cell.
    In Proposal use --roi or --anchor, in DetectionOutput --index.

    Use `detection` as LAYER for the final boxes of a Faster R-CNN or R-FCN: --index K explains detection K (0 is the best),
    --roi K follows roi K.

    With --cam it shows where in the image LAYER's maps raise the score of a class or of a detection.

    Example:  minicaffe explain test.prototxt net.caffemodel roi_pool5 --input data=cat.jpg --roi 3 --channel 12 --bin 2,5

    Example:  minicaffe explain deploy.prototxt net.caffemodel conv5 --image cat.jpg --cam best --draw cam.png
    """
    options.use_device()
    if options.cam or options.draw:
        _explain_score(options)
    else:
        _explain_number(options)


def _explain_number(options: Options) -> None:
    """Print the arithmetic of a number or of a gradient."""
    net = _filled(options)
    found = explain(
        net,
        options.layer,
        options.at,
        top=options.top,
        backward=options.backward,
        bottom=options.bottom,
        weight=options.weight,
        index=options.index,
        anchor=options.anchor,
        size=load_image(options.image).shape[:2] if options.image and options.layer == STEP else None,
        seed=options.seed,
        roi=options.roi,
        channel=options.channel,
        bin=options.bin,
        cell=options.cell,
        item=options.item,
        dy=options.dy,
        prefix="--",
    )
    echo(found.text(options.rows))
    if options.at and not (options.backward or options.weight):
        _print_fields(net, options.layer, found)


NOT_WITH_CAM = "roi", "channel", "bin", "index", "anchor", "backward", "weight", "cell", "item", "dy"


def _explain_score(options: Options) -> None:
    """Print the class activation map of a score, and draw it. Raises Error."""
    if options.cam is None:
        raise Error("--draw needs --cam: explain draws only class activation maps")
    if options.draw and not options.image:
        raise Error("--draw needs the --image on which the map is drawn")
    if given := [name for name in NOT_WITH_CAM if (value := getattr(options, name)) is not None and value is not False]:
        raise Error(f"--cam cannot be used with --{given[0]}: it takes only --at H,W")
    check_target("--draw", options.draw, [options.net, *options.weights, *options.read_files()], writes=PICTURES)
    names = read_labels(options.classes) if options.classes else None
    net, image = _filled(options), load_image(options.image) if options.image else None
    net.forward()
    score = class_score(net, options.cam, found_detections(net, image), names and names_for(net, names, str(options.classes)))
    found = class_map(net, options.layer, score, options.at)
    echo(found.text(options.rows))
    if options.draw and image is not None:
        save_png(options.draw, found.picture(image))
        echo(f"written: {options.draw}")


def _filled(options: Options) -> Net:
    for word in options.weights:
        if re.fullmatch(r"-?\d+(,-?\d+)*", word) and not os.path.exists(word):
            raise Error(f"{word}: no such weights file; for an index use --at {word}")
    net = options.load(options.net, (*options.weights, *options.more_weights), no_zeros=True)
    if options.roidb:
        options.set_roidb(net, options.settings)
    # backward starts from the losses
    whole = options.backward or options.weight or options.cam or options.layer not in net.layer_dict
    for note in options.fill(net, options.seed, until=None if whole else options.layer):
        warn(note)
    return net


def _print_fields(net: Net, layer: str, found: Explanation) -> None:
    """Print what the explained cell depends on, except for a ROI layer, whose roi shows it."""
    if len(found.at) == 4 and not isinstance(net.layer_dict[layer], RoiLayer):
        for name, field in receptive_field(net, found.blob, *found.at[2:], layer=layer).items():
            echo(f"receptive field in {name}: {field}")
