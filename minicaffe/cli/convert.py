"""import, to-torch and merge-bn: a net in another form, and --check, which compares both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from minicaffe.detection.inputs import fill_inputs, put_array
from minicaffe.detection.task import class_names, read_class_names
from minicaffe.errors import Error, WeightsError
from minicaffe.files import replacing, replacing_together
from minicaffe.formats.prototxt import NetFile, to_text
from minicaffe.formats.weights import no_name_fits
from minicaffe.layer_list import filter_layers
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.parameters import check_names_differ, put_weights, weights_of
from minicaffe.porting.agreement import TOLERANCE, Difference, differences, run_of, uninformative
from minicaffe.porting.merge_bn import Merged, merge_batch_norm
from minicaffe.porting.onnx_import import Imported, compare_with_model, import_onnx
from minicaffe.proto import caffe_pb2

from .common import NETS, WEIGHTS, check_apart, check_target, listed, print_table, shape_text
from .groups import StateOptions, ThreadOptions, classes_option, fork_option, random_weights_option, seed_option
from .image_options import InputOptions, SettingsOptions, ShapeOptions
from .options import argument, option, with_options
from .terminal import echo, warn


def check_option() -> Any:
    help = "First run both and print the largest differences; above 1e-4 write nothing and exit with status 1."
    return option("--check", help)


def print_agreement(title: str, found: Sequence[Difference], whose: tuple[str, str]) -> None:
    """Print the table, the notes on proposals, and PASS. Raises Error if an output differs, or if the outputs tell nothing.

    whose: the names of the two sides.
    """
    rows = [[one.name, shape_text(one.shape), _relative(one.largest), _relative(one.relative)] for one in found]
    print_table(title, ["output", "shape", "largest difference", "relative"], rows)
    for one in found:
        if one.note:
            echo(f"{one.name}: {one.note}")
    bound = f"{TOLERANCE:g} of the largest number"
    wrong = [_why_apart(one, whose) for one in found if not one.agrees]
    if wrong:
        raise Error(f"FAIL: more than {bound} apart: {'; '.join(wrong)}; nothing was written")
    if reason := uninformative(found):
        hint = "give WEIGHTS or --random-weights, or lower the thresholds so that boxes reach them"
        raise Error(f"FAIL: {reason}; {hint}; nothing was written")
    echo(f"PASS: every output within {bound}")


def _why_apart(one: Difference, whose: tuple[str, str]) -> str:
    if one.shape != one.other_shape:
        return f"{one.name} (its shape is {one.shape} in {whose[0]}, {one.other_shape} in {whose[1]})"
    return f"{one.name} ({one.relative:.2g})"


def _relative(value: float) -> str:
    return f"{value:.2e}" if math.isfinite(value) else "-"


@dataclass(frozen=True, kw_only=True)
class ImportOptions(ShapeOptions, SettingsOptions, ThreadOptions):
    model: str = argument()
    out: tuple[str, str] = option(
        "-o --out",
        "Prototxt and weights to write; .h5 for weights in HDF5.",
        required=True,
        nargs=2,
        multiple=False,
        metavar="NET.prototxt NET.caffemodel",
    )
    until: tuple[str, ...] = option(
        "--until", "Tensor that becomes an output; later nodes are left out; may be repeated.", metavar="TENSOR"
    )
    check: bool = option(
        "--check/--no-check",
        "First run both and print the largest differences; above 1e-4 write nothing and exit with status 1.",
        default=True,
    )
    seed: int = seed_option()
    fork: str | None = fork_option()


@with_options(ImportOptions)
def import_command(options: ImportOptions) -> None:
    """Convert the ONNX model MODEL (opset 9 to 22) to Caffe's format: a prototxt and its weights.

    This needs the extra onnx. --cfg is for models with proposals that minicaffe exported.

    Example:  minicaffe import model.onnx -o net.prototxt net.caffemodel
    """
    model, (out_net, out_weights) = options.model, options.out
    for path, writes in zip(options.out, (NETS, WEIGHTS), strict=True):
        check_target("--out", path, [model, options.cfg], writes=writes)
    check_apart("--out", out_net, "--out", out_weights)
    imported = import_onnx(model, dict(options.shapes), options.until)
    net = imported.net(options.settings, options.fork or "")
    options.check_net(net)
    _print_imported(imported)
    with replacing(out_net) as net_draft, replacing(out_weights) as weights_draft:
        net_draft.write_text(to_text(imported.param), encoding="utf-8")
        net.save(weights_draft)
        if options.check:
            for note in fill_inputs(net, {}, seed=options.seed):
                echo(note)
            print_agreement("net and model compared", compare_with_model(net, model, options.until), ("the net", "the model"))
    echo(f"written: {out_net}, {out_weights}")


def _print_imported(imported: Imported) -> None:
    """Print the inputs, and the number of layers of each type."""
    layers = [layer for layer in imported.param.layer if layer.type != "Input"]
    for layer in imported.param.layer:
        if layer.type == "Input":
            echo(f"input {listed(layer.top)} {shape_text(layer.input_param.shape[0].dim)}")
    kinds = Counter(layer.type for layer in layers)
    restored = f", {len(imported.restored)} of them as its metadata describe them" if imported.restored else ""
    echo(f"{len(layers)} layers: {', '.join(f'{n} {kind}' for kind, n in sorted(kinds.items()))}{restored}")


@dataclass(frozen=True, kw_only=True)
class ToTorchOptions(InputOptions, StateOptions, ThreadOptions):
    net: str = argument()
    weights: tuple[str, ...] = argument()
    out: str = option(
        "-o --out", "Python module to write; the weights go into the same folder.", required=True, metavar="FILE.py"
    )
    check: bool = check_option()
    seed: int = seed_option()
    random_weights: bool = random_weights_option()
    classes: str | None = classes_option()


@with_options(ToTorchOptions)
def to_torch_command(options: ToTorchOptions) -> None:
    """Convert the prototxt NET to readable PyTorch source, and WEIGHTS to a .safetensors file next to it.

    The source needs only torch. --check also compares the gradients.

    Example:  minicaffe to-torch test.prototxt net.caffemodel -o model.py --check
    """
    from minicaffe.porting.torch_source import compare_source, write_source

    out = Path(options.out)
    files = (options.out, str(out.with_suffix(".safetensors")))
    for file, suffix in zip(files, (".py", ".safetensors"), strict=True):
        check_target("--out", file, [options.net, *options.weights, *options.read_files(), options.classes], writes=[suffix])
    if out.suffix != ".py" or not out.stem.isidentifier():
        raise Error(f"--out {options.out}: give the name of a module, as model.py")
    net = options.load(options.net, options.weights)
    classes = class_names(net, read_class_names(net, options.classes)) if options.classes else None
    for note in options.fill(net, options.seed):
        if options.check:
            warn(note)
    with replacing_together(options.out) as draft:
        made = write_source(net, draft, classes)
        if options.check:
            print_agreement("the module beside the net", compare_source(net, draft, made), ("the net", "the module"))
    echo(f"written: {', '.join(files)}")


@dataclass(frozen=True, kw_only=True)
class MergeBnOptions(ShapeOptions, StateOptions):
    net: str = argument()
    weights: str | None = argument(required=False)
    out: tuple[str, str] | None = option(
        "-o --out",
        "The prototxt and the weights to write; the suffix decides the weights' format.",
        nargs=2,
        multiple=False,
        metavar="NET.prototxt NET.caffemodel",
    )
    out_net: str | None = option("--out-net", "The first of --out.", hidden=True)
    out_weights: str | None = option("--out-weights", "The second.", hidden=True)
    check: bool = check_option()
    seed: int = seed_option()
    random_weights: bool = random_weights_option()


@with_options(MergeBnOptions)
def merge_bn_command(options: MergeBnOptions) -> None:
    """Fold BatchNorm, BN, CuDNNBatchNorm, Scale and Bias of the prototxt NET and its WEIGHTS into the convolutions before them.

    The written files hold the TEST net without these layers, in Caffe's format, with the same outputs. --shape is for --check.

    Example:  minicaffe merge-bn test.prototxt net.caffemodel -o merged.prototxt merged.caffemodel
    """
    net, weights = options.net, options.weights
    out_net, out_weights = options.out or (options.out_net, options.out_weights)
    if out_net is None or out_weights is None:
        raise click.UsageError("Missing option '-o' / '--out'")
    check_target("--out", out_net, [net, weights], writes=NETS)
    check_target("--out", out_weights, [net, weights], writes=WEIGHTS)
    check_apart("--out", out_net, "--out", out_weights)
    file = options.open_net(net)
    before = options.load(file, [weights] if weights else []) if options.random_weights else _complete(file, options)
    check_names_differ(before.layers, "folding")
    merged = merge_batch_norm(_test_net(file, before), weights_of(before), before.fork)
    after = options.build(merged.param)
    put_weights(after, merged.weights)
    with replacing(out_net) as net_draft, replacing(out_weights) as weights_draft:
        net_draft.write_text(to_text(merged.param), encoding="utf-8")
        after.save(weights_draft)
        _print_merged(merged, len(before.param.layer), len(after.param.layer))
        if options.check:
            # Check the drafts, so that a failed check writes nothing.
            _check_merged(before, Net(net_draft, TEST, weights=weights_draft, fork=before.fork), options)
    echo(f"written: {out_net}, {out_weights}")


def _complete(file: NetFile, options: MergeBnOptions) -> Net:
    """Return the net with its weights. Raises WeightsError if a layer has none."""
    if options.weights is None:
        raise click.UsageError("Missing argument 'WEIGHTS'; or give --random-weights")
    net = options.build(file)
    report = net.copy_from(options.weights)
    if not report.loaded:
        raise no_name_fits(options.weights, options.net)
    if report.missing:
        raise WeightsError(f"{options.weights}: it has no weights for {', '.join(report.missing)}, which folding needs")
    return net


def _test_net(file: NetFile, net: Net) -> caffe_pb2.NetParameter:
    """Return the file's layers that the net uses, without the inserted Split layers and without include and exclude rules."""
    param = caffe_pb2.NetParameter()
    param.CopyFrom(file.param)
    sources = list(file.sources)
    kept = filter_layers(list(zip(file.param.layer, sources, strict=True)), net.param.state)
    del param.layer[:]
    param.layer.extend(layer for layer, _ in kept)
    for layer in param.layer:
        del layer.include[:], layer.exclude[:]
    return param


def _print_merged(merged: Merged, before: int, after: int) -> None:
    gone = sum(map(len, merged.folded.values()))
    if not (gone or merged.left):
        echo("the net has no BatchNorm, BN, CuDNNBatchNorm, Scale or Bias layer: written unchanged")
        return
    echo(f"{gone} layers folded into {len(merged.folded)}; {len(merged.left)} left where they are")
    for root, names in merged.folded.items():
        echo(f"  {root} <- {', '.join(names)}")
    for name, reason in merged.left.items():
        echo(f"left: {name}: {reason}")
    for name, note in merged.notes.items():
        warn(f"{name}: {note}")


def _check_merged(before: Net, after: Net, options: MergeBnOptions) -> None:
    """Run both nets on one input and compare the outputs. Raises Error beyond the tolerance."""
    options.reshape(before)
    for note in fill_inputs(before, {}, seed=options.seed):
        echo(note)
    for name in before.inputs:
        put_array(after, name, before.blobs[name].read_data())
    ours = run_of(before, before.outputs)
    found = differences(ours, run_of(after, before.outputs).blobs)
    print_agreement("original and merged net compared", found, ("the first", "the merged"))
