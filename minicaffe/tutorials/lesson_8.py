"""Questions of lesson 8: the update, and the rate over time. And the training of a detector's last layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.formats.prototxt import NetFile
from minicaffe.proto import caffe_pb2
from minicaffe.training.lr_policy import learning_rate
from minicaffe.training.updates import sgd

from .checks import question

Array = NDArray[np.floating[Any]]
Step = tuple[Array, Array]


def _updates(rng: np.random.Generator) -> list[tuple[Array, Array, Array, float, float, float]]:
    """Return weights, gradients and histories of a first and of later updates, with their rate, momentum and decay."""
    cases = []
    for k, (rate, momentum, decay) in enumerate([(0.05, 0.9, 0.01), (0.1, 0.5, 0.0005), (0.01, 0.99, 0.1)]):
        weight, gradient, history = rng.normal(0, 1, (3, 4, 2 + k))
        cases.append((weight, gradient, history * (k > 0), rate, momentum, decay))
    return cases


@question(_updates)
def momentum_step(weight: Array, gradient: Array, history: Array, rate: float, momentum: float, decay: float) -> Step:
    """Return the new weight and the new history."""
    step, history = gradient + decay * weight, history.copy()
    sgd(step, history, rate, momentum)
    return weight - step, history


@momentum_step.slip("The update goes against the gradient: subtract the history from the weight.")
def uphill(weight: Array, gradient: Array, history: Array, rate: float, momentum: float, decay: float) -> Step:
    history = momentum * history + rate * (gradient + decay * weight)
    return weight + history, history


@momentum_step.slip("The history already holds the rate: subtract it as it is.")
def rate_twice(weight: Array, gradient: Array, history: Array, rate: float, momentum: float, decay: float) -> Step:
    history = momentum * history + gradient + decay * weight
    return weight - rate * history, history


@momentum_step.slip("The weight decay is part of the gradient: rate * (gradient + decay * weight).")
def without_decay(weight: Array, gradient: Array, history: Array, rate: float, momentum: float, decay: float) -> Step:
    history = momentum * history + rate * gradient
    return weight - history, history


@momentum_step.slip("Caffe's history is no mean: the new gradient has the factor rate, not rate * (1 - momentum).")
def a_mean(weight: Array, gradient: Array, history: Array, rate: float, momentum: float, decay: float) -> Step:
    history = momentum * history + rate * (1 - momentum) * (gradient + decay * weight)
    return weight - history, history


def _iterations(rng: np.random.Generator) -> list[tuple[int, float, float, int, int, float]]:
    given = [(0, 0.1, 2.0, 100, 10, 0.01), (5, 0.1, 2.0, 100, 10, 0.01), (10, 0.1, 2.0, 100, 10, 0.01)]
    given += [(99, 0.1, 2.0, 100, 10, 0.01), (60, 0.05, 1.0, 80, 0, 0.05)]
    return [*given, *((int(k), 0.02, 1.5, 70, 12, 0.002) for k in rng.integers(0, 70, 4))]


@question(_iterations)
def poly_rate(iteration: int, base: float, power: float, max_iter: int, warmup: int, start: float) -> float:
    """Return the rate of an iteration with lr_policy "poly" and a warm-up."""
    param = caffe_pb2.SolverParameter(lr_policy="poly", base_lr=base, power=power, warmup_iter=warmup, warmup_start_lr=start)
    return float(learning_rate(param, iteration, max_iter, 0))


def _poly(iteration: int, base: float, power: float, max_iter: int) -> float:
    return float(base * (1 - iteration / max_iter) ** power)


@poly_rate.slip("Up to `warmup` the rate rises in a straight line from `start` to `base`.")
def without_warmup(iteration: int, base: float, power: float, max_iter: int, warmup: int, start: float) -> float:
    return _poly(iteration, base, power, max_iter)


@poly_rate.slip("The iteration at which the warm-up ends is not part of it: it rises while iteration < warmup.")
def one_longer(iteration: int, base: float, power: float, max_iter: int, warmup: int, start: float) -> float:
    if warmup and iteration <= warmup:
        return start + (base - start) * iteration / warmup
    return _poly(iteration, base, power, max_iter)


@poly_rate.slip("The warm-up rises from `start`, not from 0.")
def from_zero(iteration: int, base: float, power: float, max_iter: int, warmup: int, start: float) -> float:
    return base * iteration / warmup if iteration < warmup else _poly(iteration, base, power, max_iter)


@poly_rate.slip("After the warm-up the iterations are counted from 0 all the same: (1 - iteration / max_iter) ^ power.")
def counted_anew(iteration: int, base: float, power: float, max_iter: int, warmup: int, start: float) -> float:
    if iteration < warmup:
        return start + (base - start) * iteration / warmup
    return _poly(iteration - warmup, base, power, max_iter - warmup)


def freeze(net: NetFile, blobs: Mapping[str, int]) -> None:
    """Give every learnable blob of some layers the rate 0. blobs: the number of blobs by the layer's name."""
    for layer in net.param.layer:
        while len(layer.param) < blobs.get(layer.name, 0):
            layer.param.add()
        for param in layer.param if layer.name in blobs else ():
            param.lr_mult = param.decay_mult = 0
