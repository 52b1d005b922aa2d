"""minicaffe rescue"""

from __future__ import annotations

import click

from minicaffe.detection.inputs import fill_inputs
from minicaffe.errors import Error, LayerError
from minicaffe.files import replacing
from minicaffe.formats.prototxt import parse_net
from minicaffe.net import Net
from minicaffe.porting.rescue import Rescued, rescue

from .common import allow_modules, check_target, listed, say_loudly, shape_text, threads_option
from .terminal import echo


@click.command()
@click.argument("weights")
@click.option("-o", "--out", metavar="FILE.prototxt", help="Write it there.  [default: stdout]")
@click.option("--check/--no-check", default=True, show_default=True, help="Load it with the weights and run it once.")
@click.option("--allow-module", multiple=True, help="A module that Python layers may be imported from; may be repeated.")
@threads_option
def command(weights: str, out: str | None, check: bool, allow_module: tuple[str, ...]) -> None:
    """Make a prototxt to run of the training net that the .caffemodel WEIGHTS carries.

    Data layers become inputs, losses their probabilities; comments at its top say what was changed.

    Example:  minicaffe rescue net.caffemodel -o deploy.prototxt
    """
    allow_modules(allow_module)
    check_target("--out", out, [weights])
    rescued = rescue(weights)
    if out:
        with replacing(out) as path:
            path.write_text(rescued.text, encoding="utf-8")
        echo(f"written: {out} ({len(rescued.param.layer)} layers)", err=True)
    else:
        echo(rescued.text, nl=False)
    if check:
        _check(rescued, weights, out or "stdout")


def _check(rescued: Rescued, weights: str, written: str) -> None:
    """Load and run it, and say what comes out. Raises Error for a net that cannot."""
    try:
        net = Net(parse_net(rescued.text, written))
        report = net.copy_from(weights)
        fill_inputs(net, {})
        outputs = net.forward()
    except LayerError as error:
        raise Error(
            f"{error}\nhint: the net that {weights} carries does not run as it is stored; complete the prototxt by hand"
        ) from error
    if report.missing:
        say_loudly(f"no weights found for {listed(report.missing)}")
    if report.unused:
        echo(f"weights of layers for training only: {listed(report.unused)}", err=True)
    shown = listed(f"{name} {shape_text(array.shape)}" for name, array in outputs.items())
    echo(f"it loads with {len(report.loaded)} layers' weights and runs: {shown}", err=True)
