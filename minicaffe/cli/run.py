"""run, test and time: any net, once or many times. Source: test() and time() in Caffe's tools/caffe.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import click
import numpy as np

from minicaffe.cuda.device import current
from minicaffe.detection.inputs import fill_inputs, start_backward
from minicaffe.formats.arrays import distinct, write_npz
from minicaffe.kernels import expect
from minicaffe.mode import TRAIN, Phase, gpu_mode
from minicaffe.net import Net
from minicaffe.parameters import weight_layers
from minicaffe.tracing.summary import Times
from minicaffe.training.solver import loss_parts
from minicaffe.training.solver_log import scored

from .common import ARRAYS, check_target, one_of, print_table, shape_text, statistics_text
from .groups import (
    DeviceOptions,
    NetOptions,
    backward_option,
    iterations_option,
    model_option,
    phase_option,
    random_weights_option,
    weights_option,
)
from .image_options import InputOptions
from .log import logging_to, to_stderr, tool
from .options import argument, option, with_options
from .terminal import echo, warn


@dataclass(frozen=True, kw_only=True)
class RunOptions(InputOptions, NetOptions, DeviceOptions):
    net: str = argument()
    weights: tuple[str, ...] = argument()
    backward: bool = backward_option()
    out: str | None = option(
        "-o --out", "Write the outputs; with --backward also the gradients of weights and inputs.", metavar="FILE.npz"
    )
    random_weights: bool = random_weights_option()


@with_options(RunOptions)
def run_command(options: RunOptions) -> None:
    """Run the net in the prototxt NET forward once with WEIGHTS; print layers, shapes and times.

    WEIGHTS are files of any format: .caffemodel, .h5, .safetensors or .npz.

    Example:  minicaffe run deploy.prototxt net.caffemodel --input data=cat.jpg --out scores.npz
    """
    options.use_device()
    check_target("--out", options.out, [options.net, *options.weights, *options.read_files()], writes=ARRAYS)
    net = options.load(options.net, options.weights, keep="all" if options.backward else "outputs")
    for note in options.fill(net, options.seed):
        warn(note)
    times, statistics = Times(net), _first_tops(net)
    net.forward()
    if options.backward:
        start_backward(net)
        net.backward()
    _print_run(net, times, statistics, options.backward)
    if options.out:
        _write_outputs(net, options.out, options.backward)
        echo(f"written: {options.out}")


def _first_tops(net: Net) -> dict[int, str]:
    """Return a dictionary that the next forward fills with the statistics of each layer's first top, by layer number.

    The tops themselves may be freed after that.
    """
    statistics: dict[int, str] = {}

    def note(i: int) -> None:
        if tops := net.nodes[i].tops:
            statistics[i] = statistics_text(tops[0].data)

    net.after_forward(note)
    return statistics


def _print_run(net: Net, times: Times, statistics: dict[int, str], backward: bool) -> None:
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


def _write_outputs(net: Net, out: str, backward: bool) -> None:
    arrays = [(name, net.blobs[name].data) for name in net.outputs]
    if backward:
        layers = weight_layers(net.layers).items()
        arrays += [(f"{name}.{i}.diff", blob.diff) for name, layer in layers for i, blob in enumerate(layer.blobs)]
        arrays += [(f"{name}.diff", net.blobs[name].diff) for name in net.inputs]
    names = distinct(name for name, _ in arrays)
    write_npz(out, dict(zip(names, (array for _, array in arrays), strict=True)))


LOGGED = 100
"""Outputs of more numbers are not logged."""


@dataclass(frozen=True, kw_only=True)
class TestOptions(InputOptions, NetOptions, DeviceOptions):
    net: str | None = argument(required=False)
    weights: tuple[str, ...] = argument()
    model: str | None = model_option()
    more_weights: tuple[str, ...] = weights_option()
    needs_data: bool = True
    iterations: int = iterations_option("Number of forward passes to average.")


@with_options(TestOptions)
def test_command(options: TestOptions) -> None:
    """Run the net in the prototxt NET with WEIGHTS forward many times; print the mean of each output, and the loss.

    The caffe tool's log lines go to stderr. They show each batch's outputs of at most 100 numbers.

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
    _print_means(loaded, means, loss, iterations)


def average(net: Net, iterations: int) -> tuple[dict[str, np.ndarray], float]:
    """Return the mean over the forward passes of each output (since its shape last changed), and of the loss."""
    expect(iterations)
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


def _print_means(net: Net, means: dict[str, np.ndarray], loss: float, iterations: int) -> None:
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
        echo(f"loss: {loss:.6g} over {iterations} iteration{'s' * (iterations != 1)}")
    else:
        echo(f"means over {iterations} iteration{'s' * (iterations != 1)}; the net has no loss")


@dataclass(frozen=True, kw_only=True)
class TimeOptions(NetOptions, DeviceOptions):
    net: str | None = argument(required=False)
    weights: tuple[str, ...] = argument()
    model: str | None = model_option()
    more_weights: tuple[str, ...] = weights_option()
    iterations: int = iterations_option("Number of forward and backward passes to average.")
    phase: Phase = phase_option(TRAIN)
    random_weights: bool = random_weights_option()


@with_options(TimeOptions)
def time_command(options: TimeOptions) -> None:
    """Time each layer of the prototxt NET forward and backward, with WEIGHTS if given.

    A table goes to stdout, and the caffe tool's log lines go to stderr. One pass runs before the clock starts. Inputs are
    generated. In a net without a loss, backward starts from ones at the outputs and computes every gradient.

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
        _log_times(loaded, times, seconds, iterations)
    _print_times(loaded, times, iterations)


def measure(net: Net, iterations: int) -> tuple[Times, float]:
    """Return the times of each layer in the iterations, after an uncounted pass, and the total seconds."""
    tool.info("Performing Forward")
    net.forward()
    tool.info("Initial loss: %g", sum(loss_parts(net).values()))
    tool.info("Performing Backward")
    start_backward(net)
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


def _log_times(net: Net, times: Times, seconds: float, iterations: int) -> None:
    tool.info("Average time per layer: ")
    for layer, forward, backward in zip(net.layers, times.forward, times.backward, strict=True):
        tool.info("%10s\tforward: %g ms.", layer.name, forward / iterations)
        tool.info("%10s\tbackward: %g ms.", layer.name, backward / iterations)
    tool.info("Average Forward pass: %g ms.", sum(times.forward) / iterations)
    tool.info("Average Backward pass: %g ms.", sum(times.backward) / iterations)
    tool.info("Average Forward-Backward: %g ms.", seconds * 1e3 / iterations)
    tool.info("Total Time: %g ms.", seconds * 1e3)
    tool.info("*** Benchmark ends ***")


def _print_times(net: Net, times: Times, iterations: int) -> None:
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
    means = f"means of {iterations} iterations" if iterations > 1 else "1 iteration"
    print_table(f"{net.name or net.file} ({net.phase}), {means}", columns, rows, right=columns[2:])
    forward, backward = sum(times.forward) / iterations, sum(times.backward) / iterations
    echo(f"{len(net.layers)} layers, forward {forward:.2f} ms, backward {backward:.2f} ms")
    if gpu_mode():
        moved = current().transfers
        echo(
            f"on {current().name}; copied an iteration: {moved.to_device // iterations} bytes to the device, "
            f"{moved.to_host // iterations} bytes to the host"
        )
