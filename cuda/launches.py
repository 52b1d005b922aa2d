"""Launches shared by layers: sums and planes by blocks, the ends of losses, softmax, and table rows by index.

A launch of blocks has one for each sum (sums.cuh), or covers planes (planes.cuh). Of a loss, a kernel writes each block's sum,
then one block adds those, in a fixed order, in double.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.blob import Blob
from minicaffe.cuda.device import THREADS, current, launch, launch_blocks
from minicaffe.errors import LayerError
from minicaffe.layer import Layer

if TYPE_CHECKING:
    from minicaffe.blob import DeviceArray


def launch_sums(kernel: str, dtype: DTypeLike, sums: int, numbers: int, *arguments: Any) -> None:
    """Run the kernel "stem.name" with a block for each of `sums` results, each over `numbers` numbers."""
    launch_blocks(kernel, dtype, (sums, 1), (threads_of(numbers), 1, 1), *arguments)


def launch_planes(kernel: str, dtype: DTypeLike, planes: int, positions: int, *arguments: Any) -> None:
    """Run the kernel "stem.name" over planes of `positions` numbers. These two are its first arguments.

    In a large plane each thread has about 4 numbers.
    """
    if not planes or not positions:
        return
    across = min(1 << (positions - 1).bit_length(), THREADS)
    down = THREADS // across
    grid = -(-planes // down), min(-(-positions // (4 * across)), 65535)
    launch_blocks(kernel, dtype, grid, (across, down, 1), planes, positions, *arguments)


def column_sums(dtype: DTypeLike, rows: int, columns: int, x: int, total: int) -> None:
    """Add the sums of the columns of x (rows, columns) to total (columns)."""
    launch_blocks("column_sums.column_sums", dtype, (-(-columns // 32), 1), (32, 32, 1), rows, columns, x, total)


def threads_of(numbers: int) -> int:
    """Return the threads of a block for N numbers: a power of 2 from 32 to 1024, about 4 numbers for each thread."""
    return min(max(1 << (numbers // 4).bit_length(), 32), 1024)


def data_pair(x: DeviceArray, y: DeviceArray) -> tuple[int, int]:
    """Return x's data to read, and y's to overwrite; y may be x."""
    if x is y:
        return (x.device_data("update"),) * 2
    return x.device_data("read"), y.device_data("write")


def diff_pair(dy: DeviceArray, dx: DeviceArray) -> tuple[int, int]:
    """Return dy's diff to read, and dx's to overwrite; dx may be dy."""
    if dx is dy:
        return (dy.device_diff("update"),) * 2
    return dy.device_diff("read"), dx.device_diff("write")


LOSS_THREADS = 256
"""Threads of a loss kernel's block: LOSS_THREADS of loss.cuh."""

MOST_BLOCKS = 1024
"""Most blocks of a loss kernel. They loop over the rest."""

LANES = 32
"""Threads for one position with adjacent numbers."""


def launch_loss(
    kernel: str, dtype: DTypeLike, threads: int, *arguments: Any, loss: Blob, fixed: float | None, divisor: Blob | None = None
) -> None:
    """Run a loss kernel, and write sum / divisor to loss. Its last argument is the address of the blocks' sums.

    fixed: the divisor, or None: the kernel's count, at least 1. divisor: a float64 blob to keep it in.
    """
    blocks = min(-(-threads // LOSS_THREADS), MOST_BLOCKS)
    partial = current().current_stream.workspace(16 * MOST_BLOCKS)
    launch_blocks(kernel, dtype, (blocks, 1), (LOSS_THREADS, 1, 1), *arguments, partial)
    kept = divisor.device_data("write") if divisor else 0
    given = (blocks, partial, fixed or 0.0, loss.device_data("write"), kept)
    launch_blocks("loss.finish_loss", dtype, (1, 1), (LOSS_THREADS, 1, 1), *given)


def lanes_of(inner: int) -> int:
    """Return the threads for one position of (outer, channels, inner). Adjacent threads read adjacent numbers."""
    return LANES if inner < LANES else 1


def launch_softmax(dtype: DTypeLike, outer: int, length: int, inner: int, *arrays: int, backward: bool = False) -> None:
    """Run softmax along the middle axis of (outer, length, inner).

    Forward takes the addresses x, y; backward takes y, dy, dx. Each line has a thread, or a block if its numbers are closer to
    each other than to the next line's.
    """
    lines, end = outer * inner, "_backward" if backward else ""
    if not lines * length:
        return
    if inner >= length:
        launch(f"softmax.softmax_lines{end}", dtype, lines, lines, length, inner, *arrays)
    else:
        launch_sums(f"softmax.softmax_rows{end}", dtype, lines, length, length, inner, *arrays)


def launch_take(layer: Layer, index: Blob, field: str, table: int, rows: int, y: Blob, *, bias: int = 0) -> None:
    """Compute y (items, width...) = row index[item] of the table (rows, width...) + bias.

    A number of index that is not whole or not in [0, rows) raises LayerError with field, at the next synchronisation.
    """
    if y.count:
        items, numbers = index.count, index.device_data("read")

        def error(last: int) -> LayerError:
            number = np.ravel(index.read_data())[items - last]
            return layer.error(f"{number:g} is not a whole number in [0, {rows})", field)

        bad = current().current_stream.watch(error)
        width, to = y.count // items, y.device_data("write")
        launch("rows.take", layer.dtype, y.count, y.count, items, width, numbers, rows, table, bias, to, bad)


def launch_add(layer: Layer, index: Blob, dy: Blob, rows: int, total: int) -> None:
    """Add row `item` of dy (items, width...) to row index[item] of total (rows, width...)."""
    if dy.count:
        width = dy.count // index.count
        sizes = (dy.count, index.count, width, index.device_data("read"), rows)
        launch("rows.add", layer.dtype, dy.count, *sizes, dy.device_diff("read"), total)
