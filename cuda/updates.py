"""The solvers' updates on the GPU: minicaffe/training/updates.py's rules, one launch for each learnable blob."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minicaffe.blob import Blob

from .device import THREADS, current, launch, launch_blocks

RULES = ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")
"""The rules in the order of updates.cu."""

SUMS = 64
"""Most blocks that sum one blob's squares."""


@dataclass(frozen=True)
class Rule:
    """One of RULES with its numbers. keep, keep2: the decay of each history (momentum, rms_decay)."""

    name: str
    rate: float
    keep: float = 0.0
    keep2: float = 0.0
    delta: float = 0.0


def clip_scale(blobs: Sequence[Blob], limit: float) -> int:
    """Return the address of the factor that scales the blobs' diffs to a common L2 norm of at most limit.

    It is valid until the stream's workspace is used again.
    """
    dtype = blobs[0].dtype
    sums = [min(-(-blob.count // THREADS), SUMS) for blob in blobs]
    scale = current().current_stream.workspace(8 + 8 * sum(sums))  # one REAL, padded to align the doubles
    partial = scale + 8
    for blob, blocks in zip(blobs, sums, strict=True):
        given = (blob.count, blob.device_diff("read"), partial)
        launch_blocks("updates.sum_squares", dtype, (blocks, 1), (THREADS, 1, 1), *given)
        partial += 8 * blocks
    launch_blocks("updates.clip_scale", dtype, (1, 1), (THREADS, 1, 1), sum(sums), scale + 8, limit, scale)
    return scale


def update(blob: Blob, history: Sequence[Blob], rule: Rule, *, scale: int, passes: int, decay: float, l1: bool) -> None:
    """Turn a blob's diff into the step, and subtract it from its data.

    scale: clip_scale's, or 0; passes: the number of passes that the diff sums.
    """
    arrays = [blob.device_data("update"), blob.device_diff("update"), *(each.device_data("update") for each in history)]
    arrays += [0] * (4 - len(arrays))
    numbers = (rule.rate, rule.keep, rule.keep2, rule.delta)
    given = (RULES.index(rule.name), blob.count, *arrays, scale, passes, decay, l1, *numbers)
    launch("updates.update", blob.dtype, blob.count, *given)
