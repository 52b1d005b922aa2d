"""Losses on the GPU: a kernel that leaves each block's sum, then one block that adds those up, in a fixed order, in double."""

from __future__ import annotations

from typing import Any

from numpy.typing import DTypeLike

from minicaffe.blob import Blob

from .device import current, launch_blocks

THREADS = 256
"""Threads of a loss kernel's block: loss.cuh's LOSS_THREADS."""

MOST_BLOCKS = 1024
"""Blocks of a loss kernel, which loop over what is beyond."""

LANES = 32
"""Threads that share one position whose numbers lie next to each other."""


def launch_loss(
    kernel: str, dtype: DTypeLike, threads: int, *arguments: Any, loss: Blob, fixed: float | None, divisor: Blob | None = None
) -> None:
    """Run a loss kernel, whose last argument is where the blocks' sums go, and write sum / divisor to loss.
    fixed: the divisor, or None: as many as the kernel counted, at least 1. divisor: where it is kept, a float64."""
    blocks = min(-(-threads // THREADS), MOST_BLOCKS)
    partial = current().current_stream.workspace(16 * MOST_BLOCKS)
    launch_blocks(kernel, dtype, (blocks, 1), (THREADS, 1, 1), *arguments, partial)
    kept = divisor.device_data("write") if divisor else 0
    given = (blocks, partial, fixed or 0.0, loss.device_data("write"), kept)
    launch_blocks("loss.finish_loss", dtype, (1, 1), (THREADS, 1, 1), *given)


def lanes_of(inner: int) -> int:
    """How many threads share one position of (outer, channels, inner): adjacent threads are to read adjacent numbers."""
    return LANES if inner < LANES else 1
