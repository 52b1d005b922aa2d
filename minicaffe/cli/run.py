"""minicaffe run"""

from __future__ import annotations

import click

from minicaffe.detection.inputs import fill_inputs, start_backward
from minicaffe.formats.arrays import distinct, write_npz
from minicaffe.net import Keep, Net
from minicaffe.tracing.times import Times

from .common import (
    allow_modules,
    check_target,
    device_options,
    load_net,
    phase_of,
    phase_option,
    print_table,
    say_loudly,
    seed_option,
    shape_text,
    state_options,
    statistics_text,
)
from .inputs import factor_option, input_option, parse_inputs, reshape_inputs, shape_option, with_mean
from .terminal import echo


@click.command()
@click.argument("net")
@click.argument("weights", nargs=-1)
@input_option
@shape_option
@click.option("--mean", metavar="B,G,R", help="Subtracted from images.  [default: 102.9801,115.9465,122.7717]")
@factor_option
@click.option(
    "--backward",
    is_flag=True,
    help="Run backward too: from the losses; in a net without any, from ones at its outputs.",
)
@click.option("--out", metavar="FILE.npz", help="Write the outputs (and with --backward every weight's diff).")
@device_options
@phase_option
@seed_option
@state_options
def command(
    net: str,
    weights: tuple[str, ...],
    inputs: tuple[str, ...],
    shapes: tuple[str, ...],
    mean: str | None,
    scale_factor: float,
    backward: bool,
    out: str | None,
    phase: str,
    seed: int,
    level: int,
    stages: tuple[str, ...],
    allow_module: tuple[str, ...],
) -> None:
    """Run the net in the prototxt NET forward once, with WEIGHTS (.caffemodel, .h5); print layers, shapes and times.

    Example:  minicaffe run deploy.prototxt net.caffemodel --input data=cat.jpg --out scores.npz
    """
    allow_modules(allow_module)
    check_target("--out", out, [net, *weights, *parse_inputs(inputs).values()])
    keep: Keep = "all" if backward else "outputs"
    loaded = load_net(net, weights, phase=phase_of(phase), seed=seed, level=level, stages=stages, keep=keep)
    reshape_inputs(loaded, shapes)
    files = parse_inputs(inputs)
    for note in fill_inputs(loaded, files, seed=seed, settings=with_mean(loaded.settings, mean), factor=scale_factor):
        say_loudly(note)
    times, statistics = Times(loaded), _first_tops(loaded)
    loaded.forward()
    if backward:
        start_backward(loaded)
        loaded.backward()
    _print(loaded, times, statistics, backward)
    if out:
        _write(loaded, out, backward)
        echo(f"written: {out}")


def _first_tops(net: Net) -> dict[int, str]:
    """What the next forward gives, by layer: the statistics of its first top, which may not be there afterwards."""
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
        arrays += [(f"{name}.{i}.diff", blob.diff) for name, blobs in net.params.items() for i, blob in enumerate(blobs)]
        arrays += [(f"{name}.diff", net.blobs[name].diff) for name in net.inputs]
    names = distinct(name for name, _ in arrays)
    write_npz(out, dict(zip(names, (array for _, array in arrays), strict=True)))
