"""minicaffe time. Source: time() in Caffe's tools/caffe.cpp."""

from __future__ import annotations

from time import perf_counter

import click

from minicaffe.cuda.device import current
from minicaffe.detection.inputs import fill_inputs
from minicaffe.errors import Error
from minicaffe.mode import gpu_mode
from minicaffe.net import Net
from minicaffe.tracing.times import Times
from minicaffe.training.solver import loss_parts

from .common import (
    allow_modules,
    device_options,
    load_net,
    one_of,
    phase_of,
    phase_option_with,
    print_table,
    say_loudly,
    seed_option,
    state_options,
)
from .log import logging_to, to_stderr, tool
from .terminal import echo


@click.command()
@click.argument("net", required=False)
@click.option("--model", metavar="FILE", help="The net, in place of the argument.")
@click.option("--weights", multiple=True, metavar="FILE,...", help="Weights; without any, layers start from their fillers.")
@click.option("--iterations", default=50, show_default=True, help="Forward and backward passes that are averaged.")
@device_options
@phase_option_with("TRAIN")
@seed_option
@state_options
def command(
    net: str | None,
    model: str | None,
    weights: tuple[str, ...],
    iterations: int,
    phase: str,
    seed: int,
    level: int,
    stages: tuple[str, ...],
    allow_module: tuple[str, ...],
) -> None:
    """Time each layer of NET forward and backward: the caffe tool's lines on stderr, a table on stdout.

    One pass runs before the clock starts. Inputs are made up. In a net without a loss, backward starts from ones at the
    outputs and computes every gradient.

    Example:  minicaffe time deploy.prototxt --phase TEST --iterations 10

    Example:  minicaffe time -model train_val.prototxt -iterations 10
    """
    path = one_of(net, model, "NET", "--model")
    allow_modules(allow_module)
    if iterations < 1:
        raise Error(f"--iterations must be at least 1, got {iterations}")
    loaded = load_net(path, weights, phase=phase_of(phase), seed=seed, level=level, stages=stages)
    for note in fill_inputs(loaded, {}, seed=seed):
        say_loudly(note)
    with logging_to(to_stderr):
        times, seconds = measure(loaded, iterations)
        _log(loaded, times, seconds, iterations)
    _print(loaded, times, iterations)


def measure(net: Net, iterations: int) -> tuple[Times, float]:
    """Each layer's milliseconds over all iterations, after a pass that is not counted; and the seconds of all of it."""
    tool.info("Performing Forward")
    net.forward()
    tool.info("Initial loss: %g", sum(loss_parts(net).values()))
    tool.info("Performing Backward")
    if not any(net.blob_loss_weights.values()):
        net.force_backward()
        for name in net.outputs:
            net.blobs[name].diff[...] = 1
    net.backward()
    tool.info("*** Benchmark begins ***")
    tool.info("Testing for %d iterations.", iterations)
    times, start = Times(net), perf_counter()
    if gpu_mode():
        current().transfers.reset()
    for i in range(iterations):
        before = perf_counter()
        net.forward_backward()
        tool.info("Iteration: %d forward-backward time: %g ms.", i + 1, (perf_counter() - before) * 1e3)
    return times, perf_counter() - start


def _log(net: Net, times: Times, seconds: float, iterations: int) -> None:
    tool.info("Average time per layer: ")
    for layer, forward, backward in zip(net.layers, times.forward, times.backward, strict=True):
        tool.info("%10s\tforward: %g ms.", layer.name, forward / iterations)
        tool.info("%10s\tbackward: %g ms.", layer.name, backward / iterations)
    tool.info("Average Forward pass: %g ms.", sum(times.forward) / iterations)
    tool.info("Average Backward pass: %g ms.", sum(times.backward) / iterations)
    tool.info("Average Forward-Backward: %g ms.", seconds * 1e3 / iterations)
    tool.info("Total Time: %g ms.", seconds * 1e3)
    tool.info("*** Benchmark ends ***")


def _print(net: Net, times: Times, iterations: int) -> None:
    total = sum(times.forward) + sum(times.backward) or 1
    rows = [
        [
            layer.name,
            layer.type,
            f"{forward / iterations:.3f}",
            f"{backward / iterations:.3f}",
            f"{(forward + backward) / total:.1%}",
        ]
        for layer, forward, backward in zip(net.layers, times.forward, times.backward, strict=True)
    ]
    columns = ["layer", "type", "forward ms", "backward ms", "share"]
    print_table(f"{net.name or net.file} ({net.phase}), means of {iterations} iterations", columns, rows, right=columns[2:])
    forward, backward = sum(times.forward) / iterations, sum(times.backward) / iterations
    echo(f"{len(net.layers)} layers, forward {forward:.2f} ms, backward {backward:.2f} ms")
    if gpu_mode():
        moved = current().transfers
        echo(
            f"on {current().name}; copied an iteration: {moved.to_device // iterations} bytes to the device, "
            f"{moved.to_host // iterations} bytes to the host"
        )
