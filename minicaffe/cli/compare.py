"""compare and trace-diff: where two nets, or two traces, differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from minicaffe.errors import Error
from minicaffe.porting.comparison import compare
from minicaffe.porting.comparison.sides import Name, axes_of, read_map
from minicaffe.tracing.trace_diff import RTOL, SavedTrace, read_trace, saved, trace_diff, write_diff_page
from minicaffe.tracing.tracer import Tracer

from .common import PAGES, check_target
from .groups import NetOptions, ThreadOptions
from .image_options import FAMILY_FACTORS, FAMILY_MEANS, InputOptions, mean_option, scale_factor_option
from .options import FiniteRange, argument, option, with_options
from .terminal import echo, warn
from .trace import fill

ARRAYS = (".npz", ".onnx")
"""Suffixes of files that are no prototxt."""


@dataclass(frozen=True, kw_only=True)
class CompareOptions(InputOptions, NetOptions, ThreadOptions):
    a: str = argument()
    b: str = argument()
    weights: tuple[str, ...] = option("--weights", "Weights of both nets; may be repeated.", metavar="FILE")
    weights_a: tuple[str, ...] = option("--weights-a", "Weights of A; may be repeated.", metavar="FILE")
    weights_b: tuple[str, ...] = option(
        "--weights-b", "Weights of B, if a net; may be repeated.  [default: A's]", metavar="FILE"
    )
    map_file: str | None = option(
        "--map", "File with lines of a blob's name in A, its name in B and, if needed, axes: 0,3,1,2.", metavar="FILE"
    )
    transpose: tuple[str, ...] = option(
        "--transpose", "Axes of a blob of B in the order of A; may be repeated.", metavar="NAME=0,3,1,2"
    )
    rtol: float = option("--rtol", "Tolerance relative to A's value.", default=1e-3)
    atol: float | None = option(
        "--atol", "Absolute tolerance, which is added.  [default: rtol / 10 of the blob's largest value]"
    )
    go_on: bool = option("--all", "Continue after the first difference; for two nets, with the blobs of A.")


@with_options(CompareOptions)
def compare_command(options: CompareOptions) -> None:
    """Find the first layer where the net A and B differ, and why.

    A is a prototxt. B is another prototxt, an .onnx model, or an .npz of blobs of any framework with their input. The exit
    status is 1 if A and B differ or B lacks an output of A.

    For the same net before and after training use trace-diff: it also compares weights and shows both on a page.

    Example:  minicaffe compare deploy.prototxt blobs.npz --weights net.caffemodel --map names.txt
    """
    if options.weights_b and Path(options.b).suffix in ARRAYS:
        raise click.UsageError(f"--weights-b is for a net; {options.b} is not a net")
    net = options.load(options.a, [*options.weights, *options.weights_a], no_zeros=True)
    generated = options.fill(net, options.seed)
    given = [name for name in net.inputs if not any(note.startswith(f"input {name} ") for note in generated)]
    result = compare(
        net,
        options.b if Path(options.b).suffix in ARRAYS else options.open_net(options.b),
        weights_b=[*options.weights, *options.weights_b],
        inputs={name: net.blobs[name].data.copy() for name in given},
        names=_mapped_names(options.map_file, options.transpose),
        rtol=options.rtol,
        atol=options.atol,
        go_on=options.go_on,
        phase=options.phase,
        seed=options.seed,
        level=options.level,
        stages=options.stages,
        fork=options.fork or "",
    )
    echo(str(result))
    if not result.same:
        raise SystemExit(1)


def _mapped_names(map_file: str | None, transpose: Sequence[str]) -> dict[str, Name]:
    names = read_map(map_file) if map_file else {}
    for text in transpose:
        name, equals, axes = text.partition("=")
        if not equals:
            raise Error(f"--transpose {text}: write it as NAME=0,3,1,2")
        names[name] = Name(names.get(name, Name(name)).name, axes_of(axes, f"--transpose {text}"))
    return names


@dataclass(frozen=True, kw_only=True)
class TraceDiffOptions(InputOptions, NetOptions, ThreadOptions):
    a: str = argument()
    b: str = argument()
    weights: tuple[str, ...] = option("--weights", "Weights of both nets; may be repeated.", metavar="FILE")
    weights_a: tuple[str, ...] = option("--weights-a", "Weights of the net A; may be repeated.", metavar="FILE")
    weights_b: tuple[str, ...] = option("--weights-b", "Weights of the net B; may be repeated.", metavar="FILE")
    image: str | None = option("--image", "Image for the nets' image input, preprocessed as by trace.", metavar="FILE")
    out: str | None = option("-o --out", "Page to write, with the maps of both and their difference.", metavar="FILE.html")
    rtol: float = option("--rtol", "Tolerance relative to A's largest absolute value.", type=FiniteRange(min=0), default=RTOL)
    mean: tuple[float, float, float] | None = mean_option(FAMILY_MEANS)
    scale_factor: float | None = scale_factor_option(FAMILY_FACTORS)


@with_options(TraceDiffOptions)
def trace_diff_command(options: TraceDiffOptions) -> None:
    """Find the first step and the first weights where A and B differ. The exit status is 1 if they differ.

    A and B are pages of `minicaffe trace` or prototxts. Prototxts run on the same inputs, with --weights-a and --weights-b. For
    nets with different layers, or of another framework, use compare: it matches blobs by name.

    Example:  minicaffe trace-diff before.html after.html -o diff.html

    Example:  minicaffe trace-diff test.prototxt test.prototxt --weights-a iter_100.caffemodel --weights-b iter_500.caffemodel
    --image photo.jpg -o diff.html
    """
    given = [*options.weights, *options.weights_a, *options.weights_b]
    if given and all(_is_page(path) for path in (options.a, options.b)):
        raise click.UsageError("weights are for nets; both A and B are pages of a trace")
    check_target("--out", options.out, [options.a, options.b, *given, *options.read_files()], writes=PAGES)
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


def _side(path: str, weights: Sequence[str], options: TraceDiffOptions) -> SavedTrace:
    """Return the trace in a page, or the trace of a net's forward pass."""
    if _is_page(path):
        return read_trace(path)
    with Tracer(backward=False) as tracer:
        net = options.load(path, weights, watch=tracer.watch, no_zeros=True)
        tracer.image = fill(net, options, options.seed, warn)
        net.forward()
    return saved(tracer, " ".join([path, *weights]))
