"""The three products of a convolution, on arrays: forward, gradient of the data, gradient of the weights.

    columns = windows of x; y = weight @ columns; dx = windows added back from weight^T @ dy; dweight = dy @ columns^T

The columns are made in blocks of about BLOCK_BYTES: several images at once where maps are small, some rows of one
image where they are large. So the loops below count blocks of work, and memory stays bounded whatever the batch.
A 1x1 convolution needs no columns: the product runs straight on the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .depthwise import depthwise_data_gradient
from .im2col import add_windows, inside, padded, windows_of
from .window import Window

BLOCK_BYTES = 2 << 20
"""About how many bytes of columns are made at a time (at least one row of one image)."""


def convolve(x: NDArray[Any], weight: NDArray[Any], window: Window, group: int, y: NDArray[Any]) -> None:
    """y (N, M, *windows) = x (N, C, *map) convolved with weight (M, C / group, *kernel); y is overwritten."""
    matrix = _matrix(weight, group)
    for images, row_blocks in _blocks(y.shape, matrix, window):
        bordered = padded(x[images], window)
        for rows in row_blocks:
            columns = _columns(_slab(bordered, rows, window), window, group)
            _multiply_into(y[images, :, rows], matrix, columns)


def data_gradient(dy: NDArray[Any], weight: NDArray[Any], window: Window, group: int, dx: NDArray[Any]) -> None:
    """dx (N, C, *map) from dy (N, M, *windows) and weight (M, C / group, *kernel): convolve's transpose; overwrites dx."""
    if group == dx.shape[1] == dy.shape[1]:
        depthwise_data_gradient(dy, weight, window, dx)
        return
    matrix = _matrix(weight, group)
    transposed = matrix.swapaxes(1, 2)
    spatial = dx.shape[2:]
    for images, row_blocks in _blocks(dy.shape, matrix, window):
        if window.pointwise:
            _multiply_into(dx[images], transposed, _side_by_side(dy[images], group))
            continue
        bordered = np.zeros((len(dx[images]), dx.shape[1], *(s + 2 * p for s, p in zip(spatial, window.pad))), dx.dtype)
        for rows in row_blocks:
            part = dy[images, :, rows]
            columns = _multiply(transposed, _side_by_side(part, group))
            columns = columns.reshape(dx.shape[1], *window.kernel, len(part), *part.shape[2:])
            add_windows(columns, window, _slab(bordered, rows, window))
        dx[images] = inside(bordered, window, spatial)


def add_weight_gradient(x: NDArray[Any], dy: NDArray[Any], window: Window, group: int, dweight: NDArray[Any]) -> None:
    """Add to dweight (M, C / group, *kernel) what dy (N, M, *windows) and x (N, C, *map) give."""
    matrix = _matrix(dweight, group)
    for images, row_blocks in _blocks(dy.shape, matrix, window):
        bordered = padded(x[images], window)
        for rows in row_blocks:
            columns = _columns(_slab(bordered, rows, window), window, group)
            matrix += np.matmul(_side_by_side(dy[images, :, rows], group), columns.swapaxes(1, 2))


def _matrix(weight: NDArray[Any], group: int) -> NDArray[Any]:
    """weight (M, C / group, *kernel) as (group, M / group, C / group * taps): a view."""
    return weight.reshape(group, weight.shape[0] // group, math.prod(weight.shape[1:]))


def _multiply(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """a (group, I, J) @ b (group, J, K); a BLAS call a group is slow where J is 1, as in depthwise convolutions."""
    product: NDArray[Any] = a * b if a.shape[2] == 1 else np.matmul(a, b)
    return product


def _multiply_into(y: NDArray[Any], matrix: NDArray[Any], columns: NDArray[Any]) -> None:
    """y (N, M, *windows) = matrix (group, M / group, K) @ columns (group, K, N * windows), straight into y for one image."""
    target = y.swapaxes(0, 1)
    if len(y) == 1:
        np.matmul(matrix, columns, out=target.reshape(*matrix.shape[:2], columns.shape[2]))
    else:
        target[...] = np.matmul(matrix, columns).reshape(target.shape)


def _blocks(y_shape: tuple[int, ...], matrix: NDArray[Any], window: Window) -> Iterator[tuple[slice, list[slice]]]:
    """Images, and the rows of windows of them, to be taken at once."""
    count, rows = y_shape[0], y_shape[2]
    per_image = math.prod(y_shape[2:])
    fitting = BLOCK_BYTES // (matrix.shape[0] * matrix.shape[2] * matrix.itemsize)
    images = max(1, fitting // max(1, per_image))
    rows_at_once = rows if window.pointwise else min(rows, max(1, fitting * rows // max(1, per_image)))
    row_blocks = [slice(a, min(a + rows_at_once, rows)) for a in range(0, rows, max(1, rows_at_once))]
    for first in range(0, count, images):
        yield slice(first, min(first + images, count)), row_blocks


def _slab(x: NDArray[Any], rows: slice, window: Window) -> NDArray[Any]:
    """The rows of a padded x (N, C, *padded) that these rows of windows reach."""
    stride = window.stride[0]
    return x[:, :, rows.start * stride : (rows.stop - 1) * stride + window.extent[0]]


def _columns(x: NDArray[Any], window: Window, group: int) -> NDArray[Any]:
    """The windows of a padded x (N, C, *padded) as (group, C / group * taps, N * windows); a view where it can be one."""
    windows: NDArray[Any] = windows_of(x, window)
    taps = math.prod(window.kernel)
    return windows.reshape(group, x.shape[1] // group * taps, math.prod(windows.shape[1 + len(window.kernel) :]))


def _side_by_side(dy: NDArray[Any], group: int) -> NDArray[Any]:
    """dy (N, M, *windows) as (group, M / group, N * windows)."""
    channels_first: NDArray[Any] = dy.swapaxes(0, 1)
    return channels_first.reshape(group, dy.shape[1] // group, len(dy) * math.prod(dy.shape[2:]))
