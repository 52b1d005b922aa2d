"""What the compiled loops of the ROI family work on: blocks of an image's channels, channels last, each of them a task.

A loop over the channels of a pixel is then one over contiguous memory, which the compiler vectorises. A block owns its
channels' pixels and bins, so that every sum is added in the order of the rois, on however many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.blocks import Scratch
from minicaffe.threads import get_num_threads, parts, run

from .roi_geometry import Ints

BLOCK = 5 * 2**18
"""Bytes of a block, about, unless LEAST channels have more: the loops read it from a core's cache again and again."""

LEAST = 32
"""Channels of a block where there are as many: fewer than the compiler's vectors are made for."""

Work = Callable[[Array, Ints, int], object]
"""(pixels (H, W, C') of a block, the rois of its image (R',), its first channel)."""

PlaceWork = Callable[[Array, Ints, int, int], object]
"""(pixels (H, W, D) of a place in the grid, the rois of its image (R',), the place's row and column)."""


def pool_blocks(work: Work, x: Array, images: Ints, border: int = 0) -> None:
    """work on x (N, C, H, W), on all threads; images (R,): those of the rois; border: rows and columns of zeros past a map."""

    def pool(task: tuple[int, slice, Ints], scratch: Scratch) -> None:
        n, block, rois = task
        work(_channels_last(x[n, block], scratch, border), rois, block.start)

    _run_all(pool, ((n, block, rois) for n, rois in _used(images) for block in channel_blocks(x.shape[1], x[:1].nbytes)))


def add_to_blocks(work: Work, dx: Array, images: Ints) -> None:
    """dx (N, C, H, W) = what work adds to the blocks' zeros, on all threads; images (R,): those of the rois."""

    def add(task: tuple[int, slice], scratch: Scratch) -> None:
        n, block = task
        pixels = _zeros(dx[n, block], scratch)
        work(pixels, np.flatnonzero(images == n), block.start)
        dx[n, block] = pixels.transpose(2, 0, 1)

    _run_all(add, ((n, block) for n in range(len(dx)) for block in channel_blocks(dx.shape[1], dx[:1].nbytes)))


def pool_places(work: PlaceWork, x: Array, images: Ints, group: int) -> None:
    """work on the places of a grid that x (N, D * G * G, H, W) has channels for, on all threads."""
    maps = _places(x, group)

    def pool(task: tuple[int, Ints, int, int], scratch: Scratch) -> None:
        n, rois, i, j = task
        work(_channels_last(maps[n, :, i, j], scratch), rois, i, j)

    _run_all(pool, ((n, rois, i, j) for n, rois in _used(images) for i in range(group) for j in range(group)))


def add_to_places(work: PlaceWork, dx: Array, images: Ints, group: int) -> None:
    """dx (N, D * G * G, H, W) = what work adds to the zeros of the grid's places, on all threads."""
    maps = _places(dx, group)

    def add(task: tuple[int, int, int], scratch: Scratch) -> None:
        n, i, j = task
        pixels = _zeros(maps[n, :, i, j], scratch)
        work(pixels, np.flatnonzero(images == n), i, j)
        maps[n, :, i, j] = pixels.transpose(2, 0, 1)

    _run_all(add, ((n, i, j) for n in range(len(dx)) for i in range(group) for j in range(group)))


def channel_blocks(channels: int, size: int) -> list[slice]:
    """The channels in blocks; size: the bytes of an image."""
    return parts(channels, LEAST, -(-size // (BLOCK * get_num_threads()))) if channels else []


def read_only(array: Array) -> Array:
    """The array, contiguous, as a blob hands it out to read: Numba compiles a loop for each, read-only and writable."""
    view: Array = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _run_all(work: Callable[[Any, Scratch], None], tasks: Iterable[Any]) -> None:
    """Run work for each task, in parts that have their memory in common."""
    todo = list(tasks)

    def some(mine: slice) -> None:
        scratch = Scratch()
        for task in todo[mine]:
            work(task, scratch)

    run(partial(some, mine) for mine in parts(len(todo), each=2))


def _channels_last(x: Array, scratch: Scratch, border: int = 0) -> Array:
    """x (C, H, W) -> a copy (H + border, W + border, C), with zeros in the border."""
    channels, height, width = x.shape
    pixels: Array = scratch("pixels", height + border, width + border, channels, dtype=x.dtype)
    pixels[:height, :width] = x.transpose(1, 2, 0)
    pixels[height:], pixels[:, width:] = 0, 0
    return pixels


def _zeros(x: Array, scratch: Scratch) -> Array:
    """Pixels (H, W, C) for x (C, H, W)."""
    pixels: Array = scratch("pixels", *x.shape[1:], len(x), dtype=x.dtype)
    pixels[...] = 0
    return pixels


def _used(images: Ints) -> Iterator[tuple[int, Ints]]:
    """Each image that has rois, and which they are (R',)."""
    yield from ((n, np.flatnonzero(images == n)) for n in np.unique(images).tolist())


def _places(x: Array, group: int) -> Array:
    """x (N, D * G * G, H, W) -> a view (N, D, G, G, H, W)."""
    places: Array = x.reshape(len(x), x.shape[1] // group**2, group, group, *x.shape[2:])
    return places
