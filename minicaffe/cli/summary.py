"""summary, draw and dump: the contents of a net or of a file of weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from minicaffe.errors import Error, shortened
from minicaffe.files import unlinked
from minicaffe.formats.prototxt import read_net
from minicaffe.layers.proposal.dynamic_tops import dynamic_rois
from minicaffe.mode import Phase
from minicaffe.tracing.draw import DIRECTIONS, draw_net_to_file
from minicaffe.tracing.summary import MemoryNeeds, summarize

from .common import check_target, number_text, one_of, print_table, shape_text, statistics_text
from .groups import StateOptions, phase_option
from .image_options import SettingsOptions, ShapeOptions
from .options import argument, option, with_options
from .terminal import echo, warn

if TYPE_CHECKING:
    from minicaffe.porting.dump import Dump


@dataclass(frozen=True, kw_only=True)
class SummaryOptions(ShapeOptions, SettingsOptions, StateOptions):
    net: str = argument()
    weights: tuple[str, ...] = argument()
    rois: int | None = option(
        "--rois",
        "Number of rois from the Proposal layer.  [default: RPN_POST_NMS_TOP_N, which is 300 in TEST and 2000 in TRAIN]",
        type=click.IntRange(1),
    )
    phase: Phase = phase_option()


@with_options(SummaryOptions)
def summary_command(options: SummaryOptions) -> None:
    """Print layers, shapes, parameters, multiply-adds and memory of the prototxt NET. With WEIGHTS, check that they fit.

    Example:  minicaffe summary test.prototxt --shape data=1,3,600,1000 --rois 100
    """
    loaded = options.load(options.net, options.weights) if options.weights else options.build(options.open_net(options.net))
    options.reshape(loaded)
    rois = options.rois
    if rois and not any(map(dynamic_rois, loaded.layers)):
        instead = f": give --shape rois={rois},5" if "rois" in loaded.inputs else ""
        raise Error(f"--rois {rois}: no layer of the net proposes rois{instead}")
    summary = summarize(loaded, rois)
    rows = [
        [
            layer.name,
            layer.type,
            " ".join(f"{name} {shape_text(shape)}" for name, shape in zip(layer.tops, layer.shapes)),
            number_text(layer.parameters) if layer.parameters else "",
            _count(layer.multiply_adds),
            f"{layer.bytes / 2**20:.2f}" if layer.bytes else "",
        ]
        for layer in summary.layers
    ]
    columns = ["layer", "type", "tops", "parameters", "multiply-adds", "MiB"]
    print_table(f"{loaded.name or options.net} ({loaded.phase})", columns, rows, right=columns[3:])
    for line in summary.forks:
        echo(line)
    unknown = f" (without {', '.join(summary.not_counted)})" if summary.not_counted else ""
    echo(
        f"{len(summary.layers)} layers, {number_text(summary.parameters)} parameters "
        f"({summary.parameter_bytes / 2**20:.1f} MiB), {number_text(summary.multiply_adds)} multiply-adds{unknown}, "
        f"{summary.blob_bytes / 2**20:.1f} MiB of blobs"
    )
    echo(peak_text(summary.memory))
    if summary.loops:
        echo(summary.loops)


def _count(multiply_adds: int | None) -> str:
    """Return a count as text: a dash if unknown, nothing for 0."""
    return "-" if multiply_adds is None else number_text(multiply_adds) if multiply_adds else ""


def peak_text(memory: MemoryNeeds) -> str:
    """Return the peak memory of a run and its parts, in one line."""
    parts = {
        "weights": memory.weights,
        "blobs": memory.blobs,
        "diffs": memory.diffs,
        "kept by layers": memory.kept,
        "working memory": memory.working,
    }
    made = " + ".join(f"{name} {size / 2**20:.1f}" for name, size in parts.items() if size)
    if memory.peak_of_outputs is None:
        return f"peak of forward and backward: about {memory.peak / 2**20:.0f} MiB ({made}); a solver's history comes on top"
    outputs = f'{memory.peak_of_outputs / 2**20:.0f} MiB with keep="outputs", as run and detect do'
    return f"peak of a forward: about {memory.peak / 2**20:.0f} MiB ({made}); {outputs}"


@dataclass(frozen=True, kw_only=True)
class DrawOptions(StateOptions):
    net: str = argument()
    old_out: str | None = argument(required=False, hidden=True)
    out: str | None = option("-o --out", "Picture to write.", metavar="FILE.svg|.png|.pdf|.dot")
    rankdir: str = option("--rankdir", "Direction of the arrows.", type=click.Choice(DIRECTIONS), default="TB")
    only: str = option(
        "--phase",
        "Leave out the layers of the other phase.",
        type=click.Choice(["TRAIN", "TEST", "ALL"], case_sensitive=False),
        metavar="TRAIN|TEST|ALL",
        default="ALL",
    )
    display_lrm: bool = option("--display-lrm", "Show the learning rate multipliers.")
    with_shapes: bool = option("--shapes", "Show the blobs' shapes. The net is built in TEST unless --phase is given.")


@with_options(DrawOptions)
def draw_command(options: DrawOptions) -> None:
    """Draw the net in the prototxt NET as a picture: SVG, PNG, PDF, or Graphviz's DOT (.dot, .gv).

    Example:  minicaffe draw test.prototxt -o net.svg --shapes
    """
    if options.old_out is None and options.out is None:
        raise click.UsageError("Missing option '-o' / '--out'")
    net, out = options.net, one_of(options.old_out, options.out, "OUT", "--out")
    check_target("--out", out, [net], writes=[".svg", ".png", ".pdf", ".dot", ".gv"])
    phase = None if options.only.upper() == "ALL" else Phase[options.only.upper()]
    found = None
    if options.with_shapes:
        made = options.build(options.open_net(net, phase=phase), phase)
        found = {name: blob.shape for name, blob in made.blobs.items()}
    draw_net_to_file(read_net(net, warn=False).param, out, options.rankdir, phase, options.display_lrm, shapes=found)
    echo(f"written: {out}")


@dataclass(frozen=True, kw_only=True)
class DumpOptions:
    file: str = argument()
    out: str | None = option(
        "-o --out", "The .npz, .safetensors or .caffemodel.  [default without --list: FILE.npz]", metavar="FILE"
    )
    listed: bool = option("--list", "Print layers, types, shapes, statistics and the fork that wrote FILE.")


@with_options(DumpOptions)
def dump_command(options: DumpOptions) -> None:
    """Export the arrays of a .caffemodel, .h5, .safetensors, .npz, .solverstate or .binaryproto. No prototxt is needed.

    The suffix of --out selects the format: .safetensors, .caffemodel (weights without a net) or .npz. The arrays of a net are
    named LAYER.0, LAYER.1; of a training state iter, history.0; of a mean data. A file is replaced only if --out names it.

    Example:  minicaffe dump net.caffemodel -o net.safetensors
    """
    file, out, listed = options.file, options.out, options.listed
    target = out if out is not None or listed else f"{Path(file).name}.npz"
    if out is None and target is not None and unlinked(target).exists():
        raise Error(f"{target} already exists: give -o {target} to replace it, or another name")
    check_target("--out", target, [file], writes=[".npz", ".safetensors", ".caffemodel", ".h5"])  # dump reports .h5 better
    from minicaffe.porting.dump import read  # the solvers, which a summary does without

    dump = read(file)
    if listed:
        _print_dump(dump)
    broken = [name for name, array in dump.arrays.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]
    if broken:
        warn(f"{file}: NaN or infinite values in {', '.join(broken)}")
    if target is not None:
        dump.write(target)
        echo(f"written: {target} ({len(dump.arrays)} arrays)")


def _print_dump(dump: Dump) -> None:
    types = {layer.name: layer.type for layer in dump.layers}
    rows = []
    for name, array in dump.arrays.items():
        kind = types.get(name.rpartition(".")[0], "")
        numbers = statistics_text(array) if array.dtype.kind in "fiu" else str(array)
        rows.append([name, kind, shape_text(array.shape), str(array.dtype), numbers])
    print_table(f"{dump.path} ({dump.kind})", ["array", "type", "shape", "stored as", "min / mean / max"], rows)
    bare = [f"{layer.name} ({layer.type or 'type unknown'})" for layer in dump.layers if not any(layer.blobs)]
    if bare:
        echo(shortened(f"{len(bare)} layers without weights: {', '.join(bare)}"))
    for line in dump.forks:
        echo(shortened(line))
    values = sum(array.size for array in dump.arrays.values())
    echo(f"{len(dump.arrays)} arrays, {values} values")
    if dump.kind == ".caffemodel":
        echo(shortened(f"written by: {dump.origin}"))
        for evidence in dump.origin.evidence[:8]:
            echo(shortened(f"  {evidence}"))
        if len(dump.origin.evidence) > 8:
            echo(f"  and {len(dump.origin.evidence) - 8} more such fields")
