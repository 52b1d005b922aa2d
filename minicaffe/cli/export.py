"""minicaffe export"""

from __future__ import annotations

import math
from pathlib import Path

import click

from minicaffe.errors import Error
from minicaffe.inputs import fill_inputs
from minicaffe.net import Net
from minicaffe.settings import read_settings, use

from .common import (
    allow_modules,
    check_target,
    load_net,
    print_table,
    say_loudly,
    seed_option,
    shape_text,
    state_options,
    threads_option,
)
from .inputs import parse_inputs, reshape_inputs, shape_option


@click.command()
@click.argument("net")
@click.argument("weights", nargs=-1)
@click.option("-o", "--out", required=True, metavar="FILE.onnx", help="The model to write.")
@click.option("--opset", type=int, help="The version of ONNX's operators.  [default: 18, which is the oldest]")
@click.option("--until", metavar="LAYER", help="Only what this layer needs; its tops are the outputs.")
@click.option("--fold", is_flag=True, help="Make BatchNorm, Scale and Bias part of the convolutions before them.")
@click.option("--check", is_flag=True, help="Run both; print how far each output is from the net's. Exit status 1 beyond 1e-4.")
@click.option(
    "--input", "inputs", multiple=True, metavar="BLOB=FILE", help="For --check: a .npy file or an image; may be repeated."
)
@shape_option
@click.option("--cfg", metavar="FILE.yml", help="Detection settings in py-faster-rcnn's format: how many proposals, for one.")
@seed_option
@threads_option
@state_options
def command(
    net: str,
    weights: tuple[str, ...],
    out: str,
    opset: int | None,
    until: str | None,
    fold: bool,
    check: bool,
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    cfg: str | None,
    seed: int,
    level: int,
    stages: tuple[str, ...],
    allow_module: tuple[str, ...],
) -> None:
    """Write the net in the prototxt NET with WEIGHTS (.caffemodel, .h5) as an ONNX model of standard operators.

    Axes that the net can take in another length (the batch, the image's height and width, the rois) are free in the model.

    Example:  minicaffe export test.prototxt net.caffemodel -o model.onnx --check --input data=photo.jpg
    """
    from minicaffe.onnx_export import DEFAULT_OPSET, export_onnx

    allow_modules(allow_module)
    check_target("--out", out)
    if inputs and not check:
        raise click.UsageError("--input is for --check")
    if cfg:
        use(read_settings(cfg))
    loaded = load_net(net, weights, seed=seed, level=level, stages=stages)
    reshape_inputs(loaded, shapes)
    opset = DEFAULT_OPSET if opset is None else opset
    data = export_onnx(loaded, out, opset=opset, until=until, fold=fold)
    beside = f", weights in {Path(out).with_name(data)}" if data else ""
    click.echo(f"written: {out} (opset {opset}, {Path(out).stat().st_size / 2**20:.1f} MiB{beside})")
    _print_free_axes(out)
    if check:
        _check(loaded, out, inputs, seed, until)


def _print_free_axes(out: str) -> None:
    import onnx

    graph = onnx.load(out, load_external_data=False).graph
    for kind, tensors in (("input", graph.input), ("output", graph.output)):
        for tensor in tensors:
            dims = [d.dim_param or str(d.dim_value) for d in tensor.type.tensor_type.shape.dim]
            click.echo(f"{kind} {tensor.name} {' x '.join(dims) or 'scalar'}")


def _check(net: Net, out: str, inputs: tuple[str, ...], seed: int, until: str | None) -> None:
    from minicaffe.onnx_export import compare_with_net

    for note in fill_inputs(net, parse_inputs(inputs), seed=seed):
        say_loudly(note)
    found = compare_with_net(net, out, until=until)
    rows = [[one.name, shape_text(one.shape), _number(one.largest), _number(one.relative)] for one in found]
    print_table("the model beside the net", ["output", "shape", "largest difference", "relative"], rows)
    for one in found:
        if one.shape != one.other_shape:
            raise Error(f"output {one.name}: the net's shape is {one.shape}, the model's {one.other_shape}")
    apart = [one.name for one in found if not one.agrees]
    if apart:
        raise Error(f"{', '.join(apart)}: more than 1e-4 of the largest number apart")


def _number(value: float) -> str:
    return f"{value:.2e}" if math.isfinite(value) else "-"
