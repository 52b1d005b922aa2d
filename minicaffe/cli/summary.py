"""minicaffe summary"""

from __future__ import annotations

from dataclasses import dataclass

import click

from minicaffe.errors import Error
from minicaffe.layers.proposal.dynamic_tops import dynamic_rois
from minicaffe.mode import Phase
from minicaffe.tracing.memory import MemoryNeeds
from minicaffe.tracing.summary import summarize

from .common import number_text, print_table, shape_text
from .groups import StateOptions, phase_option
from .image_options import SettingsOptions, ShapeOptions
from .options import argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(ShapeOptions, SettingsOptions, StateOptions):
    net: str = argument()
    weights: tuple[str, ...] = argument()
    rois: int | None = option(
        "--rois",
        "Number of rois from the Proposal layer.  [default: RPN_POST_NMS_TOP_N: 300 in TEST, 2000 in TRAIN]",
        type=click.IntRange(1),
    )
    phase: Phase = phase_option()


@with_options(Options)
def command(options: Options) -> None:
    """Print layers, shapes, parameters, multiply-adds and memory of the net in the prototxt NET, and whether WEIGHTS fit it.

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
    """A dash if unknown, nothing for 0."""
    return "-" if multiply_adds is None else number_text(multiply_adds) if multiply_adds else ""


def peak_text(memory: MemoryNeeds) -> str:
    """The peak memory of a run and its parts, in one line."""
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
