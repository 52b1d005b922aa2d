"""minicaffe explain"""

from __future__ import annotations

import click

from minicaffe.detection.inputs import fill_inputs
from minicaffe.errors import Error
from minicaffe.tracing.explanations import explain
from minicaffe.tracing.explanations.text import ROWS

from .common import (
    allow_modules,
    device_options,
    load_net,
    phase_of,
    phase_option,
    say_loudly,
    seed_option,
    state_options,
)
from .inputs import factor_option, input_option, parse_inputs, reshape_inputs, settings_given, shape_option, with_image
from .terminal import echo


def index_of(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """An option's whole numbers with commas between them. Raises Error."""
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise Error(f"{option.opts[0]} {text}: give whole numbers with commas between them, as 0,12,2,5") from None


@click.command()
@click.argument("net")
@click.argument("layer")
@click.argument("weights", nargs=-1)
@click.option("--weights", "more_weights", multiple=True, metavar="FILE", help="WEIGHTS may be given so too; may be repeated.")
@input_option
@click.option("--image", metavar="FILE", help="For the net's image input, made ready as run does.")
@shape_option
@click.option("--cfg", metavar="FILE.yml", help="Settings in py-faster-rcnn's format, for images.")
@click.option("--mean", metavar="B,G,R", help="Subtracted from images.  [default: 102.9801,115.9465,122.7717]")
@factor_option
@click.option("--roi", type=int, help="ROI layers: which roi.")
@click.option("--channel", type=int, help="ROI layers: which channel of the top (with --backward: of the map).")
@click.option("--bin", callback=index_of, metavar="PH,PW", help="ROI layers: which bin, row and column.")
@click.option(
    "--at", callback=index_of, metavar="N,C,H,W", help="The element: an index into the top (with --backward: the bottom)."
)
@click.option("--top", type=int, default=0, show_default=True, help="Which top of the layer.")
@click.option("--backward", is_flag=True, help="Explain the gradient in an element of a bottom: who sends it how much.")
@click.option("--bottom", type=int, default=0, show_default=True, help="--backward: which bottom of the layer.")
@click.option("--cell", callback=index_of, metavar="H,W", help="--backward, ROI layers: which cell of the map.")
@click.option("--item", type=int, help="--backward, ROI layers: which image of the batch.  [default: 0]")
@click.option(
    "--dy",
    type=click.Choice(["ones", "random"]),
    help="--backward: the gradient of the top.  [default: the loss's; ones where no loss reads the layer]",
)
@click.option("--rows", type=click.IntRange(1), default=ROWS, show_default=True, help="Rows of a table that are shown.")
@device_options
@phase_option
@seed_option
@state_options
def command(
    net: str,
    layer: str,
    weights: tuple[str, ...],
    more_weights: tuple[str, ...],
    inputs: tuple[str, ...],
    image: str | None,
    shapes: tuple[str, ...],
    cfg: str | None,
    mean: str | None,
    scale_factor: float,
    roi: int | None,
    channel: int | None,
    bin: tuple[int, ...] | None,
    at: tuple[int, ...] | None,
    top: int,
    backward: bool,
    bottom: int,
    cell: tuple[int, ...] | None,
    item: int | None,
    dy: str | None,
    rows: int,
    phase: str,
    seed: int,
    level: int,
    stages: tuple[str, ...],
    allow_module: tuple[str, ...],
) -> None:
    """Work one number of LAYER, a layer of the prototxt NET, out as on paper; with --backward, one gradient.

    Of a ROI layer name it by --roi, --channel and --bin (--backward: --channel and --cell), of another by --at.

    Example:  minicaffe explain test.prototxt roi_pool5 --weights net.caffemodel --input data=cat.jpg --roi 3 --channel 12
    --bin 2,5
    """
    allow_modules(allow_module)
    state = {"level": level, "stages": stages, "settings": settings_given(cfg, mean=mean)}
    loaded = load_net(net, (*weights, *more_weights), phase=phase_of(phase), seed=seed, no_zeros=True, **state)  # type: ignore[arg-type]
    reshape_inputs(loaded, shapes)
    files = with_image(loaded, parse_inputs(inputs), image)
    for note in fill_inputs(loaded, files, seed=seed, factor=scale_factor, until=None if backward else layer):
        say_loudly(note)
    sides = {"roi": roi, "channel": channel, "bin": bin, "cell": cell, "item": item, "dy": dy, "prefix": "--"}
    found = explain(loaded, layer, at, top=top, backward=backward, bottom=bottom, seed=seed, **sides)  # type: ignore[arg-type]
    echo(found.text(rows))
