"""minicaffe merge-bn"""

from __future__ import annotations

from dataclasses import dataclass

import click

from minicaffe.detection.inputs import fill_inputs, put_array
from minicaffe.errors import WeightsError
from minicaffe.files import replacing
from minicaffe.formats.prototxt import NetFile, to_text
from minicaffe.formats.weights import no_name_fits
from minicaffe.layer_list import filter_layers
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.parameters import check_names_differ, put_weights, weights_of
from minicaffe.porting.agreement import differences, run_of
from minicaffe.porting.merge_bn import Merged, merge_batch_norm
from minicaffe.proto import caffe_pb2

from .agreement import check_option, print_agreement
from .common import check_apart, check_target, warn
from .groups import StateOptions, random_weights_option, seed_option
from .image_options import ShapeOptions
from .options import argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(ShapeOptions, StateOptions):
    net: str = argument()
    weights: str | None = argument(required=False)
    out_net: str = option("--out-net", "The prototxt to write.", required=True, metavar="FILE")
    out_weights: str = option("--out-weights", "The weights; the suffix decides the format.", required=True, metavar="FILE")
    check: bool = check_option()
    seed: int = seed_option()
    random_weights: bool = random_weights_option()


@with_options(Options)
def command(options: Options) -> None:
    """Fold the BatchNorm, BN, Scale and Bias layers of the prototxt NET and its WEIGHTS into the convolutions before them.

    The written files hold the TEST net without these layers, in Caffe's format, with the same outputs. --shape is for --check.

    Example:  minicaffe merge-bn test.prototxt net.caffemodel --out-net merged.prototxt --out-weights merged.caffemodel
    """
    net, weights, out_net, out_weights = options.net, options.weights, options.out_net, options.out_weights
    check_target("--out-net", out_net, [net, weights])
    check_target("--out-weights", out_weights, [net, weights])
    check_apart("--out-net", out_net, "--out-weights", out_weights)
    file = options.open_net(net)
    before = options.load(file, [weights] if weights else []) if options.random_weights else _complete(file, options)
    check_names_differ(before.layers, "folding")
    merged = merge_batch_norm(_test_net(file, before), weights_of(before), before.fork)
    after = options.build(merged.param)
    put_weights(after, merged.weights)
    with replacing(out_net) as net_draft, replacing(out_weights) as weights_draft:
        net_draft.write_text(to_text(merged.param), encoding="utf-8")
        after.save(weights_draft)
        _say(merged, len(before.param.layer), len(after.param.layer))
        if options.check:
            # the drafts: what fails the check is not written
            _check(before, Net(net_draft, TEST, weights=weights_draft, fork=before.fork), options)
    echo(f"written: {out_net}, {out_weights}")


def _complete(file: NetFile, options: Options) -> Net:
    """The net with its weights. Raises WeightsError if a layer has none."""
    if options.weights is None:
        raise click.UsageError("Missing argument 'WEIGHTS'; --random-weights does without")
    net = options.build(file)
    report = net.copy_from(options.weights)
    if not report.loaded:
        raise no_name_fits(options.weights, options.net)
    if report.missing:
        raise WeightsError(f"{options.weights}: it has no weights for {', '.join(report.missing)}, which folding needs")
    return net


def _test_net(file: NetFile, net: Net) -> caffe_pb2.NetParameter:
    """The layers of the file that the net consists of, without Split layers and without rules."""
    param = caffe_pb2.NetParameter()
    param.CopyFrom(file.param)
    sources = list(file.sources)
    kept = filter_layers(list(zip(file.param.layer, sources, strict=True)), net.param.state)
    del param.layer[:]
    param.layer.extend(layer for layer, _ in kept)
    for layer in param.layer:
        del layer.include[:], layer.exclude[:]
    return param


def _say(merged: Merged, before: int, after: int) -> None:
    gone = sum(map(len, merged.folded.values()))
    if not (gone or merged.left):
        echo("the net has no BatchNorm, BN, Scale or Bias layer: written unchanged")
        return
    echo(f"{gone} layers folded into {len(merged.folded)}; {len(merged.left)} left where they are")
    for root, names in merged.folded.items():
        echo(f"  {root} <- {', '.join(names)}")
    for name, reason in merged.left.items():
        echo(f"left: {name}: {reason}")
    for name, note in merged.notes.items():
        warn(f"{name}: {note}")


def _check(before: Net, after: Net, options: Options) -> None:
    """Run both nets on one input and compare the outputs. Raises Error beyond the tolerance."""
    options.reshape(before)
    for note in fill_inputs(before, {}, seed=options.seed):
        echo(note)
    for name in before.inputs:
        put_array(after, name, before.blobs[name].read_data())
    ours = run_of(before, before.outputs)
    found = differences(ours, run_of(after, before.outputs).blobs)
    print_agreement("the merged net beside the first", found, ("the first", "the merged"))
