"""minicaffe run"""

from __future__ import annotations

from dataclasses import dataclass

from minicaffe.detection.inputs import start_backward
from minicaffe.formats.arrays import distinct, write_npz
from minicaffe.net import Net
from minicaffe.parameters import weight_layers
from minicaffe.tracing.times import Times

from .common import check_target, print_table, shape_text, statistics_text, warn
from .groups import DeviceOptions, NetOptions, backward_option, random_weights_option
from .image_options import InputOptions
from .options import argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(InputOptions, NetOptions, DeviceOptions):
    net: str = argument()
    weights: tuple[str, ...] = argument()
    backward: bool = backward_option()
    out: str | None = option("--out", "Write the outputs (with --backward also every weight's diff).", metavar="FILE.npz")
    random_weights: bool = random_weights_option()


@with_options(Options)
def command(options: Options) -> None:
    """Run the net in the prototxt NET forward once with WEIGHTS (of any format); print layers, shapes and times.

    Example:  minicaffe run deploy.prototxt net.caffemodel --input data=cat.jpg --out scores.npz
    """
    options.use_device()
    check_target("--out", options.out, [options.net, *options.weights, *options.read_files()])
    net = options.load(options.net, options.weights, keep="all" if options.backward else "outputs")
    for note in options.fill(net, options.seed):
        warn(note)
    times, statistics = Times(net), _first_tops(net)
    net.forward()
    if options.backward:
        start_backward(net)
        net.backward()
    _print(net, times, statistics, options.backward)
    if options.out:
        _write(net, options.out, options.backward)
        echo(f"written: {options.out}")


def _first_tops(net: Net) -> dict[int, str]:
    """Statistics of each layer's first top in the next forward; the top itself may be freed afterwards."""
    statistics: dict[int, str] = {}

    def note(i: int) -> None:
        if tops := net.nodes[i].tops:
            statistics[i] = statistics_text(tops[0].data)

    net.after_forward(note)
    return statistics


def _print(net: Net, times: Times, statistics: dict[int, str], backward: bool) -> None:
    rows = []
    for i, layer in enumerate(net.layers):
        tops = list(zip(net.top_names[layer.name], net.nodes[i].tops, strict=True))
        row = [
            layer.name,
            layer.type,
            " ".join(f"{name} {shape_text(blob.shape)}" for name, blob in tops),
            statistics.get(i, ""),
            f"{times.forward[i]:.2f}",
        ]
        rows.append([*row, f"{times.backward[i]:.2f}"] if backward else row)
    columns = ["layer", "type", "tops", "min / mean / max", "forward ms"] + ["backward ms"] * backward
    print_table(f"{net.name or net.file} ({net.phase})", columns, rows, right=columns[4:])
    total = f"forward {sum(times.forward):.1f} ms" + f", backward {sum(times.backward):.1f} ms" * backward
    echo(f"{len(net.layers)} layers, {total}")
    for name in net.outputs:
        echo(f"output {name} {shape_text(net.blobs[name].shape)}: {statistics_text(net.blobs[name].data)}")


def _write(net: Net, out: str, backward: bool) -> None:
    arrays = [(name, net.blobs[name].data) for name in net.outputs]
    if backward:
        layers = weight_layers(net.layers).items()
        arrays += [(f"{name}.{i}.diff", blob.diff) for name, layer in layers for i, blob in enumerate(layer.blobs)]
        arrays += [(f"{name}.diff", net.blobs[name].diff) for name in net.inputs]
    names = distinct(name for name, _ in arrays)
    write_npz(out, dict(zip(names, (array for _, array in arrays), strict=True)))
