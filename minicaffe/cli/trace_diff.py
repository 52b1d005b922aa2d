"""minicaffe trace-diff"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from minicaffe.tracing.saved_trace import SavedTrace, read_trace, saved
from minicaffe.tracing.trace_diff import RTOL, trace_diff, write_diff_page
from minicaffe.tracing.tracer import Tracer

from .common import check_target, warn
from .groups import NetOptions, ThreadOptions
from .image_options import InputOptions
from .options import FiniteRange, argument, option, with_options
from .terminal import echo
from .trace import fill

PAGES = {".html", ".htm"}


@dataclass(frozen=True, kw_only=True)
class Options(InputOptions, NetOptions, ThreadOptions):
    a: str = argument()
    b: str = argument()
    weights: tuple[str, ...] = option("--weights", "Weights of both nets; may be repeated.", metavar="FILE")
    weights_a: tuple[str, ...] = option("--weights-a", "Weights of the net A; may be repeated.", metavar="FILE")
    weights_b: tuple[str, ...] = option("--weights-b", "Weights of the net B; may be repeated.", metavar="FILE")
    image: str | None = option("--image", "Image for the nets' image input, preprocessed as by trace.", metavar="FILE")
    out: str | None = option("-o --out", "A page with the maps of both and their difference.", metavar="FILE.html")
    rtol: float = option("--rtol", "Tolerance relative to A's largest size.", type=FiniteRange(min=0), default=RTOL)


@with_options(Options)
def command(options: Options) -> None:
    """Find the first step and the first weights in which A and B differ. The exit status is 1 if they differ.

    A and B are pages of `minicaffe trace`, or prototxts, which are run here: on the same inputs, with --weights-a and
    --weights-b.

    Example:  minicaffe trace-diff before.html after.html -o diff.html

    Example:  minicaffe trace-diff test.prototxt test.prototxt --weights-a iter_100.caffemodel --weights-b iter_500.caffemodel
    --image photo.jpg -o diff.html
    """
    given = [*options.weights, *options.weights_a, *options.weights_b]
    if given and all(_is_page(path) for path in (options.a, options.b)):
        raise click.UsageError("weights are for nets; both A and B are pages of a trace")
    check_target("--out", options.out, [options.a, options.b, *given, *options.read_files()])
    sides = (options.a, options.weights_a), (options.b, options.weights_b)
    a, b = (_side(path, [*options.weights, *weights], options) for path, weights in sides)
    diff = trace_diff(a, b, options.rtol)
    echo(str(diff))
    if options.out:
        write_diff_page(diff, options.out)
        echo(f"written: {options.out}")
    if not diff.same:
        raise SystemExit(1)


def _is_page(path: str) -> bool:
    return Path(path).suffix.lower() in PAGES


def _side(path: str, weights: Sequence[str], options: Options) -> SavedTrace:
    """The trace in a page, or of a net's forward pass."""
    if _is_page(path):
        return read_trace(path)
    with Tracer(backward=False) as tracer:
        net = options.load(path, weights, watch=tracer.watch, no_zeros=True)
        tracer.image = fill(net, options, options.seed, warn)
        net.forward()
    return saved(tracer, " ".join([path, *weights]))
