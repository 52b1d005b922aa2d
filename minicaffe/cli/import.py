"""minicaffe import"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from minicaffe.detection.inputs import fill_inputs
from minicaffe.files import replacing
from minicaffe.formats.prototxt import to_text
from minicaffe.porting.onnx_import import Imported, compare_with_model, import_onnx

from .agreement import print_agreement
from .common import check_apart, check_target, listed, shape_text
from .groups import ThreadOptions, fork_option, seed_option
from .image_options import SettingsOptions, ShapeOptions
from .options import argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(ShapeOptions, SettingsOptions, ThreadOptions):
    model: str = argument()
    out: tuple[str, str] = option(
        "-o --out",
        "The prototxt and the weights to write; HDF5 if they end in .h5.",
        required=True,
        nargs=2,
        multiple=False,
        metavar="NET.prototxt NET.caffemodel",
    )
    until: tuple[str, ...] = option(
        "--until", "A tensor that becomes an output; what is beyond it is left out; may be repeated.", metavar="TENSOR"
    )
    check: bool = option(
        "--check/--no-check",
        "First run both and print the largest differences; beyond 1e-4 write nothing and exit with 1.",
        default=True,
    )
    seed: int = seed_option()
    fork: str | None = fork_option()


@with_options(Options)
def command(options: Options) -> None:
    """Write the ONNX model MODEL (opset 9 to 22) as a net in Caffe's format: a prototxt and its weights.

    Needs the extra onnx. --cfg is for models that minicaffe exported of a net with proposals.

    Example:  minicaffe import model.onnx -o net.prototxt net.caffemodel
    """
    model, (out_net, out_weights) = options.model, options.out
    for path in options.out:
        check_target("--out", path, [model, options.cfg])
    check_apart("--out", out_net, "--out", out_weights)
    imported = import_onnx(model, dict(options.shapes), options.until)
    net = imported.net(options.settings, options.fork or "")
    _say(imported)
    with replacing(out_net) as net_draft, replacing(out_weights) as weights_draft:
        net_draft.write_text(to_text(imported.param), encoding="utf-8")
        net.save(weights_draft)
        if options.check:
            for note in fill_inputs(net, {}, seed=options.seed):
                echo(note)
            print_agreement("the net beside the model", compare_with_model(net, model, options.until), ("the net", "the model"))
    echo(f"written: {out_net}, {out_weights}")


def _say(imported: Imported) -> None:
    """The inputs, and how many layers there are of each type."""
    layers = [layer for layer in imported.param.layer if layer.type != "Input"]
    for layer in imported.param.layer:
        if layer.type == "Input":
            echo(f"input {listed(layer.top)} {shape_text(layer.input_param.shape[0].dim)}")
    kinds = Counter(layer.type for layer in layers)
    restored = f", {len(imported.restored)} of them as its metadata describe them" if imported.restored else ""
    echo(f"{len(layers)} layers: {', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))}{restored}")
