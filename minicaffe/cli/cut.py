"""minicaffe cut"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from minicaffe.errors import Error, pasted
from minicaffe.files import replacing, unlinked
from minicaffe.porting.cut import TARGETS, Part, cut, drop_head, join_script

from .common import check_apart, check_target, listed, shape_text
from .groups import StateOptions, random_weights_option
from .image_options import SettingsOptions, ShapeOptions
from .options import argument, option, with_options
from .terminal import echo

Files = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Options(ShapeOptions, SettingsOptions, StateOptions):
    net: str = argument()
    weights: tuple[str, ...] = argument()
    out: tuple[str, str] = option(
        "-o --out", "The part to write.", required=True, nargs=2, multiple=False, metavar="PROTOTXT WEIGHTS"
    )
    starts: tuple[str, ...] = option("--from", "Where the part begins; may be repeated.  [default: the inputs]", metavar="NAME")
    ends: tuple[str, ...] = option("--to", "Where it ends; may be repeated.  [default: the outputs]", metavar="NAME")
    drop_head: bool = option("--drop-head", "Cut off what chips lack: proposals, ROI layers, priors, detections, Python.")
    target: str | None = option("--target", "Refuse what this tool chain does not take.", type=click.Choice(list(TARGETS)))
    random_weights: bool = random_weights_option()


@with_options(Options)
def command(options: Options) -> None:
    """Write a part of the prototxt NET with WEIGHTS as a net of its own, with inputs of the right shapes and its weights alone.

    A name is a layer's, which belongs to the part, or a blob's: its last value; blob:NAME where both have it. WEIGHTS end in
    .caffemodel, .h5 or .safetensors. --drop-head also writes the rest of the net and a script that runs both, beside the part:
    rest.prototxt, rest.caffemodel, join.py.

    Example:  minicaffe cut test.prototxt net.caffemodel --to conv5_3 -o trunk.prototxt trunk.caffemodel
    """
    if options.drop_head and (options.starts or options.ends):
        raise click.UsageError("--drop-head finds the place of the cut: give no --from and no --to")
    rest = _rest_of(options.out) if options.drop_head else None
    for file in (*options.out, *(rest or ())):
        check_target("--out", file, [options.net, *options.weights, options.cfg])
    check_apart("--out", options.out[0], "--out", options.out[1])
    net = options.load(options.net, options.weights)
    options.reshape(net)
    net.reshape()
    with ExitStack() as files:  # all appear together, or none
        if rest is None:
            _write(files, _for_target(cut(net, options.starts, options.ends), options.target), options.out)
        else:
            first, second = drop_head(net, options.target or "")
            _write(files, _for_target(first, options.target), options.out)
            _write(files, second, rest[:2])
            script = join_script(first, second, _names(options.out), _names(rest[:2]), _beside(options.cfg, rest[2]))
            files.enter_context(replacing(rest[2])).write_text(script, encoding="utf-8")
    for file in (*options.out, *(rest or ())):
        echo(f"written: {file}")


def _for_target(part: Part, target: str | None) -> Part:
    return part.for_target(target) if target else part


def _names(files: Files) -> Files:
    return Path(files[0]).name, Path(files[1]).name


def _rest_of(out: Files) -> tuple[str, str, str]:
    """The files of the rest and the script. Raises Error for one that is there already, as their names are not given."""
    folder, suffix = Path(out[0]).parent, "".join(Path(out[1]).suffixes[-2:]) if out[1].endswith(".h5") else Path(out[1]).suffix
    if Path(out[1]).absolute().parent != folder.absolute():
        raise Error(f"--out {out[0]} {out[1]}: give both in one folder, to which the rest and the script are written too")
    names = [str(folder / name) for name in ("rest.prototxt", f"rest{suffix or '.caffemodel'}", "join.py")]
    if found := [name for name in names if unlinked(name).exists()]:
        raise Error(f"{found[0]} is there already: remove it, or write the part into another folder")
    if taken := [name for name in names if Path(name).name in (Path(out[0]).name, Path(out[1]).name)]:
        raise Error(f"--out {taken[0]}: the rest of the net gets this name; give another one")
    return names[0], names[1], names[2]


def _beside(file: str | None, script: str) -> str:
    """A file's path from the script's folder; "" without a file."""
    return os.path.relpath(file, Path(script).absolute().parent) if file else ""


def _write(files: ExitStack, part: Part, names: Files) -> None:
    """Write a part to drafts that get their names at the end, and print what it reads and makes."""
    net = part.net()
    part.save(*(files.enter_context(replacing(name)) for name in names))
    echo(f"{names[0]}: {len(part.param.layer)} layers, {len(part.weights)} with weights")
    echo("  inputs " + listed(f"{name} {shape_text(shape)}" for name, shape in part.inputs.items()))
    if any(choice.by_fork for choice in net.forks.values()):
        echo(f"  give --fork {pasted(part.fork)} with it, as with the whole net")
    echo("  outputs " + listed(f"{name} {shape_text(net.blobs[name].shape)}" for name in part.outputs))
