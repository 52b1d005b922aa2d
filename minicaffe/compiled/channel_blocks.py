"""The division of the ROI family's compiled loops into tasks: blocks of an image's channels, with channels last.

A loop over the channels of a pixel then runs over contiguous memory, which the compiler vectorises. A block owns its channels'
pixels and bins, so every sum is added in the order of the rois, whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled.jit import loop
from minicaffe.compiled.vectors import turn
from minicaffe.layers.roi.roi_geometry import Ints
from minicaffe.threads import Scratch, get_num_threads, parts, run

BLOCK = 5 * 2**18
"""Approximate bytes of a block, unless LEAST channels have more. The loops read it from a core's cache many times."""

LEAST = 32
"""Least channels of a block, if there are as many. Fewer would not fill the compiler's vectors."""

TOGETHER = 8
"""A place's pixel has a multiple of TOGETHER channels, so that the compiler's vectors leave fewer channels to process one by
one."""

Work = Callable[[Array, Ints, int], object]
"""(pixels (H, W, C') of a block, the rois of its image (R',), its first channel)."""

Part = tuple[int, int, Array]
"""Places of a grid: the first, one past the last; and memory (H, W, D') for the pixels of one place. Channels after the first
D are 0."""

PLACE_TYPES = "int64, int64, T[:,:,::1]"
"""The types of a Part's arrays, for loops."""

PlaceWork = Callable[[Part, Array, Ints], object]
"""(part of the grid, maps (D, G * G, H * W) of an image, the rois of the image (R',))."""


def pool_blocks(work: Work, x: Array, images: Ints, border: int = 0) -> None:
    """Run work on blocks of x (N, C, H, W), on all threads. images (R,): those of the rois.

    border: rows and columns of zeros after a map.
    """
    given = read_only(x)

    def pool(task: tuple[int, slice, Ints], scratch: Scratch) -> None:
        n, block, rois = task
        work(_channels_last(given[n, block], scratch, border), rois, block.start)

    blocks = channel_blocks(x.shape[1], x[:1].nbytes)
    _run_all(pool, [(n, block, rois) for n, rois in _used(images) for block in blocks], x.dtype)


def add_to_blocks(work: Work, dx: Array, images: Ints) -> None:
    """Fill dx (N, C, H, W), contiguous, with what work adds to zeros, on all threads. images (R,): those of the rois."""

    def add(task: tuple[int, slice], scratch: Scratch) -> None:
        n, block = task
        pixels = _zeros(dx[n, block], scratch)
        work(pixels, np.flatnonzero(images == n), block.start)
        write_place(pixels, dx[n, block].reshape(pixels.shape[2], 1, -1), 0)

    blocks = channel_blocks(dx.shape[1], dx[:1].nbytes)
    _run_all(add, [(n, block) for n in range(len(dx)) for block in blocks], dx.dtype)


def pool_places(work: PlaceWork, x: Array, images: Ints, group: int) -> None:
    """Run work on the grid's places, on all threads. x (N, D * G * G, H, W) has channels for each place."""
    maps = read_only(_places(x, group))

    def pool(task: tuple[int, Ints, slice], scratch: Scratch) -> None:
        n, rois, places = task
        work((places.start, places.stop, _pixels(x, maps.shape[1], scratch)), maps[n], rois)

    _run_all(pool, [(n, rois, places) for n, rois in _used(images) for places in parts(group**2, each=2)], x.dtype)


def add_to_places(work: PlaceWork, dx: Array, images: Ints, group: int) -> None:
    """Run work, which overwrites dx, on the grid's places, on all threads. dx: (N, D * G * G, H, W)."""
    maps = _places(dx, group)

    def add(task: tuple[int, slice], scratch: Scratch) -> None:
        n, places = task
        part = places.start, places.stop, _pixels(dx, maps.shape[1], scratch)
        work(part, maps[n], np.flatnonzero(images == n))

    _run_all(add, [(n, places) for n in range(len(dx)) for places in parts(group**2, each=2)], dx.dtype)


@loop("Array(T, 3, 'C', True), T[:,:,::1], int64")
def read_place(x: Array, pixels: Array, place: int) -> None:
    """Copy x (D, G * G, H * W) at a place of the grid to the first D channels of pixels (H, W, D')."""
    dim, places, size = x.shape
    turn(x.reshape(-1), place * size, places * size, pixels.reshape(-1), 0, pixels.shape[2], size, dim)


@loop("T[:,:,::1], T[:,:,::1], int64")
def write_place(pixels: Array, dx: Array, place: int) -> None:
    """Copy the first D channels of pixels (H, W, D') to dx (D, G * G, H * W) at a place of the grid."""
    dim, places, size = dx.shape
    turn(pixels.reshape(-1), 0, pixels.shape[2], dx.reshape(-1), place * size, places * size, dim, size)


@loop("Array(T, 3, 'C', True), T[:,:,::1]")
def read_pixels(x: Array, pixels: Array) -> None:
    """Copy x (C, H, W) to the first rows and columns of pixels (H', W', C)."""
    (channels, height, width), across = x.shape, pixels.shape[1]
    for h in range(height):
        turn(x.reshape(-1), h * width, height * width, pixels.reshape(-1), h * across * channels, channels, width, channels)


def channel_blocks(channels: int, size: int) -> list[slice]:
    """Return the channels' blocks as slices. size: bytes of an image."""
    return parts(channels, LEAST, -(-size // (BLOCK * get_num_threads()))) if channels else []


def read_only(array: Array) -> Array:
    """Return a contiguous read-only view, as blobs give for reading: Numba compiles separate code for writable arrays."""
    view: Array = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _run_all(work: Callable[[Any, Scratch], None], tasks: Sequence[Any], dtype: np.dtype[Any]) -> None:
    """Run work for each task, in parts that share their scratch memory."""

    def some(mine: slice) -> None:
        scratch = Scratch(dtype)
        for task in tasks[mine]:
            work(task, scratch)

    run(partial(some, mine) for mine in parts(len(tasks), each=2))


def _channels_last(x: Array, scratch: Scratch, border: int) -> Array:
    """Return a copy of x (C, H, W) as (H + border, W + border, C), with zeros in the border."""
    channels, height, width = x.shape
    pixels: Array = scratch("pixels", height + border, width + border, channels)
    pixels[height:], pixels[:, width:] = 0, 0
    read_pixels(x, pixels)
    return pixels


def _zeros(x: Array, scratch: Scratch) -> Array:
    """Return zeros (H, W, C) for x (C, H, W)."""
    pixels: Array = scratch("pixels", *x.shape[1:], len(x))
    pixels[...] = 0
    return pixels


def _used(images: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each image that has rois, with their numbers (R',)."""
    yield from ((n, np.flatnonzero(images == n)) for n in np.unique(images).tolist())


def _places(x: Array, group: int) -> Array:
    """Return a view (N, D, G * G, H * W) of x (N, D * G * G, H, W), contiguous."""
    n, channels, height, width = x.shape
    return x.reshape(n, channels // group**2, group**2, height * width)


def _pixels(x: Array, channels: int, scratch: Scratch) -> Array:
    """Return memory (H, W, D') for a place's pixels of this many channels, with zeros after them."""
    pixels: Array = scratch("pixels", *x.shape[2:], -(-channels // TOGETHER) * TOGETHER)
    pixels[:, :, channels:] = 0
    return pixels
