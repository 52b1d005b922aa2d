"""minicaffe rescue"""

from __future__ import annotations

from dataclasses import dataclass

from minicaffe.detection.inputs import fill_inputs
from minicaffe.errors import Error, LayerError
from minicaffe.files import replacing
from minicaffe.formats.prototxt import parse_net
from minicaffe.net import Net
from minicaffe.porting.rescue import Rescued, rescue

from .common import check_target, listed, shape_text, warn
from .groups import ThreadOptions, fork_option, modules_option
from .image_options import ShapeOptions
from .options import argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(ShapeOptions, ThreadOptions):
    weights: str = argument()
    out: str | None = option("-o --out", "The file to write.  [default: stdout]", metavar="FILE.prototxt")
    check: bool = option("--check/--no-check", "Load it with the weights and run it once.", default=True)
    fork: str | None = fork_option()
    allow_module: tuple[str, ...] = modules_option()


@with_options(Options)
def command(options: Options) -> None:
    """Make a runnable prototxt of the training net in the .caffemodel WEIGHTS.

    Data layers become inputs, losses become probabilities; comments at the top list the changes. The size of an input that the
    file does not tell is guessed from the weights: --shape sets it.

    Example:  minicaffe rescue net.caffemodel -o deploy.prototxt
    """
    weights, out = options.weights, options.out
    check_target("--out", out, [weights])
    rescued = rescue(weights, options.fork or "", dict(options.shapes))
    if out:
        with replacing(out) as path:
            path.write_text(rescued.text, encoding="utf-8")
        echo(f"written: {out} ({len(rescued.param.layer)} layers)", err=True)
    else:
        echo(rescued.text, nl=False)
    for guess in rescued.guesses:
        warn(f"{guess} --shape BLOB=N,C,H,W sets it")
    if options.check:
        _check(rescued, weights, out or f"the net of {weights}", options.fork or "")


def _check(rescued: Rescued, weights: str, written: str, fork: str) -> None:
    """Load and run it and print its outputs. Raises Error."""
    try:
        net = Net(parse_net(rescued.text, written), fork=fork)
        report = net.copy_from(weights)
        fill_inputs(net, {})
        outputs = net.forward()
    except LayerError as error:
        raise Error(
            f"{error}\nhint: the net that {weights} carries does not run as stored; complete the prototxt by hand"
        ) from error
    if report.missing:
        warn(f"no weights found for {listed(report.missing)}")
    if report.unused:
        echo(f"weights of layers for training only: {listed(report.unused)}", err=True)
    shown = listed(f"{name} {shape_text(array.shape)}" for name, array in outputs.items())
    echo(f"it loads with {len(report.loaded)} layers' weights and runs: {shown}", err=True)
