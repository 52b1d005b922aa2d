"""Updates of a net's weights on the host or the GPU: clipping, weight decay and the rules of Caffe's six solvers.

g: the gradient (clipped, divided by iter_size, with weight decay); h, m, u, v: history; rate: lr * lr_mult.
Each rule turns diff from g into the step that is subtracted from the weights, and updates its histories, in place; all arrays
have one shape. Source: Caffe's solvers/*_solver.cpp, sgd_solver.cpp (ApplyUpdate).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.cuda.updates import clip_scale, update
from minicaffe.mode import gpu_mode
from minicaffe.threads import Index, each_block

if TYPE_CHECKING:
    from .solver import SGDSolver

Array = NDArray[Any]

PART = 1 << 17
"""The numbers of a blob that are updated at a time, so that they stay in cache over several passes."""


def clip(diffs: list[Array], limit: float) -> float:
    """Scale gradients in place so that their common L2 norm is at most limit; return the norm before."""
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
    """Compute h = momentum h + rate g; step = h."""
    history *= momentum
    diff *= rate
    history += diff
    diff[...] = history


def nesterov(diff: Array, history: Array, rate: float, momentum: float) -> None:
    """Compute h' = momentum h + rate g; step = (1 + momentum) h' - momentum h."""
    before = momentum * history  # small, since apply_update passes one part at a time
    diff *= rate
    np.add(before, diff, out=history)
    np.multiply(history, 1 + momentum, out=diff)
    diff -= before


def adagrad(diff: Array, history: Array, rate: float, delta: float) -> None:
    """Compute h += g^2; step = rate g / (sqrt(h) + delta)."""
    history += diff * diff
    _divide_by_root(diff, history, rate, delta)


def rmsprop(diff: Array, history: Array, rate: float, rms_decay: float, delta: float) -> None:
    """Compute h = rms_decay h + (1 - rms_decay) g^2; step = rate g / (sqrt(h) + delta)."""
    _average(history, diff * diff, rms_decay)
    _divide_by_root(diff, history, rate, delta)


def adadelta(diff: Array, history: Array, updates: Array, rate: float, momentum: float, delta: float) -> None:
    """Compute h = momentum h + (1 - momentum) g^2; s = g sqrt((u + delta) / (h + delta)); step = rate s.

    Then u = momentum u + (1 - momentum) s^2.
    """
    _average(history, diff * diff, momentum)
    diff *= np.sqrt((updates + delta) / (history + delta))
    _average(updates, diff * diff, momentum)
    diff *= rate


def adam(  # noqa: PLR0917 - the symbols of its formula
    diff: Array, mean: Array, square: Array, rate: float, momentum: float, momentum2: float, delta: float
) -> None:
    """Compute m = momentum m + (1 - momentum) g; v = momentum2 v + (1 - momentum2) g^2; step = rate m / (sqrt(v) + delta).

    rate includes adam_correction.
    """
    _average(mean, diff, momentum)
    _average(square, diff * diff, momentum2)
    diff[...] = mean  # both averages include g, so diff is free
    _divide_by_root(diff, square, rate, delta)


def adam_correction(update: int, momentum: float, momentum2: float) -> float:
    """Return the factor on Adam's rate at an update, counted from 1. It corrects averages that begin at 0."""
    return math.sqrt(1 - momentum2**update) / (1 - momentum**update)


def _average(average: Array, value: Array, keep: float) -> None:
    """Compute average = keep * average + (1 - keep) * value, in place."""
    average *= keep
    average += (1 - keep) * value


def _divide_by_root(diff: Array, square: Array, rate: float, delta: float) -> None:
    """Compute diff *= rate / (sqrt(square) + delta), in place."""
    root = np.sqrt(square)
    root += delta  # outside of the root, as in Caffe: Adam's epsilon hat
    diff /= root
    diff *= rate


def apply_update(solver: SGDSolver, rate: float) -> None:
    """Update the weights of the solver's net by its diffs, in GPU mode on the GPU if the rule has a kernel."""
    if gpu_mode() and _has_kernel(type(solver)):
        _on_gpu(solver, rate)
    else:
        _on_host(solver, rate)


def _has_kernel(kind: type[SGDSolver]) -> bool:
    """Return whether the class that defines the rule also defines its kernel; a user's class may define only the rule."""
    # The nearest class of the MRO decides.
    rule = next(base for base in kind.__mro__ if {"gradient_to_step", "kernel"} & vars(base).keys())
    return "kernel" in vars(rule)


def _on_host(solver: SGDSolver, rate: float) -> None:
    param = solver.param
    if param.clip_gradients >= 0:
        # Before the division by iter_size, as in Caffe: the limit is for the sum.
        clip([blob.diff for blob in solver.net.learnable_params], param.clip_gradients)
    for blob, histories, local_rate, decay in _blobs(solver, rate):
        arrays = [array.reshape(-1) for array in (blob.data, blob.diff, *(each.data for each in histories))]
        each_block((blob.count,), partial(_step, solver, arrays, local_rate, decay), PART)


def _step(solver: SGDSolver, arrays: Sequence[NDArray[Any]], rate: float, decay: float, part: Index) -> None:
    """Update a part of one blob's data; arrays: data, diff and histories, flat."""
    param, (data, diff, *history) = solver.param, (array[part] for array in arrays)
    if param.iter_size > 1:
        np.divide(diff, param.iter_size, out=diff)
    regularise(data, diff, decay, param.regularization_type)
    solver.gradient_to_step(diff, history, rate)
    np.subtract(data, diff, out=data)


def _on_gpu(solver: SGDSolver, rate: float) -> None:
    param, blobs = solver.param, solver.net.learnable_params
    with solver.net.running():  # on the net's stream, after its backward
        scale = clip_scale(blobs, param.clip_gradients) if param.clip_gradients >= 0 and blobs else 0
        for blob, histories, local_rate, decay in _blobs(solver, rate):
            rule, l1 = solver.kernel(local_rate), param.regularization_type == "L1"
            update(blob, histories, rule, scale=scale, passes=param.iter_size, decay=decay, l1=l1)


def _blobs(solver: SGDSolver, rate: float) -> Iterator[tuple[Blob, list[Blob], float, float]]:
    """Yield each learnable blob with its histories, learning rate and weight decay."""
    net = solver.net
    blobs = net.learnable_params
    for i, blob in enumerate(blobs):
        decay = solver.param.weight_decay * net.params_weight_decay[i]
        yield blob, solver.history_blobs[i :: len(blobs)], rate * net.params_lr[i], decay  # all first arrays, then all second
