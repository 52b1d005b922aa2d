"""Launches with one block for each result: sums and maxima over many numbers (see sums.cuh)."""

from __future__ import annotations

from typing import Any

from numpy.typing import DTypeLike

from .device import launch_blocks


def launch_sums(kernel: str, dtype: DTypeLike, sums: int, numbers: int, *arguments: Any) -> None:
    """Run the kernel "stem.name" with a block for each of `sums` results, each over `numbers` numbers."""
    launch_blocks(kernel, dtype, (sums, 1), (threads_of(numbers), 1, 1), *arguments)


def column_sums(dtype: DTypeLike, rows: int, columns: int, x: int, total: int) -> None:
    """total (columns) += the sums of the columns of x (rows, columns)."""
    launch_blocks("column_sums.column_sums", dtype, (-(-columns // 32), 1), (32, 32, 1), rows, columns, x, total)


def threads_of(numbers: int) -> int:
    """Threads of a block that goes over so many numbers: a power of 2 from 32 to 1024, about 4 numbers a thread."""
    return min(max(1 << (numbers // 4).bit_length(), 32), 1024)
