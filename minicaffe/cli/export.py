"""minicaffe export"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from numpy.typing import NDArray

from minicaffe.detection.inputs import put_array
from minicaffe.files import replacing_together
from minicaffe.net import Net

from .agreement import check_option, print_agreement
from .common import check_target, warn
from .export_int8 import Int8Options
from .export_whole import WholeOptions, whole_check
from .groups import StateOptions, ThreadOptions, random_weights_option, seed_option
from .image_options import InputOptions
from .options import argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(Int8Options, WholeOptions, InputOptions, StateOptions, ThreadOptions):
    net: str = argument()
    weights: tuple[str, ...] = argument()
    out: str = option("-o --out", "The model to write.", required=True, metavar="FILE.onnx")
    opset: int | None = option("--opset", "Version of ONNX's operators.  [default: 18, the oldest]")
    until: str | None = option("--until", "Export only what this layer needs; its tops are the outputs.", metavar="LAYER")
    fold: bool = option("--fold", "Fold BatchNorm, Scale and Bias into the convolutions before them.")
    check: bool = check_option()
    seed: int = seed_option()
    random_weights: bool = random_weights_option()


@with_options(Options)
def command(options: Options) -> None:
    """Write the net in the prototxt NET with WEIGHTS (of any format) as an ONNX model of standard operators.

    The batch, the image's height and width and the number of rois are dynamic axes of the model if the net allows it.
    --input is for --check. With --with-image and --with-boxes a detector is whole: a photo goes in, boxes come out.

    Example:  minicaffe export test.prototxt net.caffemodel -o model.onnx --check --input data=photo.jpg
    """
    from minicaffe.porting.onnx import DEFAULT_OPSET, compare_with_net, export_onnx

    out, until = options.out, options.until
    check_target("--out", out, [options.net, *options.weights, *options.read_files()])
    if options.inputs and not options.check:
        raise click.UsageError("--input is for --check")
    whole = options.whole(options)
    options.check_int8(whole)
    net = options.load(options.net, options.weights)
    options.reshape(net)
    arrays = _arrays(net, options) if options.check and not whole else {}
    opset = DEFAULT_OPSET if options.opset is None else options.opset
    with replacing_together(out) as draft:  # the model and its file of weights appear together, or neither
        data = export_onnx(net, draft, opset=opset, until=until, fold=options.fold, whole=whole)
        size = draft.stat().st_size / 2**20
        _print_axes(draft)
        if options.check and whole:
            print_agreement("the model beside detect", whole_check(net, draft, options, whole), ("detect", "the model"))
        elif options.check:
            for name, array in arrays.items():
                put_array(net, name, array)
            print_agreement("the model beside the net", compare_with_net(net, draft, until=until), ("the net", "the model"))
        if options.int8:
            options.to_int8(net, draft, options, whole)
            size = draft.stat().st_size / 2**20
    beside = f", weights in {Path(out).with_name(data)}" if data else ""
    echo(f"written: {out} (opset {opset}, {size:.1f} MiB{beside})")


def _arrays(net: Net, options: Options) -> dict[str, NDArray[Any]]:
    """The net's inputs for the check; the net keeps the shapes that it is exported with."""
    shapes = {name: net.blobs[name].shape for name in net.inputs}
    for note in options.fill(net, options.seed, options.until):
        warn(note)
    arrays = {name: net.blobs[name].read_data().copy() for name in net.inputs}
    for name, shape in shapes.items():
        net.blobs[name].reshape(shape)
    return arrays


def _print_axes(model: Path) -> None:
    import onnx

    graph = onnx.load(model, "protobuf", load_external_data=False).graph
    for kind, tensors in (("input", graph.input), ("output", graph.output)):
        for tensor in tensors:
            dims = [d.dim_param or str(d.dim_value) for d in tensor.type.tensor_type.shape.dim]
            echo(f"{kind} {tensor.name} {' x '.join(dims) or 'scalar'}")
