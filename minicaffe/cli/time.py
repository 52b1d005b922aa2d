"""minicaffe time. Source: time() in Caffe's tools/caffe.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from minicaffe.cuda.device import current
from minicaffe.detection.inputs import fill_inputs
from minicaffe.mode import TRAIN, Phase, gpu_mode
from minicaffe.net import Net
from minicaffe.tracing.times import Times
from minicaffe.training.solver import loss_parts

from .common import one_of, print_table, warn
from .groups import (
    DeviceOptions,
    NetOptions,
    iterations_option,
    model_option,
    phase_option,
    random_weights_option,
    weights_option,
)
from .log import logging_to, to_stderr, tool
from .options import argument, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(NetOptions, DeviceOptions):
    net: str | None = argument(required=False)
    weights: tuple[str, ...] = argument()
    model: str | None = model_option()
    more_weights: tuple[str, ...] = weights_option()
    iterations: int = iterations_option("Number of forward and backward passes that are averaged.")
    phase: Phase = phase_option(TRAIN)
    random_weights: bool = random_weights_option()


@with_options(Options)
def command(options: Options) -> None:
    """Time each layer of NET, with WEIGHTS if given, forward and backward: the caffe tool's lines on stderr, a table on stdout.

    One pass runs before the clock starts. Inputs are generated. In a net without a loss, backward starts from ones at the
    outputs and computes every gradient.

    Example:  minicaffe time deploy.prototxt --phase TEST --iterations 10

    Example:  minicaffe time -model train_val.prototxt -iterations 10
    """
    options.use_device()
    path, iterations = one_of(options.net, options.model, "NET", "--model"), options.iterations
    loaded = options.load(path, (*options.weights, *options.more_weights))
    for note in fill_inputs(loaded, {}, seed=options.seed):
        warn(note)
    with logging_to(to_stderr):
        times, seconds = measure(loaded, iterations)
        _log(loaded, times, seconds, iterations)
    _print(loaded, times, iterations)


def measure(net: Net, iterations: int) -> tuple[Times, float]:
    """Each layer's milliseconds over all iterations after an uncounted pass, and the total seconds."""
    tool.info("Performing Forward")
    net.forward()
    tool.info("Initial loss: %g", sum(loss_parts(net).values()))
    tool.info("Performing Backward")
    if not any(net.blob_loss_weights.values()):
        net.force_backward()  # without a loss nothing would need a gradient
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
