"""An update of a net's weights, on the host or on the GPU: clipping, weight decay and a solver's rule over all learnable blobs.

Source: Caffe's sgd_solver.cpp (ApplyUpdate).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.blocks import Index, each_block
from minicaffe.cuda.updates import clip_scale, update
from minicaffe.mode import gpu_mode

from . import updates

if TYPE_CHECKING:
    from .solver import SGDSolver


def apply_update(solver: SGDSolver, rate: float) -> None:
    """Turn the gradients in the diffs of the solver's net into an update of its weights, where the mode says. The host does it
    in GPU mode too for a rule that has no kernel."""
    if gpu_mode() and _has_kernel(type(solver)):
        _on_gpu(solver, rate)
    else:
        _on_host(solver, rate)


def _has_kernel(kind: type[SGDSolver]) -> bool:
    """Whether the class that says what the rule is says its kernel too: one derived from it may write gradient_to_step only."""
    rule = next(base for base in kind.__mro__ if {"gradient_to_step", "kernel"} & vars(base).keys())
    return "kernel" in vars(rule)


def _on_host(solver: SGDSolver, rate: float) -> None:
    param = solver.param
    if param.clip_gradients >= 0:
        updates.clip([blob.diff for blob in solver.net.learnable_params], param.clip_gradients)
    for blob, histories, local_rate, decay in _blobs(solver, rate):
        arrays = [array.reshape(-1) for array in (blob.data, blob.diff, *(each.data for each in histories))]
        each_block((blob.count,), partial(_step, solver, arrays, local_rate, decay), updates.PART)


def _step(solver: SGDSolver, arrays: Sequence[NDArray[Any]], rate: float, decay: float, part: Index) -> None:
    """Update a part of one blob's data; arrays: data, diff and histories, flat."""
    param, (data, diff, *history) = solver.param, (array[part] for array in arrays)
    if param.iter_size > 1:
        np.divide(diff, param.iter_size, out=diff)
    updates.regularise(data, diff, decay, param.regularization_type)
    solver.gradient_to_step(diff, history, rate)
    np.subtract(data, diff, out=data)


def _on_gpu(solver: SGDSolver, rate: float) -> None:
    param, blobs = solver.param, solver.net.learnable_params
    with solver.net.running():
        scale = clip_scale(blobs, param.clip_gradients) if param.clip_gradients >= 0 and blobs else 0
        for blob, histories, local_rate, decay in _blobs(solver, rate):
            rule, l1 = solver.kernel(local_rate), param.regularization_type == "L1"
            update(blob, histories, rule, scale=scale, passes=param.iter_size, decay=decay, l1=l1)


def _blobs(solver: SGDSolver, rate: float) -> Iterator[tuple[Blob, list[Blob], float, float]]:
    """Each learnable blob, its histories, rate and decay."""
    net = solver.net
    blobs = net.learnable_params
    for i, blob in enumerate(blobs):
        decay = solver.param.weight_decay * net.params_weight_decay[i]
        yield blob, solver.history_blobs[i :: len(blobs)], rate * net.params_lr[i], decay
