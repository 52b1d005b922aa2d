"""minicaffe export"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from numpy.typing import NDArray

from minicaffe.data.settings import read_settings
from minicaffe.detection.inputs import fill_inputs, put_array
from minicaffe.files import replacing_together
from minicaffe.net import Net

from .agreement import say_agreement
from .common import (
    allow_modules,
    check_target,
    load_net,
    say_loudly,
    seed_option,
    state_options,
    threads_option,
)
from .inputs import cfg_option, parse_inputs, reshape_inputs, shape_option
from .terminal import echo


@click.command()
@click.argument("net")
@click.argument("weights", nargs=-1)
@click.option("-o", "--out", required=True, metavar="FILE.onnx", help="The model to write.")
@click.option("--opset", type=int, help="The version of ONNX's operators.  [default: 18, which is the oldest]")
@click.option("--until", metavar="LAYER", help="Only what this layer needs; its tops are the outputs.")
@click.option("--fold", is_flag=True, help="Make BatchNorm, Scale and Bias part of the convolutions before them.")
@click.option(
    "--check",
    is_flag=True,
    help="Run both first, print how far outputs are apart; beyond 1e-4 write nothing, exit with 1.",
)
@click.option(
    "--input", "inputs", multiple=True, metavar="BLOB=FILE", help="For --check: a .npy file or an image; may be repeated."
)
@shape_option
@cfg_option
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
    from minicaffe.porting.onnx import DEFAULT_OPSET, compare_with_net, export_onnx

    allow_modules(allow_module)
    check_target("--out", out, [net, *weights, *parse_inputs(inputs).values(), cfg])
    if inputs and not check:
        raise click.UsageError("--input is for --check")
    settings = read_settings(cfg) if cfg else None
    loaded = load_net(net, weights, seed=seed, level=level, stages=stages, settings=settings)
    reshape_inputs(loaded, shapes)
    arrays = _arrays(loaded, inputs, seed, until) if check else {}
    opset = DEFAULT_OPSET if opset is None else opset
    with replacing_together(out) as draft:
        data = export_onnx(loaded, draft, opset=opset, until=until, fold=fold)
        size = draft.stat().st_size / 2**20
        _print_free_axes(draft)
        if check:
            for name, array in arrays.items():
                put_array(loaded, name, array)
            found = compare_with_net(loaded, draft, until=until)
            say_agreement("the model beside the net", found, ("the net", "the model"))
    beside = f", weights in {Path(out).with_name(data)}" if data else ""
    echo(f"written: {out} (opset {opset}, {size:.1f} MiB{beside})")


def _arrays(net: Net, inputs: tuple[str, ...], seed: int, until: str | None) -> dict[str, NDArray[Any]]:
    """What the net's inputs are to hold in the check; the net keeps the shapes that it is exported with."""
    shapes = {name: net.blobs[name].shape for name in net.inputs}
    for note in fill_inputs(net, parse_inputs(inputs), seed=seed, until=until):
        say_loudly(note)
    arrays = {name: net.blobs[name].read_data().copy() for name in net.inputs}
    for name, shape in shapes.items():
        net.blobs[name].reshape(shape)
    return arrays


def _print_free_axes(model: Path) -> None:
    import onnx

    graph = onnx.load(model, load_external_data=False).graph
    for kind, tensors in (("input", graph.input), ("output", graph.output)):
        for tensor in tensors:
            dims = [d.dim_param or str(d.dim_value) for d in tensor.type.tensor_type.shape.dim]
            echo(f"{kind} {tensor.name} {' x '.join(dims) or 'scalar'}")
