"""minicaffe merge-bn"""

from __future__ import annotations

import click

from minicaffe.detection.inputs import fill_inputs, put_array
from minicaffe.errors import WeightsError
from minicaffe.files import replacing
from minicaffe.filter import filter_layers
from minicaffe.formats.prototxt import NetFile, read_net, to_text
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.porting.agreement import differences, run_of
from minicaffe.porting.merge_bn import Merged, merge_batch_norm, put_weights, weights_of
from minicaffe.proto import caffe_pb2

from .agreement import say_agreement
from .common import allow_modules, check_apart, check_target, say_loudly, seed_option, state_options
from .inputs import reshape_inputs
from .terminal import echo


@click.command()
@click.argument("net")
@click.argument("weights")
@click.option("--out-net", required=True, metavar="FILE", help="The prototxt to write.")
@click.option("--out-weights", required=True, metavar="FILE", help="The weights to write (HDF5 when the name ends in .h5).")
@click.option(
    "--check",
    is_flag=True,
    help="Run both first, print how far outputs are apart; beyond 1e-4 write nothing, exit with 1.",
)
@click.option("--shape", "shapes", multiple=True, metavar="BLOB=N,C,H,W", help="Another shape for --check's input.")
@seed_option
@state_options
def command(
    net: str,
    weights: str,
    out_net: str,
    out_weights: str,
    check: bool,
    shapes: tuple[str, ...],
    seed: int,
    level: int,
    stages: tuple[str, ...],
    allow_module: tuple[str, ...],
) -> None:
    """Fold the BatchNorm, Scale and Bias layers of the prototxt NET and its WEIGHTS into the convolutions before them.

    The files written hold the TEST net without those layers, in Caffe's own format: same outputs, fewer layers.

    Example:  minicaffe merge-bn test.prototxt net.caffemodel --out-net merged.prototxt --out-weights merged.caffemodel
    """
    allow_modules(allow_module)
    check_target("--out-net", out_net, [net, weights])
    check_target("--out-weights", out_weights, [net, weights])
    check_apart("--out-net", out_net, "--out-weights", out_weights)
    file = read_net(net)
    before = Net(file, TEST, level, list(stages))
    report = before.copy_from(weights)
    if not report.loaded:
        raise WeightsError(f"{weights}: none of its layers has the name of a layer with weights in {net}: of another net?")
    if report.missing:
        raise WeightsError(f"{weights}: it has no weights for {', '.join(report.missing)}: nothing true can be folded")
    merged = merge_batch_norm(_test_net(file, before), weights_of(before))
    after = Net(merged.param, TEST, level, list(stages))
    put_weights(after, merged.weights)
    with replacing(out_net) as net_draft, replacing(out_weights) as weights_draft:
        net_draft.write_text(to_text(merged.param), encoding="utf-8")
        after.save(weights_draft)
        _say(merged, len(before.param.layer), len(after.param.layer))
        if check:
            _check(before, Net(net_draft, TEST, weights=weights_draft), shapes, seed)
    echo(f"written: {out_net}, {out_weights}")


def _test_net(file: NetFile, net: Net) -> caffe_pb2.NetParameter:
    """The layers of the file that the net consists of, with no Split layers and no rules: they are all to stay."""
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
        echo("the net has no BatchNorm, Scale or Bias layer: written as it is")
        return
    echo(f"{gone} layers folded into {len(merged.folded)}; {len(merged.left)} left where they are")
    for root, names in merged.folded.items():
        echo(f"  {root} <- {', '.join(names)}")
    for name, reason in merged.left.items():
        echo(f"left: {name}: {reason}")
    for name, note in merged.notes.items():
        say_loudly(f"{name}: {note}")


def _check(before: Net, after: Net, shapes: tuple[str, ...], seed: int) -> None:
    """Both nets on one input: how far each output is apart. Raises Error beyond the tolerance."""
    reshape_inputs(before, shapes)
    for note in fill_inputs(before, {}, seed=seed):
        echo(note)
    for name in before.inputs:
        put_array(after, name, before.blobs[name].read_data())
    ours = run_of(before, before.outputs)
    found = differences(ours, run_of(after, before.outputs).blobs)
    say_agreement("the merged net beside the first", found, ("the first", "the merged"))
