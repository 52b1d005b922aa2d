"""The three products of a convolution, on arrays: forward, gradient of the data, gradient of the weights.

    columns = windows of x; y = weight @ columns; dx = windows added back from weight^T @ dy; dweight = dy @ columns^T

The columns are made in blocks, so that memory stays bounded whatever the batch. Blocks are divided among the threads, no two of
which write to the same place. A 1x1 convolution of stride 1 needs no columns.

A block is some rows of windows of one image; or whole images, of a few groups or of all, where they are small. Its columns and
products take about BLOCK_BYTES. Where that makes fewer blocks than threads, rows, groups or a group's filters are cut further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.elementwise.epilogue import NOTHING, Epilogue
from minicaffe.threads import Scratch, cut, get_num_threads, kept_scratch, parts, run

from .columns import Columns
from .window import Window

BLOCK_BYTES = 6 << 20
"""Approximate bytes of columns, and of products with them, made at a time (at least LEAST columns, or one row of windows)."""

LEAST, LEAST_SHARED = 512, 128
"""Least columns of a product: with fewer, BLAS packs the weights for little work. LEAST_SHARED: the same if rows are cut only
to occupy all threads."""

LEAST_PRODUCT = 1 << 20
"""Least multiplications of a part of a product that is cut for the threads. OpenBLAS rounds smaller products differently, so
results would depend on the number of threads. So many cost about as much as a task."""

MOST_ALONE, COPIED = 16 << 20, 8
"""Multiplications that one thread computes before a second thread would have started and taken the GIL; and the
multiplications that a byte of the columns counts for."""

SUMS = 8
"""Tasks that share a weight gradient's channels, each with a sum of its own, whatever the number of threads."""

FEWEST_CHANNELS = 8
"""Channels for each task that has them to itself."""

MOST_DIRECT = 4096
"""Most columns of a product on the data itself, so that the epilogue finds them in cache."""

JOINED, JOINED_BYTES = 128, 128 << 10
"""Windows of an image, or bytes of its columns, below which several images make a block."""


@dataclass(frozen=True)
class Block:
    """A block: images, groups of channels, rows of windows, and each group's filters (forward) or channels (backward)."""

    images: slice
    groups: slice
    rows: slice
    lane: slice


@dataclass(frozen=True)
class Work:
    """The work that is cut into blocks.

    images; rows of windows in each; windows in a row; groups; lanes: a group's filters or channels, which can be separated;
    column_bytes: of a group's column and its products, 0 without columns; multiplications: of a group's window.
    """

    images: int
    rows: int
    row: int
    groups: int
    lanes: int
    column_bytes: int
    multiplications: int

    def sizes(self) -> tuple[int, int, int]:
        """Return into how many parts images, rows and groups are cut, to fit cache and memory."""
        image = self.rows * self.row
        # The number of windows whose columns take BLOCK_BYTES.
        fitting = max(LEAST, BLOCK_BYTES // self.column_bytes) if self.column_bytes else MOST_DIRECT
        if image > fitting:  # cut rows; each block then has one group's columns
            at_once = max(1, fitting // self.row)
            return self.images, math.ceil(self.rows / at_once), self.groups if self.column_bytes else 1
        groups = min(self.groups, fitting // image)  # the number of groups whose columns fit together
        column_bytes = self.groups * self.column_bytes or JOINED_BYTES  # without columns, the number of windows decides
        if groups < self.groups or (image >= JOINED and image * column_bytes >= JOINED_BYTES):
            return self.images, 1, math.ceil(self.groups / groups)
        # Small images: several in one product, with all groups.
        return math.ceil(self.images / max(1, fitting // (image * groups))), 1, 1

    @property
    def is_small(self) -> bool:
        """Return whether one thread is the fastest."""
        each = self.multiplications + COPIED * self.column_bytes
        return self.images * self.rows * self.row * self.groups * each <= MOST_ALONE

    def forward(self) -> list[Block]:
        """Return blocks that can be computed in any order."""
        images, rows, groups = self.sizes()
        threads, lanes = 1 if self.is_small else get_num_threads(), 1
        # With at least 4 blocks for each thread, an extra block costs little.
        if (images * rows * groups) % threads and images * rows * groups < 4 * threads:
            if self.groups > 1:
                groups = _more(groups, self.groups, images * rows)
            elif self.rows * self.row >= threads * LEAST_SHARED:
                most = self._windows(images, 1) * self.multiplications // LEAST_PRODUCT
                rows = max(rows, min(_more(rows, self.rows, images), most))
            elif images * rows < threads:  # last, because each part of the filters makes the same columns
                lanes = self._lanes(threads, images, rows)
        return [Block(*cuts) for cuts in product(*self._cuts(images, groups, rows, lanes))]

    def over_images(self) -> list[list[Block]]:
        """Return tasks: lists of blocks. No two tasks share images and channels; each has all their rows in order."""
        images, rows, groups = self.sizes()
        lanes = 1
        if images * groups < 4 * get_num_threads():
            if self.groups > 1:
                groups = _more(groups, self.groups, images)
            else:
                lanes = self._lanes(_more(1, self.lanes, images), images, rows)
        of_images, of_groups, of_rows, of_lanes = self._cuts(images, groups, rows, lanes)
        # Neighbouring rows of windows add to the same pixels, so one task takes them in order.
        return [[Block(i, g, r, lane) for r in of_rows] for i, g, lane in product(of_images, of_groups, of_lanes)]

    def over_channels(self) -> list[list[Block]]:
        """Return tasks: lists of blocks. No two tasks share groups and channels; each has all their images and rows in order.

        If a group has few channels, no two tasks share images and rows instead, and the caller adds up their sums.
        """
        images, rows, groups = self.sizes()
        if self.groups == 1 and self.lanes < 2 * FEWEST_CHANNELS:
            shared = [Block(*cuts) for cuts in product(*self._cuts(images, 1, rows, 1))]
            return [shared[part] for part in cut(len(shared), SUMS)]
        lanes = 1
        if self.groups > 1:
            groups = _more(groups, self.groups, 1)
        else:
            lanes = self._lanes(min(get_num_threads(), self.lanes // FEWEST_CHANNELS), images, rows)
        of_images, of_groups, of_rows, of_lanes = self._cuts(images, groups, rows, lanes)
        return [[Block(i, g, r, lane) for i, r in product(of_images, of_rows)] for g, lane in product(of_groups, of_lanes)]

    def _cuts(self, *counts: int) -> list[list[slice]]:
        """Return the slices of images, groups, rows and lanes, each axis cut into the given number of parts."""
        return [cut(*both) for both in zip((self.images, self.groups, self.rows, self.lanes), counts, strict=True)]

    def _lanes(self, wanted: int, images: int, rows: int) -> int:
        """Return the most parts to cut filters or channels into, at most `wanted`, if images and rows have these parts."""
        return max(1, min(wanted, self._windows(images, rows) * self.multiplications // LEAST_PRODUCT))

    def _windows(self, images: int, rows: int) -> int:
        """Return the fewest windows of a product if images and rows are cut into so many parts."""
        return max(1, self.images // images) * max(1, self.rows // rows) * self.row


def _more(count: int, most: int, times: int) -> int:
    """Return the least number from count on whose product with times is a multiple of the threads, at most `most`."""
    threads = get_num_threads()
    step = threads // math.gcd(threads, times)
    return min(most, math.ceil(count / step) * step)


def run_tasks(tasks: Sequence[Sequence[Block]], work: Callable[[Sequence[Block], Scratch], None], matrix: Array) -> None:
    """Call work(task, scratch) for every task, on all threads. A thread's tasks use one Scratch.

    matrix: the weights (group, M / group, C / group, taps). If a group has one channel, as in depthwise convolutions, copying
    takes most of the time: then Scratch is kept between calls.
    """
    keep = len(matrix) > 1 and matrix.shape[2] == 1

    def some(part: slice) -> None:
        with kept_scratch(matrix.dtype) if keep else nullcontext(Scratch(matrix.dtype)) as scratch:
            for task in tasks[part]:
                work(task, scratch)

    run(partial(some, part) for part in parts(len(tasks), each=2))


def convolve(x: Array, weight: Array, window: Window, group: int, y: Array, epilogue: Epilogue = NOTHING) -> None:
    """Compute y (N, M, *windows) = epilogue of x (N, C, *map) convolved with weight (M, C / group, *kernel)."""
    if group == len(x) == 1 and window.pointwise and y.flags.c_contiguous and _is_one_task(weight.shape[1] * y.size, y):
        run([partial(_one_product, x, weight, y, epilogue)])
        return
    matrix, xs, ys = _matrix(weight, group), _grouped(x, group), _grouped(y, group)
    filters = matrix.shape[1]

    def compute(task: Sequence[Block], scratch: Scratch) -> None:
        for block in task:
            out = _part(ys, block, block.lane)[:, :, block.rows]
            columns = _columns(block, out, window, filters, scratch)
            factor = matrix[block.groups, block.lane].reshape(columns.groups, -1, matrix.shape[2] * matrix.shape[3])
            product = columns.multiplied(factor, columns.of(_part(xs, block)), out)
            # Lanes are cut only with one group, so the block's filters are adjacent in y.
            start = block.groups.start * filters + block.lane.start
            epilogue(product, slice(start, start + out.shape[1]))  # while the product is still in cache
            columns.put(product, out)

    work = _work(y, matrix, window, lanes=filters)
    blocks = work.forward() if y.size else []
    run_tasks([blocks] if work.is_small else [[block] for block in blocks], compute, matrix)


def data_gradient(dy: Array, weight: Array, window: Window, group: int, dx: Array) -> None:
    """Compute dx (N, C, *map) from dy (N, M, *windows) and weight (M, C / group, *kernel): convolve's transpose."""
    matrix, dxs, dys = _matrix(weight, group), _grouped(dx, group), _grouped(dy, group)
    filters, channels = matrix.shape[1:3]

    def compute(task: Sequence[Block], scratch: Scratch) -> None:
        for block in task:
            to, part = _part(dxs, block, block.lane), _part(dys, block)[:, :, block.rows]
            columns = _columns(block, part, window, filters, scratch)
            factor = matrix[block.groups, :, block.lane].reshape(columns.groups, filters, -1).swapaxes(1, 2)
            if columns.direct:  # each pixel lies in one window, so the product is its gradient
                columns.multiplied(factor, columns.beside(part), to[:, :, block.rows])
                continue
            if block.rows.start == 0:  # a task's first rows clear dx; all rows add to it
                to[...] = 0
            product = scratch("gradient", *factor.shape[:2], columns.length)
            # A BLAS call for each group would be slow with one filter per group, as in depthwise convolutions.
            (np.multiply if filters == 1 else np.matmul)(factor, columns.beside(part), out=product)
            columns.add_back(product, to)

    tasks = _work(dy, matrix, window, lanes=channels).over_images() if dy.size else []
    run_tasks(tasks, compute, matrix)


def add_weight_gradient(x: Array, dy: Array, window: Window, group: int, dweight: Array) -> None:
    """Add to dweight (M, C / group, *kernel) the gradient from dy (N, M, *windows) and x (N, C, *map)."""
    matrix, xs, dys = _matrix(dweight, group), _grouped(x, group), _grouped(dy, group)
    filters, channels = matrix.shape[1:3]
    tasks = _work(dy, matrix, window, lanes=channels).over_channels() if dy.size else []
    sums: dict[int, Array] = {}

    def compute(task: Sequence[Block], scratch: Scratch) -> None:
        total: Array | None = None
        for block in task:
            part = _part(dys, block)[:, :, block.rows]
            columns = _columns(block, part, window, filters, scratch)
            values = columns.of(_part(xs, block, block.lane))
            product = np.matmul(columns.beside(part), values.swapaxes(1, 2))
            total = product if total is None else np.add(total, product, out=total)
        if total is not None:
            sums[id(task)] = total  # added up below in the order of the tasks, so that rounding is independent of the threads

    run_tasks(tasks, compute, matrix)
    for task in filter(None, tasks):
        to = matrix[task[0].groups, :, task[0].lane]
        to += sums[id(task)].reshape(to.shape)


def _is_one_task(multiplications: int, y: Array) -> bool:
    """Return whether one product on one thread computes y (1, M, *map) fastest."""
    few = get_num_threads() == 1 or multiplications <= MOST_ALONE
    return few and math.prod(y.shape[2:]) <= MOST_DIRECT


def _one_product(x: Array, weight: Array, y: Array, epilogue: Epilogue) -> None:
    """Convolve one image with a window of one pixel, without blocks. On small maps blocks cost as much as the product."""
    product = y.reshape(y.shape[1], -1)
    np.matmul(weight.reshape(len(weight), -1), x.reshape(x.shape[1], -1), out=product)
    epilogue(product[None])


def _work(y: Array, matrix: Array, window: Window, lanes: int) -> Work:
    group, filters, channels, taps = matrix.shape
    column_bytes = 0 if window.pointwise else (channels * taps + filters) * matrix.itemsize
    return Work(len(y), y.shape[2], math.prod(y.shape[3:]), group, lanes, column_bytes, channels * taps * filters)


def _columns(block: Block, y: Array, window: Window, filters: int, scratch: Scratch) -> Columns:
    """Return the columns of the windows of y (N, M, *output), part of a block."""
    groups = block.groups.stop - block.groups.start
    return Columns(window, len(y), groups, block.rows.start, y.shape[2:], filters=filters, scratch=scratch)


def _matrix(weight: Array, group: int) -> Array:
    """Return weight (M, C / group, *kernel) as (group, M / group, C / group, taps): a view."""
    return weight.reshape(group, weight.shape[0] // group, weight.shape[1], math.prod(weight.shape[2:]))


def _grouped(x: Array, group: int) -> Array:
    """Return x (N, C, *map) as (N, group, C / group, *map): a view."""
    return x.reshape(len(x), group, x.shape[1] // group, *x.shape[2:])


def _part(x: Array, block: Block, lane: slice = slice(None)) -> Array:
    """Return the block's part of x (N, group, C / group, *map) as (images, channels, *map): a view."""
    part = x[block.images, block.groups, lane]
    return part.reshape(len(part), part.shape[1] * part.shape[2], *part.shape[3:])
