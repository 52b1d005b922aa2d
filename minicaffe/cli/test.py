"""minicaffe test"""

from __future__ import annotations

import click
import numpy as np

from minicaffe.detection.inputs import fill_inputs
from minicaffe.errors import Error
from minicaffe.net import Net
from minicaffe.training.solver import loss_parts
from minicaffe.training.solver_log import scored

from .common import (
    allow_modules,
    device_options,
    load_net,
    one_of,
    phase_of,
    phase_option,
    say_loudly,
    seed_option,
    state_options,
)
from .inputs import input_option, parse_inputs
from .log import logging_to, to_stderr, tool
from .terminal import echo

LOGGED = 100
"""Outputs of more numbers than this get no line for each."""


@click.command()
@click.argument("net", required=False)
@click.argument("weights", nargs=-1)
@click.option("--model", metavar="FILE", help="The net, in place of the argument.")
@click.option("--weights", "more_weights", multiple=True, metavar="FILE,...", help="The weights, in place of the arguments.")
@click.option("--iterations", default=50, show_default=True, help="Forward passes that are averaged.")
@input_option
@device_options
@phase_option
@seed_option
@state_options
def command(
    net: str | None,
    weights: tuple[str, ...],
    model: str | None,
    more_weights: tuple[str, ...],
    iterations: int,
    inputs: tuple[str, ...],
    phase: str,
    seed: int,
    level: int,
    stages: tuple[str, ...],
    allow_module: tuple[str, ...],
) -> None:
    """Run the net in NET with WEIGHTS forward many times and print the mean of each output, and the loss.

    stderr gets the caffe tool's lines, each batch's outputs (of up to 100 numbers) among them.

    Example:  minicaffe test train_val.prototxt net.caffemodel --iterations 100

    Example:  minicaffe test -model train_val.prototxt -weights net.caffemodel -iterations 100
    """
    path = one_of(net, model, "NET", "--model")
    if bool(weights) == bool(more_weights):
        raise click.UsageError("give WEIGHTS, or --weights FILE" + ", not both" * bool(weights))
    allow_modules(allow_module)
    if iterations < 1:
        raise Error(f"--iterations must be at least 1, got {iterations}")
    loaded = load_net(path, weights or more_weights, phase=phase_of(phase), seed=seed, level=level, stages=stages)
    for note in fill_inputs(loaded, parse_inputs(inputs), seed=seed):
        say_loudly(note)
    with logging_to(to_stderr):
        means, loss = average(loaded, iterations)
        tool.info("Loss: %g", loss)
        for name, mean in means.items():
            for value in _logged(mean):
                tool.info("%s", scored(name, float(value), loaded.blob_loss_weights[name]))
    _print(loaded, means, loss, iterations)


def average(net: Net, iterations: int) -> tuple[dict[str, np.ndarray], float]:
    """The mean of each output over many forward passes (the last one's, where its shape changes), and of the loss."""
    tool.info("Running for %d iterations.", iterations)
    totals = {name: np.zeros(net.blobs[name].shape) for name in net.outputs}
    loss = 0.0
    for i in range(iterations):
        for name, array in net.forward().items():
            for value in _logged(array):
                tool.info("Batch %d, %s = %g", i, name, value)
            totals[name] = totals[name] + array if totals[name].shape == array.shape else array.astype(np.float64)
        loss += sum(loss_parts(net).values())
    return {name: total / iterations for name, total in totals.items()}, loss / iterations


def _logged(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1) if array.size <= LOGGED else array.reshape(-1)[:0]


def _print(net: Net, means: dict[str, np.ndarray], loss: float, iterations: int) -> None:
    for name, mean in means.items():
        values = mean.reshape(-1)
        if values.size <= 20:
            for i, value in enumerate(values):
                label = f"{name}[{i}]" if values.size > 1 else name
                echo(scored(label, float(value), net.blob_loss_weights[name]))
        else:
            echo(f"{name}: {values.size} values, min {values.min():.6g}, mean {values.mean():.6g}, max {values.max():.6g}")
    if any(net.blob_loss_weights.values()):
        echo(f"loss: {loss:.6g} over {iterations} iterations")
    else:
        echo(f"means over {iterations} iterations; the net has no loss")
