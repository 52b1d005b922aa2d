"""minicaffe draw"""

from __future__ import annotations

import click

from minicaffe.formats.prototxt import read_net
from minicaffe.net import Net
from minicaffe.tracing.draw import DIRECTIONS, draw_net_to_file

from .common import allow_modules, check_no_input, phase_of, state_options
from .terminal import echo


@click.command()
@click.argument("net")
@click.argument("out", metavar="OUT.svg|OUT.png")
@click.option("--rankdir", type=click.Choice(DIRECTIONS), default="TB", show_default=True, help="Where the arrows lead.")
@click.option(
    "--phase", type=click.Choice(["TRAIN", "TEST", "ALL"], case_sensitive=False), default="ALL", show_default=True,
    help="Leave the other phase's layers out.",
)  # fmt: skip
@click.option("--display-lrm", is_flag=True, help="Write the learning rate multipliers into the boxes.")
@click.option("--shapes", is_flag=True, help="Write the blobs' shapes into them: the net is made (in TEST, without --phase).")
@state_options
def command(
    net: str,
    out: str,
    rankdir: str,
    phase: str,
    display_lrm: bool,
    shapes: bool,
    level: int,
    stages: tuple[str, ...],
    allow_module: tuple[str, ...],
) -> None:
    """Draw the net in the prototxt NET as a picture, SVG or PNG.

    Example:  minicaffe draw test.prototxt net.svg --shapes
    """
    check_no_input("OUT", out, [net])
    given = None if phase.upper() == "ALL" else phase_of(phase)
    param = read_net(net).param
    found = None
    if shapes:
        allow_modules(allow_module)
        made = Net(net, phase_of(phase), level, list(stages)) if given is not None else Net(net, 1, level, list(stages))
        found = {name: blob.shape for name, blob in made.blobs.items()}
    draw_net_to_file(param, out, rankdir, given, display_lrm, shapes=found)
    echo(f"written: {out}")
