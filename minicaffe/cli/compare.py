"""minicaffe compare"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from minicaffe.errors import Error
from minicaffe.porting.comparison import compare
from minicaffe.porting.comparison.sides import Name, axes_of, read_map

from .groups import NetOptions, ThreadOptions
from .image_options import InputOptions
from .options import argument, option, with_options
from .terminal import echo

ARRAYS = (".npz", ".onnx")
"""Suffixes of files that are no prototxt."""


@dataclass(frozen=True, kw_only=True)
class Options(InputOptions, NetOptions, ThreadOptions):
    a: str = argument()
    b: str = argument()
    weights: tuple[str, ...] = option("--weights", "Weights of both nets; may be repeated.", metavar="FILE")
    weights_a: tuple[str, ...] = option("--weights-a", "Weights of A; may be repeated.", metavar="FILE")
    weights_b: tuple[str, ...] = option(
        "--weights-b", "Weights of B, if a net; may be repeated.  [default: A's]", metavar="FILE"
    )
    map_file: str | None = option("--map", "Lines of a name in A, its name in B and, if needed, axes: 0,3,1,2.", metavar="FILE")
    transpose: tuple[str, ...] = option("--transpose", "B's axes in A's order; may be repeated.", metavar="NAME=0,3,1,2")
    rtol: float = option("--rtol", "Tolerance relative to A's value.", default=1e-3)
    atol: float | None = option("--atol", "Added tolerance.  [default: rtol / 10 of the blob's largest value]")
    go_on: bool = option("--all", "Continue after the first difference; between nets, from A's values.")


@with_options(Options)
def command(options: Options) -> None:
    """Find the first layer at which the net in the prototxt A and B differ, and why. The exit status is 1 if they differ or
    B lacks an output of A.

    B is another prototxt, an .npz of blobs that any framework computed (with the input), or an .onnx model.

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
        names=_names(options.map_file, options.transpose),
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


def _names(map_file: str | None, transpose: Sequence[str]) -> dict[str, Name]:
    names = read_map(map_file) if map_file else {}
    for text in transpose:
        name, equals, axes = text.partition("=")
        if not equals:
            raise Error(f"--transpose {text}: write it as NAME=0,3,1,2")
        names[name] = Name(names.get(name, Name(name)).name, axes_of(axes, f"--transpose {text}"))
    return names
