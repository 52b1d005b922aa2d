"""The update rules of Caffe's six solvers, and what comes before them: clipping and weight decay.

g: the gradient (clipped, divided by iter_size, with its decay); h, m, u, v: history; rate: lr * lr_mult; w -= step.

    SGD       h = momentum h + rate g                         step = h
    Nesterov  h' = momentum h + rate g                        step = (1 + momentum) h' - momentum h
    AdaGrad   h += g^2                                        step = rate g / (sqrt(h) + delta)
    RMSProp   h = rms_decay h + (1 - rms_decay) g^2           step = rate g / (sqrt(h) + delta)
    AdaDelta  h = momentum h + (1 - momentum) g^2;  s = g sqrt((u + delta) / (h + delta))
              u = momentum u + (1 - momentum) s^2             step = rate s
    Adam      m = momentum m + (1 - momentum) g;  v = momentum2 v + (1 - momentum2) g^2
                                                              step = rate correction m / (sqrt(v) + delta)
              correction = sqrt(1 - momentum2^t) / (1 - momentum^t) at the t-th update

Each rule turns diff from g into the step, and updates its histories, in place; all arrays have one shape.
Source: Caffe's solvers/*_solver.cpp.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PART = 1 << 16
"""Numbers of a blob that are updated at a time: several passes over them stay in cache."""


def clip(diffs: list[Array], limit: float) -> float:
    """Scale gradients in place so that their common L2 norm is at most limit; returns the norm they had."""
    norm = math.sqrt(sum(float(np.vdot(diff, diff)) for diff in diffs))
    if norm > limit:
        for diff in diffs:
            np.multiply(diff, limit / norm, out=diff)
    return norm


def regularise(data: Array, diff: Array, decay: float, kind: str) -> None:
    """Add the weight decay's gradient to diff: decay * data (L2), or decay * sign(data) (L1)."""
    if decay:
        diff += decay * (data if kind == "L2" else np.sign(data))


def sgd(diff: Array, history: Array, rate: float, momentum: float) -> None:
    """h = momentum h + rate g; step = h."""
    history *= momentum
    diff *= rate
    history += diff
    diff[...] = history


def nesterov(diff: Array, history: Array, rate: float, momentum: float) -> None:
    """h' = momentum h + rate g; step = (1 + momentum) h' - momentum h."""
    before = momentum * history
    diff *= rate
    np.add(before, diff, out=history)
    np.multiply(history, 1 + momentum, out=diff)
    diff -= before


def adagrad(diff: Array, history: Array, rate: float, delta: float) -> None:
    """h += g^2; step = rate g / (sqrt(h) + delta)."""
    history += diff * diff
    _divide_by_root(diff, history, rate, delta)


def rmsprop(diff: Array, history: Array, rate: float, rms_decay: float, delta: float) -> None:
    """h = rms_decay h + (1 - rms_decay) g^2; step = rate g / (sqrt(h) + delta)."""
    _average(history, diff * diff, rms_decay)
    _divide_by_root(diff, history, rate, delta)


def adadelta(diff: Array, history: Array, updates: Array, rate: float, momentum: float, delta: float) -> None:
    """h and u average g^2 and s^2; s = g sqrt((u + delta) / (h + delta)); step = rate s."""
    _average(history, diff * diff, momentum)
    diff *= np.sqrt((updates + delta) / (history + delta))
    _average(updates, diff * diff, momentum)
    diff *= rate


def adam(  # noqa: PLR0917 - the symbols of its formula
    diff: Array, mean: Array, square: Array, rate: float, momentum: float, momentum2: float, delta: float
) -> None:
    """m and v average g and g^2; step = rate m / (sqrt(v) + delta). rate has the correction in it (adam_correction)."""
    _average(mean, diff, momentum)
    _average(square, diff * diff, momentum2)
    diff[...] = mean
    _divide_by_root(diff, square, rate, delta)


def adam_correction(update: int, momentum: float, momentum2: float) -> float:
    """What Adam's rate is multiplied by at an update, counted from 1: its averages begin at 0."""
    return math.sqrt(1 - momentum2**update) / (1 - momentum**update)


def _average(average: Array, value: Array, keep: float) -> None:
    """average = keep * average + (1 - keep) * value, in place."""
    average *= keep
    average += (1 - keep) * value


def _divide_by_root(diff: Array, square: Array, rate: float, delta: float) -> None:
    """diff *= rate / (sqrt(square) + delta), in place."""
    root = np.sqrt(square)
    root += delta
    diff /= root
    diff *= rate
