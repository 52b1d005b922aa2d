"""The three products of a convolution, on arrays: forward, gradient of the data, gradient of the weights.

    columns = windows of x; y = weight @ columns; dx = windows added back from weight^T @ dy; dweight = dy @ columns^T

The columns are made in blocks (convolution_blocks.py), so that memory stays bounded whatever the batch, and blocks are
divided among the threads, no two of which write to the same place. A 1x1 convolution of stride 1 needs no columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from minicaffe.blob import Array
from minicaffe.blocks import Scratch
from minicaffe.layers.elementwise.epilogue import NOTHING, Epilogue
from minicaffe.threads import get_num_threads, run

from .columns import Columns
from .convolution_blocks import MOST_ALONE, MOST_DIRECT, Block, Work, run_tasks
from .window import Window


def convolve(x: Array, weight: Array, window: Window, group: int, y: Array, epilogue: Epilogue = NOTHING) -> None:
    """y (N, M, *windows) = epilogue of x (N, C, *map) convolved with weight (M, C / group, *kernel); y is overwritten."""
    if group == len(x) == 1 and window.pointwise and y.flags.c_contiguous and _is_one_task(weight.shape[1] * y.size, y):
        run([partial(_one_product, x, weight, y, epilogue)])
        return
    matrix, xs, ys = _matrix(weight, group), _grouped(x, group), _grouped(y, group)
    filters = matrix.shape[1]

    def work(task: Sequence[Block], scratch: Scratch) -> None:
        for block in task:
            out = _part(ys, block, block.lane)[:, :, block.rows]
            columns = _columns(block, out, window, filters, scratch)
            factor = matrix[block.groups, block.lane].reshape(columns.groups, -1, matrix.shape[2] * matrix.shape[3])
            product = columns.multiplied(factor, columns.of(_part(xs, block)), out)
            # lanes are cut only where there is one group: the block's filters follow one another in y
            start = block.groups.start * filters + block.lane.start
            epilogue(product, slice(start, start + out.shape[1]))  # while the product is in cache
            columns.put(product, out)

    whole = _work(y, matrix, window, lanes=filters)
    blocks = whole.forward() if y.size else []
    run_tasks([blocks] if whole.is_small else [[block] for block in blocks], work, y.dtype, keep=_depthwise(matrix))


def data_gradient(dy: Array, weight: Array, window: Window, group: int, dx: Array) -> None:
    """dx (N, C, *map) from dy (N, M, *windows) and weight (M, C / group, *kernel): convolve's transpose; overwrites dx."""
    matrix, dxs, dys = _matrix(weight, group), _grouped(dx, group), _grouped(dy, group)
    filters, channels = matrix.shape[1:3]

    def work(task: Sequence[Block], scratch: Scratch) -> None:
        for block in task:
            to, part = _part(dxs, block, block.lane), _part(dys, block)[:, :, block.rows]
            columns = _columns(block, part, window, filters, scratch)
            factor = matrix[block.groups, :, block.lane].reshape(columns.groups, filters, -1).swapaxes(1, 2)
            if columns.direct:  # a pixel lies in one window only: the product is its gradient
                columns.multiplied(factor, columns.beside(part), to[:, :, block.rows])
                continue
            if block.rows.start == 0:  # a task's first rows clear dx, then all rows add to it
                to[...] = 0
            product = scratch("gradient", *factor.shape[:2], columns.length)
            columns.add_back(_multiply(factor, columns.beside(part), product), to)

    tasks = _work(dy, matrix, window, lanes=channels).over_images() if dy.size else []
    run_tasks(tasks, work, dx.dtype, keep=_depthwise(matrix))


def add_weight_gradient(x: Array, dy: Array, window: Window, group: int, dweight: Array) -> None:
    """Add to dweight (M, C / group, *kernel) what dy (N, M, *windows) and x (N, C, *map) give."""
    matrix, xs, dys = _matrix(dweight, group), _grouped(x, group), _grouped(dy, group)
    filters, channels = matrix.shape[1:3]
    tasks = _work(dy, matrix, window, lanes=channels).over_channels() if dy.size else []
    sums: dict[int, Array] = {}

    def work(task: Sequence[Block], scratch: Scratch) -> None:
        total: Array | None = None
        for block in task:
            part = _part(dys, block)[:, :, block.rows]
            columns = _columns(block, part, window, filters, scratch)
            values = columns.of(_part(xs, block, block.lane))
            product = np.matmul(columns.beside(part), values.swapaxes(1, 2))
            total = product if total is None else np.add(total, product, out=total)
        if total is not None:
            sums[id(task)] = total  # added up below in the tasks' order: rounding does not depend on the threads

    run_tasks(tasks, work, dweight.dtype, keep=_depthwise(matrix))
    for task in tasks:
        if task:
            to = matrix[task[0].groups, :, task[0].lane]
            to += sums[id(task)].reshape(to.shape)


def _depthwise(matrix: Array) -> bool:
    """Whether a group of weights (group, M / group, C / group, taps) sees one channel: copying takes most of the time."""
    groups, channels = int(matrix.shape[0]), int(matrix.shape[2])
    return groups > 1 and channels == 1


def _is_one_task(multiplications: int, y: Array) -> bool:
    """Whether one product on one thread makes y (1, M, *map) soonest."""
    few = get_num_threads() == 1 or multiplications <= MOST_ALONE
    return few and math.prod(y.shape[2:]) <= MOST_DIRECT


def _one_product(x: Array, weight: Array, y: Array, epilogue: Epilogue) -> None:
    """convolve of one image by windows of one pixel, without blocks: on small maps these would take as long as the product."""
    product = y.reshape(y.shape[1], -1)
    np.matmul(weight.reshape(len(weight), -1), x.reshape(x.shape[1], -1), out=product)
    epilogue(product[None])


def _work(y: Array, matrix: Array, window: Window, lanes: int) -> Work:
    group, filters, channels, taps = matrix.shape
    column_bytes = 0 if window.pointwise else (channels * taps + filters) * matrix.itemsize
    return Work(len(y), y.shape[2], math.prod(y.shape[3:]), group, lanes, column_bytes, channels * taps * filters)


def _columns(block: Block, y: Array, window: Window, filters: int, scratch: Scratch) -> Columns:
    """The columns of the windows of y (N, M, *output), a block's part."""
    groups = block.groups.stop - block.groups.start
    return Columns(window, len(y), groups, block.rows.start, y.shape[2:], filters=filters, scratch=scratch)


def _matrix(weight: Array, group: int) -> Array:
    """weight (M, C / group, *kernel) as (group, M / group, C / group, taps): a view."""
    return weight.reshape(group, weight.shape[0] // group, weight.shape[1], math.prod(weight.shape[2:]))


def _grouped(x: Array, group: int) -> Array:
    """x (N, C, *map) as (N, group, C / group, *map): a view."""
    return x.reshape(len(x), group, x.shape[1] // group, *x.shape[2:])


def _part(x: Array, block: Block, lane: slice = slice(None)) -> Array:
    """The block's part of x (N, group, C / group, *map) as (images, channels, *map): a view."""
    part = x[block.images, block.groups, lane]
    return part.reshape(len(part), part.shape[1] * part.shape[2], *part.shape[3:])


def _multiply(a: Array, b: Array, out: Array) -> Array:
    """a (group, I, J) @ b (group, J, K); a BLAS call a group is slow where J is 1, as in depthwise convolutions."""
    return np.multiply(a, b, out=out) if a.shape[2] == 1 else np.matmul(a, b, out=out)
