"""Losses on the GPU: a kernel writes each block's sum, then one block adds those, in a fixed order, in double."""

from __future__ import annotations

from typing import Any

from numpy.typing import DTypeLike

from minicaffe.blob import Blob

from .device import current, launch_blocks

THREADS = 256
"""Threads of a loss kernel's block: LOSS_THREADS of loss.cuh."""

MOST_BLOCKS = 1024
"""Most blocks of a loss kernel, which loop over the rest."""

LANES = 32
"""Threads for one position whose numbers are next to each other."""


def launch_loss(
    kernel: str, dtype: DTypeLike, threads: int, *arguments: Any, loss: Blob, fixed: float | None, divisor: Blob | None = None
) -> None:
    """Run a loss kernel, whose last argument is the address of the blocks' sums, and write sum / divisor to loss.
    fixed: the divisor, or None: the kernel's count, at least 1. divisor: a float64 blob to keep it in."""
    blocks = min(-(-threads // THREADS), MOST_BLOCKS)
    partial = current().current_stream.workspace(16 * MOST_BLOCKS)
    launch_blocks(kernel, dtype, (blocks, 1), (THREADS, 1, 1), *arguments, partial)
    kept = divisor.device_data("write") if divisor else 0
    given = (blocks, partial, fixed or 0.0, loss.device_data("write"), kept)
    launch_blocks("loss.finish_loss", dtype, (1, 1), (THREADS, 1, 1), *given)


def lanes_of(inner: int) -> int:
    """Threads for one position of (outer, channels, inner), so that adjacent threads read adjacent numbers."""
    return LANES if inner < LANES else 1
