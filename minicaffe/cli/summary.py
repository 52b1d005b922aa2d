"""minicaffe summary"""

from __future__ import annotations

import click

from minicaffe.net import Net
from minicaffe.summary import summarize

from .common import allow_modules, number_text, phase_of, phase_option, print_table, reshape_inputs, shape_text, state_options


@click.command()
@click.argument("net")
@click.option("--shape", "shapes", multiple=True, metavar="BLOB=N,C,H,W", help="Another shape for an input; may be repeated.")
@phase_option
@state_options
def command(
    net: str, shapes: tuple[str, ...], phase: str, level: int, stages: tuple[str, ...], allow_module: tuple[str, ...]
) -> None:
    """Layers, shapes, parameters, multiply-adds and memory of the net in the prototxt NET.

    Example:  minicaffe summary test.prototxt --shape data=1,3,600,1000
    """
    allow_modules(allow_module)
    loaded = Net(net, phase_of(phase), level, list(stages))
    reshape_inputs(loaded, shapes)
    summary = summarize(loaded)
    rows = [
        [
            layer.name,
            layer.type,
            " ".join(f"{name} {shape_text(shape)}" for name, shape in zip(layer.tops, layer.shapes)),
            number_text(layer.parameters) if layer.parameters else "",
            number_text(layer.multiply_adds) if layer.multiply_adds else "",
            f"{layer.bytes / 2**20:.2f}" if layer.bytes else "",
        ]
        for layer in summary.layers
    ]
    columns = ["layer", "type", "tops", "parameters", "multiply-adds", "MiB"]
    print_table(f"{loaded.name or net} ({loaded.phase})", columns, rows, right=columns[3:])
    click.echo(
        f"{len(summary.layers)} layers, {number_text(summary.parameters)} parameters "
        f"({summary.parameter_bytes / 2**20:.1f} MiB), {number_text(summary.multiply_adds)} multiply-adds, "
        f"{summary.blob_bytes / 2**20:.1f} MiB of blobs"
    )
