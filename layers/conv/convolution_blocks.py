"""How a convolution's work is cut into blocks, and the blocks divided among the threads.

A block is some rows of windows of one image; or whole images, of a few groups or of all, where they are small. Its columns
and products take about BLOCK_BYTES. Where that makes fewer blocks than threads, rows, groups or a group's filters are cut
further.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import product

from numpy.typing import DTypeLike

from minicaffe.blocks import Scratch, kept_scratch
from minicaffe.threads import cut, get_num_threads, parts, run

BLOCK_BYTES = 6 << 20
"""About how many bytes of columns and of products with them are made at a time (at least LEAST columns, or one row of
windows)."""

LEAST, LEAST_SHARED = 512, 128
"""Least columns of a product: with fewer, BLAS packs the weights for little work. LEAST_SHARED: where rows are cut only to
occupy all threads."""

LEAST_PRODUCT = 1 << 20
"""Least multiplications of a part of a product that is cut for the threads. OpenBLAS rounds products below a million otherwise
than larger ones: results would depend on the number of threads. It needs 20 us for so many, about what a task costs."""

MOST_ALONE, COPIED = 16 << 20, 8
"""Multiplications of a convolution that one thread computes as soon as a second one would have begun, and taken the GIL in
between; and in place of how many a byte of its columns counts."""

SUMS = 8
"""Tasks that share a weight gradient's channels, each with a sum of its own, whatever the number of threads."""

FEWEST_CHANNELS = 8
"""Channels for each task that has them to itself."""

MOST_DIRECT = 4096
"""Columns of a product on the data itself: what comes after it finds them in cache."""

JOINED, JOINED_BYTES = 128, 128 << 10
"""Windows of an image, or bytes of its columns, below which several images make a block."""

WHOLE = slice(None)


@dataclass(frozen=True)
class Block:
    """Images, rows of windows, groups of channels, and of each group the filters (forward) or the channels (backward)."""

    images: slice
    rows: slice
    groups: slice
    lane: slice


@dataclass(frozen=True)
class Work:
    """What is to be cut: images, rows of windows in each, windows in a row, groups, filters or channels of a group that can
    be taken apart, bytes of a group's column and of its products (0 where no columns are made), multiplications of a group's
    window."""

    images: int
    rows: int
    row: int
    groups: int
    lanes: int
    column_bytes: int
    multiplications: int

    def sizes(self) -> tuple[int, int, int]:
        """How many parts images, rows and groups are cut into, for the sake of cache and memory."""
        image = self.rows * self.row
        # windows whose columns take BLOCK_BYTES
        fitting = max(LEAST, BLOCK_BYTES // self.column_bytes) if self.column_bytes else MOST_DIRECT
        if image > fitting:  # rows are cut; columns are then of one group at a time
            at_once = max(1, fitting // self.row)
            return self.images, math.ceil(self.rows / at_once), self.groups if self.column_bytes else 1
        groups = min(self.groups, fitting // image)  # groups whose columns fit together
        column_bytes = self.groups * self.column_bytes or JOINED_BYTES  # without columns the number of windows decides
        if groups < self.groups or (image >= JOINED and image * column_bytes >= JOINED_BYTES):
            return self.images, 1, math.ceil(self.groups / groups)
        # small images: several in one product, all groups
        return math.ceil(self.images / max(1, fitting // (image * groups))), 1, 1

    @property
    def is_small(self) -> bool:
        """Whether one thread computes it soonest."""
        each = self.multiplications + COPIED * self.column_bytes
        return self.images * self.rows * self.row * self.groups * each <= MOST_ALONE

    def forward(self) -> list[Block]:
        """Blocks that can be computed in any order."""
        images, rows, groups = self.sizes()
        threads, lanes = 1 if self.is_small else get_num_threads(), 1
        # with 4 blocks a thread or more, one that gets a block more hardly shows
        if (images * rows * groups) % threads and images * rows * groups < 4 * threads:
            if self.groups > 1:
                groups = _more(groups, self.groups, images * rows)
            elif self.rows * self.row >= threads * LEAST_SHARED:
                most = self._windows(images, 1) * self.multiplications // LEAST_PRODUCT
                rows = max(rows, min(_more(rows, self.rows, images), most))
            elif images * rows < threads:  # the last resort: each part of the filters makes the same columns
                lanes = self._lanes(threads, images, rows)
        cuts = cut(self.images, images), cut(self.groups, groups), cut(self.rows, rows), cut(self.lanes, lanes)
        return [Block(i, r, g, lane) for i, g, r, lane in product(*cuts)]

    def over_images(self) -> list[list[Block]]:
        """Tasks of blocks, each of which has images and channels to itself, and all their rows in order."""
        images, rows, groups = self.sizes()
        lanes = 1
        if images * groups < 4 * get_num_threads():
            if self.groups > 1:
                groups = _more(groups, self.groups, images)
            else:
                lanes = self._lanes(_more(1, self.lanes, images), images, rows)
        cuts = cut(self.images, images), cut(self.groups, groups), cut(self.lanes, lanes)
        # neighbouring rows of windows add to the same pixels: one task, in order
        return [[Block(i, r, g, lane) for r in cut(self.rows, rows)] for i, g, lane in product(*cuts)]

    def over_channels(self) -> list[list[Block]]:
        """Tasks of blocks, each of which has groups and channels to itself, and all their images and rows in order; where a
        group has few channels, tasks that share them and have images and rows to themselves."""
        images, rows, groups = self.sizes()
        if self.groups == 1 and self.lanes < 2 * FEWEST_CHANNELS:
            shared = [
                Block(i, r, slice(0, 1), slice(0, self.lanes))
                for i, r in product(cut(self.images, images), cut(self.rows, rows))
            ]
            return [shared[part] for part in cut(len(shared), SUMS)]  # the caller adds the sums up
        lanes = 1
        if self.groups > 1:
            groups = _more(groups, self.groups, 1)
        else:
            lanes = self._lanes(min(get_num_threads(), self.lanes // FEWEST_CHANNELS), images, rows)
        inner = list(product(cut(self.images, images), cut(self.rows, rows)))
        cuts = cut(self.groups, groups), cut(self.lanes, lanes)
        return [[Block(i, r, g, lane) for i, r in inner] for g, lane in product(*cuts)]

    def _lanes(self, wanted: int, images: int, rows: int) -> int:
        """Into how many parts the filters or channels of products of so many parts of images and rows are cut, at most."""
        return max(1, min(wanted, self._windows(images, rows) * self.multiplications // LEAST_PRODUCT))

    def _windows(self, images: int, rows: int) -> int:
        """The fewest windows of a product of so many parts of images and rows."""
        return max(1, self.images // images) * max(1, self.rows // rows) * self.row


def _more(count: int, most: int, times: int) -> int:
    """count, or a number above it and not above most with which count * times is a multiple of the threads."""
    threads = get_num_threads()
    step = threads // math.gcd(threads, times)
    return min(most, math.ceil(count / step) * step)


def run_tasks(
    tasks: Sequence[Sequence[Block]], work: Callable[[Sequence[Block], Scratch], None], dtype: DTypeLike, keep: bool
) -> None:
    """work(task, scratch) for every task, on all threads; a thread's tasks use one Scratch; keep: from call to call."""

    def some(part: slice) -> None:
        with kept_scratch(dtype) if keep else nullcontext(Scratch(dtype)) as scratch:
            for task in tasks[part]:
                work(task, scratch)

    run(partial(some, part) for part in parts(len(tasks), each=2))
