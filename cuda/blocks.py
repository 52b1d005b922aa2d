"""Launches of blocks: one for each sum (see sums.cuh), or over planes (see planes.cuh)."""

from __future__ import annotations

from typing import Any

from numpy.typing import DTypeLike

from .device import THREADS, launch_blocks


def launch_sums(kernel: str, dtype: DTypeLike, sums: int, numbers: int, *arguments: Any) -> None:
    """Run the kernel "stem.name" with a block for each of `sums` results, each over `numbers` numbers."""
    launch_blocks(kernel, dtype, (sums, 1), (threads_of(numbers), 1, 1), *arguments)


def launch_planes(kernel: str, dtype: DTypeLike, planes: int, positions: int, *arguments: Any) -> None:
    """Run the kernel "stem.name", over planes of `positions` numbers; these two are its first arguments. About 4 numbers
    a thread in a large plane."""
    if not planes or not positions:
        return
    across = min(1 << (positions - 1).bit_length(), THREADS)
    down = THREADS // across
    grid = -(-planes // down), min(-(-positions // (4 * across)), 65535)
    launch_blocks(kernel, dtype, grid, (across, down, 1), planes, positions, *arguments)


def column_sums(dtype: DTypeLike, rows: int, columns: int, x: int, total: int) -> None:
    """total (columns) += the sums of the columns of x (rows, columns)."""
    launch_blocks("column_sums.column_sums", dtype, (-(-columns // 32), 1), (32, 32, 1), rows, columns, x, total)


def threads_of(numbers: int) -> int:
    """Threads of a block for N numbers: a power of 2 from 32 to 1024, about 4 numbers a thread."""
    return min(max(1 << (numbers // 4).bit_length(), 32), 1024)
