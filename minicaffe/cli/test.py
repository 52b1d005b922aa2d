"""minicaffe test"""

from __future__ import annotations

from dataclasses import dataclass

import click
import numpy as np

from minicaffe.net import Net
from minicaffe.training.solver import loss_parts
from minicaffe.training.solver_log import scored

from .common import one_of, warn
from .groups import DeviceOptions, NetOptions, iterations_option, model_option, weights_option
from .image_options import InputOptions
from .log import logging_to, to_stderr, tool
from .options import argument, with_options
from .terminal import echo

LOGGED = 100
"""Outputs of more numbers are not logged."""


@dataclass(frozen=True, kw_only=True)
class Options(InputOptions, NetOptions, DeviceOptions):
    net: str | None = argument(required=False)
    weights: tuple[str, ...] = argument()
    model: str | None = model_option()
    more_weights: tuple[str, ...] = weights_option()
    needs_data: bool = True
    iterations: int = iterations_option("Number of forward passes that are averaged.")


@with_options(Options)
def command(options: Options) -> None:
    """Run the net in NET with WEIGHTS forward many times and print the mean of each output, and the loss.

    The caffe tool's lines go to stderr, with the outputs of each batch (those of up to 100 numbers).

    Example:  minicaffe test train_val.prototxt net.caffemodel --iterations 100

    Example:  minicaffe test -model train_val.prototxt -weights net.caffemodel -iterations 100
    """
    options.use_device()
    path, iterations = one_of(options.net, options.model, "NET", "--model"), options.iterations
    if bool(options.weights) == bool(options.more_weights):
        raise click.UsageError("give WEIGHTS, or --weights FILE" + ", not both" * bool(options.weights))
    loaded = options.load(path, options.weights or options.more_weights)
    for note in options.fill(loaded, options.seed):
        warn(note)
    with logging_to(to_stderr):
        means, loss = average(loaded, iterations)
        tool.info("Loss: %g", loss)
        for name, mean in means.items():
            for value in _logged(mean):
                tool.info("%s", scored(name, float(value), loaded.blob_loss_weights[name]))
    _print(loaded, means, loss, iterations)


def average(net: Net, iterations: int) -> tuple[dict[str, np.ndarray], float]:
    """The mean of each output over many forward passes (since its shape last changed), and of the loss."""
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
            with np.errstate(all="ignore"):
                echo(f"{name}: {values.size} values, min {values.min():.6g}, mean {values.mean():.6g}, max {values.max():.6g}")
    if any(net.blob_loss_weights.values()):
        echo(f"loss: {loss:.6g} over {iterations} iterations")
    else:
        echo(f"means over {iterations} iterations; the net has no loss")
