"""minicaffe draw"""

from __future__ import annotations

from dataclasses import dataclass

import click

from minicaffe.formats.prototxt import read_net
from minicaffe.mode import Phase
from minicaffe.tracing.draw import DIRECTIONS, draw_net_to_file

from .common import check_no_input
from .groups import StateOptions
from .options import argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(StateOptions):
    net: str = argument()
    out: str = argument(metavar="OUT.svg|OUT.png|OUT.pdf|OUT.dot")
    rankdir: str = option("--rankdir", "Direction of the arrows.", type=click.Choice(DIRECTIONS), default="TB")
    only: str = option(
        "--phase",
        "Leave out the layers of the other phase.",
        type=click.Choice(["TRAIN", "TEST", "ALL"], case_sensitive=False),
        metavar="TRAIN|TEST|ALL",
        default="ALL",
    )
    display_lrm: bool = option("--display-lrm", "Write the learning rate multipliers into the boxes.")
    with_shapes: bool = option("--shapes", "Write the blobs' shapes; builds the net, in TEST unless --phase is given.")


@with_options(Options)
def command(options: Options) -> None:
    """Draw the net in the prototxt NET as a picture: SVG, PNG, PDF, or Graphviz's DOT (.dot, .gv).

    Example:  minicaffe draw test.prototxt net.svg --shapes
    """
    net, out = options.net, options.out
    check_no_input("OUT", out, [net])
    phase = None if options.only.upper() == "ALL" else Phase[options.only.upper()]
    found = None
    if options.with_shapes:
        made = options.build(options.open_net(net, phase=phase), phase)
        found = {name: blob.shape for name, blob in made.blobs.items()}
    draw_net_to_file(read_net(net, warn=False).param, out, options.rankdir, phase, options.display_lrm, shapes=found)
    echo(f"written: {out}")
