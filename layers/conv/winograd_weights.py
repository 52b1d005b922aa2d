"""The weight gradient of a 3x3 convolution, or of a larger one in 3x3 pieces, by Winograd: the forward pass's transpose.

    dweight = G^T [ sum over tiles of (BT x B) * (A dy A^T) ] G

The sum over tiles is 36 matrix products, filters by tiles by channels. Tiles of x and dy are made, about MOST_BYTES at a
time, by all threads block by block, and then multiplied by all threads position by position: so no thread needs separate
sums (36 numbers for each filter and channel), and each number is added up in one order, whatever the threads. Where all tiles
of dy have room, the sums are those of some channels at a time, and stay in the cache until they are transformed back.

Values that a whole channel of x or dy hardly outweighs are set aside (winograd_outliers), and multiplied directly: rounding is
relative to a tile's largest value, which some taps do not read, and which meets zeros of a sparse dy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from minicaffe import threads
from minicaffe.blob import Array
from minicaffe.threads import get_num_threads

from .window import Window
from .winograd import (
    FACTOR,
    UNPADDED,
    Shapes,
    all_finite,
    blocks_of,
    channels_of,
    factors_shape,
    maps_shape,
    tiles_at_once,
    window_of_phases,
)
from .winograd_outliers import Outliers, direct_gradient
from .winograd_tiles import ACROSS, AT, BACK, BT, TAPS, Block, Scratch, Tiling, add_pieces, count_of_pieces, to_tiles

A: Array = np.ascontiguousarray(AT.T)
WORKERS = 8
"""The number of threads for which the tiles are cut."""
WAYS = {"x": (2, ACROSS, BT), "dy": (0, BACK, A)}
"""The overlap of tiles, and the matrices across and down. A dy A^T has from_tiles' matrices, transposed."""
MOST_BYTES = 48 << 20
"""Approximate bytes of tiles of x and dy together, made at a time."""
MOST_SUMS = 16 << 20
"""Approximate bytes of sums at a time, if the tiles of dy are made only once."""


def add_weight_gradient(x: Array, dy: Array, window: Window, group: int, dweight: Array) -> bool:
    """Add to dweight (M, C / group, *kernel) the gradient from dy (N, M, *windows) and x (N, C, H, W); all float32.

    Return False, with dweight unchanged, if the gradient is not finite: the direct product finds the numbers that are.
    """
    gradient = np.empty((len(dweight), count_of_pieces(window), dweight.shape[1], TAPS, TAPS), np.float32)
    outliers = Outliers.of(x), Outliers.of(dy)
    aside = direct_gradient(x, dy, outliers, window, dweight.shape) if any(one.values.size for one in outliers) else None
    x, dy = outliers[0].without(x), outliers[1].without(dy)
    with threads.kept_scratch(np.float32) as memory:
        for channels, filters in zip(channels_of(x.shape[1], group), channels_of(dy.shape[1], group)):
            _make_gradient(x[:, channels], dy[:, filters], window, gradient[filters], memory)
    # Check before adding: on failure, dweight must stay unchanged.
    if not all_finite(gradient) or (aside is not None and not np.isfinite(aside).all()):
        return False
    threads.run(partial(add_pieces, gradient[part], window, dweight[part]) for part in threads.parts(len(dweight)))
    if aside is not None:
        dweight += aside
    return True


class Cut(NamedTuple):
    """The parts in which the gradient of a group is computed.

    chunks: of the channels; batches: blocks of tiles that are made at a time; sizes: in numbers, of the memory for sums, for
    tiles of dy and for tiles of x.
    """

    chunks: list[slice]
    batches: list[list[Block]]
    sizes: tuple[int, int, int]

    @classmethod
    def of(cls, tiling: Tiling, m: int, p: int, c: int) -> Cut:
        """Return the cut for m filters and c channels in p pieces."""
        # Cut for a fixed number of threads: the order of the sums must not depend on the real number.
        all_ = list(tiling.blocks(tiles_at_once(max(p * c, m)), workers=WORKERS))
        # A tile has 36 float32 numbers (144 bytes) for each piece of a channel and for each filter. So have the sums.
        chunks = threads.cut(c, -(-144 * p * c * m // MOST_SUMS))
        batches = list(_batches(all_, MOST_BYTES // (144 * (p * chunks[0].stop + m))))
        if len(batches) > 1:  # each chunk would compute dy's tiles again
            chunks, batches = [slice(0, c)], list(_batches(all_, MOST_BYTES // (144 * (p * c + m))))
        width, most = p * chunks[0].stop, max(map(_count, batches))
        return cls(chunks, batches, (36 * m * width, 36 * most * m, 36 * most * width))


def _make_gradient(x: Array, dy: Array, window: Window, gradient: Array, memory: threads.Scratch) -> None:
    """Compute gradient (M, pieces, C, 3, 3) of a group."""
    m, p, c = gradient.shape[:3]
    tiling = Tiling(len(x), dy.shape[2:], window)
    # A tile of dy holds the 4x4 outputs of a 6x6 tile of x.
    unpadded = replace(tiling, window=replace(UNPADDED, dilation=window.dilation))
    chunks, batches, sizes = Cut.of(tiling, m, p, c)
    for_sums, for_dy, for_x = np.split(memory("large", sum(sizes)), list(accumulate(sizes))[:-1])
    of_dy = None
    for channels in chunks:
        count = p * (channels.stop - channels.start)
        sums = for_sums[: 36 * m * count].reshape(36, m, count)
        for number, batch in enumerate(batches):
            if of_dy is None or number:
                of_dy = _tiles("dy", unpadded, batch, dy, for_dy)
            of_x, add = _tiles("x", tiling, batch, x[:, channels], for_x), number > 0
            pairs = [(of_dy[i, :, j], of_x[i, :, j], sums[6 * i + j]) for i in range(6) for j in range(6)]
            threads.run(partial(_multiply, *pair, add) for pair in pairs)
        _fold(sums, gradient[:, :, channels])


def _tiles(name: str, tiling: Tiling, batch: Sequence[Block], maps: Array, memory: Array) -> Array:
    """Return the tiles (6, T, 6, pieces * C) of the batch's blocks of maps (N, C, H, W), transformed by WAYS[name]."""
    (overlap, across, down), scratch = WAYS[name], Scratch()
    channels = count_of_pieces(tiling.window) * maps.shape[1]
    ends = list(accumulate((block.tiles for block in batch), initial=0))  # where each block's tiles begin in the batch
    made = memory[: 36 * ends[-1] * channels].reshape(6, ends[-1], 6, channels)

    def make(block: Block, first: int, last: int) -> None:
        height, width = (length - 2 + overlap for length in block.inputs)
        slab = scratch.next(len(block.planes), channels, height, width)
        tiling.read(block, maps, slab)
        with np.errstate(invalid="ignore", over="ignore"):
            to_tiles(slab, across, down, scratch, made[:, first:last])

    threads.run(partial(make, block, *part) for block, part in zip(batch, pairwise(ends), strict=True))
    return made


def _multiply(tiles_of_dy: Array, tiles_of_x: Array, sums: Array, add: bool) -> None:
    """Compute sums (M, C) = or += tiles_of_dy (T, M)^T @ tiles_of_x (T, C)."""
    with np.errstate(invalid="ignore", over="ignore"):
        if add:
            sums += tiles_of_dy.T @ tiles_of_x
        else:
            np.matmul(tiles_of_dy.T, tiles_of_x, out=sums)


def _fold(sums: Array, gradient: Array) -> None:
    """Compute gradient (M, pieces, C, 3, 3) = G^T sums G, sums (36, M, pieces * C)."""
    m, p, c = gradient.shape[:3]

    def fold(part: slice) -> None:
        with np.errstate(invalid="ignore", over="ignore"):
            made = FACTOR.T @ sums[:, part].reshape(36, -1)  # G^T S G of all filters, flattened: kron(G, G)^T S
        for tap, numbers in enumerate(made.reshape(9, -1, p, c)):
            gradient[part, :, :, tap // TAPS, tap % TAPS] = numbers

    threads.run(partial(fold, part) for part in threads.parts(m, 8, -(-m // (8 * threads.get_num_threads()))))


def _batches(all_: list[Block], tiles: int) -> Iterator[list[Block]]:
    """Yield the blocks in order, in batches of at most `tiles` tiles, but at least one block."""
    batch: list[Block] = []
    for block in all_:
        if batch and _count(batch) + block.tiles > tiles:
            yield batch
            batch = []
        batch.append(block)
    if batch:
        yield batch


def _count(batch: Sequence[Block]) -> int:
    return sum(block.tiles for block in batch)


class Numbers(NamedTuple):
    """Counts of the float32 numbers that a pass holds.

    tiles: of all threads' blocks; large: factors, or sums and tiles of a weight gradient, which stay for the next pass; maps:
    of a stride's phases, which also stay; weights: copies of the weights or of their gradient, transposed or in pieces.
    """

    tiles: int
    large: int = 0
    maps: int = 0
    weights: int = 0


def working_bytes(passes: Iterable[Numbers]) -> int:
    """Return the bytes of these passes, run one after the other."""
    return sum(4 * max(numbers) for numbers in zip(*passes))


def of_passes(shapes: Shapes, window: Window, group: int, *, made: bool) -> Sequence[Numbers]:
    """Return the numbers of convolve, data_gradient and add_weight_gradient. made: whether convolve computes the factors."""
    return (
        _of_convolve(shapes, window, group, made=made),
        _of_data_gradient(shapes, window, group),
        _of_weight_gradient(shapes, window, group),
    )


def _of_convolve(shapes: Shapes, window: Window, group: int, *, made: bool) -> Numbers:
    """Count two buffers for each thread of a block's transformed tiles: 36 numbers for each tile and channel."""
    x, weight, y = shapes
    factors, tiling = factors_shape(weight, window, group), Tiling(x[0], y[2:], window)
    depth, filters = factors[3], weight[0] // group
    tiles = max(block.tiles for block in blocks_of(tiling, depth, filters))
    of_tiles = get_num_threads() * 2 * 36 * tiles * max(depth, filters)
    if not made:
        return Numbers(of_tiles)
    pieces = 0 if window.kernel == (TAPS, TAPS) else weight[0] * depth * TAPS * TAPS
    return Numbers(of_tiles, large=math.prod(factors), weights=pieces)


def _of_data_gradient(shapes: Shapes, window: Window, group: int) -> Numbers:
    x, weight, y = shapes
    dense = window_of_phases(window)
    filters = weight[1] * group * math.prod(window.stride), weight[0] // group, *dense.kernel
    images, *of_image = maps_shape(x, filters[0], window)
    maps = (images, *of_image)
    turned = _of_convolve(((images, *y[1:]), filters, maps), dense, group, made=True)
    of_maps = 0 if window.stride == (1, 1) else math.prod(maps)
    return turned._replace(maps=of_maps, weights=turned.weights + math.prod(filters))


def _of_weight_gradient(shapes: Shapes, window: Window, group: int) -> Numbers:
    """Count no tiles: each thread holds fewer than in convolve."""
    x, weight, y = shapes
    pieces, filters, channels = count_of_pieces(window), weight[0] // group, weight[1]
    cut = Cut.of(Tiling(x[0], y[2:], window), filters, pieces, channels)
    return Numbers(0, large=sum(cut.sizes), weights=weight[0] * pieces * channels * TAPS * TAPS)
