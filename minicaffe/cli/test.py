"""minicaffe test"""

from __future__ import annotations

import click
import numpy as np

from minicaffe.errors import Error
from minicaffe.inputs import fill_inputs

from .common import allow_modules, load_net, phase_of, phase_option, say_loudly, seed_option, state_options
from .run import parse_inputs


@click.command()
@click.argument("net")
@click.argument("weights", nargs=-1, required=True)
@click.option("--iterations", default=50, show_default=True, help="Forward passes that are averaged.")
@click.option(
    "--input", "inputs", multiple=True, metavar="BLOB=FILE", help="A .npy file or an image for an input blob; may be repeated."
)
@phase_option
@seed_option
@state_options
def command(
    net: str,
    weights: tuple[str, ...],
    iterations: int,
    inputs: tuple[str, ...],
    phase: str,
    seed: int,
    level: int,
    stages: tuple[str, ...],
    allow_module: tuple[str, ...],
) -> None:
    """Run the net in NET with WEIGHTS forward many times and print the mean of each output, and the loss.

    Example:  minicaffe test train_val.prototxt net.caffemodel --iterations 100
    """
    allow_modules(allow_module)
    if iterations < 1:
        raise Error(f"--iterations must be at least 1, got {iterations}")
    loaded = load_net(net, weights, phase=phase_of(phase), seed=seed, level=level, stages=stages)
    for note in fill_inputs(loaded, parse_inputs(inputs), seed=seed):
        say_loudly(note)
    totals = {name: np.zeros(loaded.blobs[name].shape) for name in loaded.outputs}
    for _ in range(iterations):
        for name, array in loaded.forward().items():
            totals[name] = totals[name] + array if totals[name].shape == array.shape else array.astype(np.float64)
    loss = 0.0
    for name, total in totals.items():
        mean = total / iterations
        weight = loaded.blob_loss_weights[name]
        loss += weight * float(mean.sum())
        note = f" (* {weight:g} = {weight * float(mean.sum()):.6g} loss)" if weight else ""
        values = mean.reshape(-1)
        if values.size <= 20:
            for i, value in enumerate(values):
                click.echo(f"{name}{f'[{i}]' if values.size > 1 else ''} = {value:.6g}{note}")
        else:
            click.echo(
                f"{name}: {values.size} values, min {values.min():.6g}, mean {values.mean():.6g}, max {values.max():.6g}"
            )
    if any(loaded.blob_loss_weights[name] for name in totals):
        click.echo(f"loss: {loss:.6g} over {iterations} iterations")
    else:
        click.echo(f"means over {iterations} iterations; the net has no loss")
