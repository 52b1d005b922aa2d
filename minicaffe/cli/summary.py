"""minicaffe summary"""

from __future__ import annotations

import click

from minicaffe.data.settings import read_settings
from minicaffe.errors import Error
from minicaffe.net import Net
from minicaffe.tracing.memory import MemoryNeeds
from minicaffe.tracing.summary import summarize

from .common import allow_modules, number_text, phase_of, phase_option, print_table, shape_text, state_options
from .inputs import reshape_inputs, shape_option
from .terminal import echo


@click.command()
@click.argument("net")
@shape_option
@click.option(
    "--rois",
    type=click.IntRange(1),
    help="How many rois its Proposal is taken to give.  [default: RPN_POST_NMS_TOP_N: 300 in TEST, 2000 in TRAIN]",
)
@click.option("--cfg", metavar="FILE.yml", help="Detection settings in py-faster-rcnn's format.")
@phase_option
@state_options
def command(
    net: str,
    shapes: tuple[str, ...],
    rois: int | None,
    cfg: str | None,
    phase: str,
    level: int,
    stages: tuple[str, ...],
    allow_module: tuple[str, ...],
) -> None:
    """Layers, shapes, parameters, multiply-adds and memory of the net in the prototxt NET.

    Example:  minicaffe summary test.prototxt --shape data=1,3,600,1000 --rois 100
    """
    allow_modules(allow_module)
    settings = read_settings(cfg) if cfg else None
    loaded = Net(net, phase_of(phase), level, list(stages), settings=settings)
    reshape_inputs(loaded, shapes)
    if rois and not any(layer.makes_rois for layer in loaded.layers):
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
    print_table(f"{loaded.name or net} ({loaded.phase})", columns, rows, right=columns[3:])
    unknown = f" (without {', '.join(summary.not_counted)})" if summary.not_counted else ""
    echo(
        f"{len(summary.layers)} layers, {number_text(summary.parameters)} parameters "
        f"({summary.parameter_bytes / 2**20:.1f} MiB), {number_text(summary.multiply_adds)} multiply-adds{unknown}, "
        f"{summary.blob_bytes / 2**20:.1f} MiB of blobs"
    )
    echo(peak_text(summary.memory))


def _count(multiply_adds: int | None) -> str:
    """A dash where they are not known, nothing for none."""
    return "-" if multiply_adds is None else number_text(multiply_adds) if multiply_adds else ""


def peak_text(memory: MemoryNeeds) -> str:
    """The peak of a run and what it is made of, in one line."""
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
