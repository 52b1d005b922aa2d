"""minicaffe compare"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from minicaffe.detection.inputs import fill_inputs
from minicaffe.errors import Error
from minicaffe.porting.comparison import compare
from minicaffe.porting.comparison.sides import Name, axes_of, read_map

from .common import allow_modules, load_net, phase_of, phase_option, seed_option, state_options, threads_option
from .inputs import cfg_option, factor_option, parse_inputs, reshape_inputs, settings_given
from .terminal import echo


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--weights", multiple=True, metavar="FILE", help="Weights of both nets; may be repeated.")
@click.option("--weights-a", multiple=True, metavar="FILE", help="Weights of A; may be repeated.")
@click.option("--weights-b", multiple=True, metavar="FILE", help="Weights of B, if that is a net.  [default: A's]")
@click.option("--input", "inputs", multiple=True, metavar="BLOB=FILE", help="A .npy file or an image for an input of A.")
@click.option("--shape", "shapes", multiple=True, metavar="BLOB=N,C,H,W", help="Another shape for an input of A.")
@cfg_option
@click.option("--mean", metavar="B,G,R", help="Subtracted from images.  [default: 102.9801,115.9465,122.7717]")
@factor_option
@click.option("--map", "map_file", metavar="FILE", help="Lines of a name in A, its name in B and, where needed, axes: 0,3,1,2.")
@click.option("--transpose", multiple=True, metavar="NAME=0,3,1,2", help="B's axes that are A's, of one name; may be repeated.")
@click.option("--rtol", default=1e-3, show_default=True, help="The difference that is let pass, by A's value.")
@click.option("--atol", type=float, help="And beside that.  [default: a tenth of rtol, of the blob's largest value]")
@click.option("--all", "go_on", is_flag=True, help="Go on after the first difference (between nets: from A's values).")
@phase_option
@seed_option
@threads_option
@state_options
def command(
    a: str,
    b: str,
    weights: tuple[str, ...],
    weights_a: tuple[str, ...],
    weights_b: tuple[str, ...],
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    cfg: str | None,
    mean: str | None,
    scale_factor: float,
    map_file: str | None,
    transpose: tuple[str, ...],
    rtol: float,
    atol: float | None,
    go_on: bool,
    phase: str,
    seed: int,
    level: int,
    stages: tuple[str, ...],
    allow_module: tuple[str, ...],
) -> None:
    """Find the first layer at which the net in the prototxt A and B differ, and why. The exit status is 1 where they do,
    and where B lacks an output of A.

    B: another prototxt; an .npz of blobs that any framework computed, with the input among them; or an .onnx model.

    Example:  minicaffe compare deploy.prototxt blobs.npz --weights net.caffemodel --map names.txt
    """
    allow_modules(allow_module)
    options: dict[str, Any] = {"phase": phase_of(phase), "seed": seed, "level": level, "stages": stages}
    net = load_net(a, [*weights, *weights_a], no_zeros=True, settings=settings_given(cfg, mean=mean), **options)
    reshape_inputs(net, shapes)
    files = parse_inputs(inputs)
    made_up = fill_inputs(net, files, seed=seed, factor=scale_factor)
    given = [name for name in net.inputs if files and not any(note.startswith(f"input {name} ") for note in made_up)]
    if weights_b and Path(b).suffix in (".npz", ".onnx"):
        raise click.UsageError(f"--weights-b is for a net, and {b} is none")
    result = compare(
        net,
        b,
        weights_b=[*weights, *weights_b],
        inputs={name: net.blobs[name].data.copy() for name in given},
        names=_names(map_file, transpose),
        rtol=rtol,
        atol=atol,
        go_on=go_on,
        **options,
    )
    echo(str(result))
    if not result.same:
        raise SystemExit(1)


def _names(map_file: str | None, transpose: tuple[str, ...]) -> dict[str, Name]:
    names = read_map(map_file) if map_file else {}
    for text in transpose:
        name, equals, axes = text.partition("=")
        if not equals:
            raise Error(f"--transpose {text}: write it as NAME=0,3,1,2")
        names[name] = Name(names.get(name, Name(name)).name, axes_of(axes, f"--transpose {text}"))
    return names
