"""3x3 convolutions of stride 1 by Winograd's F(4x4, 3x3): 36 products for 16 outputs instead of 144.

    y = outputs of [ tiles of x (6, 6, T, C) @ factors of weight (6, 6, C, M) ]

Fast because every step is a matrix product (winograd_tiles), or a compiled loop (winograd_loops), on blocks of tiles that
stay in a core's cache, each block a task. Blocks that come out infinite or NaN are computed again by the direct way: Winograd
overflows earlier, and one NaN would reach its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from minicaffe import blocks, loops, threads
from minicaffe.blob import Array, Blob
from minicaffe.blocks import BlobJob, Calls, Job, KeptStep
from minicaffe.loops import Later, Room, address_of

from . import winograd_loops
from .convolution_blocks import LEAST_PRODUCT
from .convolve import convolve as convolve_directly
from .epilogue import EVERY, NOTHING, Epilogue
from .tiles import panel_rows
from .window import Window
from .winograd_blocks import Block, Tiling
from .winograd_loops import POWERS
from .winograd_matrices import ACROSS, BT, TILE, TOGETHER, G
from .winograd_tiles import Scratch, from_tiles, taken, to_tiles

Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Of x, weight and y."""

PANELS = 6
"""Panels whose factors a task makes, at least."""
FEW_TILES = 56
"""Tiles for each thread, below which threads share them and divide the filters."""
TASK = 2 << 20
"""Multiplications of a task, at least."""

UNPADDED = Window((3, 3), (1, 1), (0, 0), (1, 1))
MATRIX: Array = G.astype(np.float32)
FACTOR: Array = np.kron(G, G).astype(np.float32)
"""(36, 9): the 36 factors of a 3x3 filter."""
LOOPS = (winograd_loops.make_factors, winograd_loops.convolve_planes)
"""What convolve runs, if loops are compiled."""


def convolve(
    x: Array,
    weight: Array,
    window: Window,
    group: int,
    y: Array,
    epilogue: Epilogue = NOTHING,
    *,
    factors: Array | None = None,
) -> None:
    """y (N, M, *size) = x (N, C, H, W) convolved with weight (M, C / group, 3, 3), then the epilogue; y is overwritten.

    All float32, the window 3x3 of stride 1; a padding below 0 leaves out the map's rim, and y may be smaller or larger
    than the window gives. factors: factors_of(weight, group), if at hand.
    """
    if factors is None:
        with blocks.kept_scratch(np.float32) as memory:
            made = factors_of(weight, group, memory("winograd", *factors_shape(weight.shape, group)))
            convolve(x, weight, window, group, y, epilogue, factors=made)
        return
    shapes = x.shape, weight.shape, y.shape
    if takes_loops(factors, shapes) and x.flags.c_contiguous and y.flags.c_contiguous:  # they take maps as flat arrays
        LoopsProduct(window, group, shapes, factors, epilogue)(x, weight, y)
        return
    least = -(-LEAST_PRODUCT * group * group // (x.shape[1] * y.shape[1]))
    tiling = Tiling(len(x), y.shape[2:], window.pad, window.dilation)
    all_ = tiling.blocks(tiles_at_once(max(x.shape[1], y.shape[1]) // group), least)
    parts = [_Part(block, g, slice(0, factors.shape[2])) for block in all_ for g in range(group)]
    free: list[Scratch] = []  # as many as threads have run at once; append and pop are atomic

    def work(part: _Part) -> None:
        scratch = taken(free)
        part.compute(tiling, x, weight, factors, y, epilogue, scratch)
        free.append(scratch)

    threads.run(partial(work, part) for part in parts)


def takes_loops(factors: Array, shapes: Shapes) -> bool:
    """Whether compiled loops take these factors, which may have been made before loops were compiled."""
    return loops.compiled() and factors.shape[4] == _panel_rows(shapes[1][0] // len(factors))


@dataclass(frozen=True)
class _Part:
    """What a task computes: of a block, the filters in some panels of a group."""

    block: Block
    group: int
    panels: slice

    def filters(self, factors: Sequence[int], all_: int) -> slice:
        """Of the layer's."""
        each, start = all_ // factors[0], self.group * (all_ // factors[0])
        rows = factors[4]
        return slice(start + self.panels.start * rows, start + min(each, self.panels.stop * rows))

    def compute(  # noqa: PLR0917
        self, tiling: Tiling, x: Array, weight: Array, factors: Array, y: Array, epilogue: Epilogue, scratch: Scratch
    ) -> None:
        """By products of NumPy's."""
        filters, channels = self.filters(factors.shape, len(weight)), channels_of(x.shape[1], len(factors))[self.group]
        made = factors[self.group, :, self.panels]
        out = _outputs(tiling, self.block, x[:, channels], weight[filters], made, scratch)
        epilogue(out, filters)
        tiling.write(self.block, out, y[:, filters])


class LoopsProduct:
    """convolve by compiled loops: y of x and weight, arrays of these shapes, one thread at a time. factors: of the weights."""

    def __init__(self, window: Window, group: int, shapes: Shapes, factors: Array, epilogue: Epilogue) -> None:
        self._tiling, self._parts, calls = _calls(window, group, shapes, factors.shape, threads.get_num_threads())
        self._shapes, self._factors, self._epilogue = shapes, factors, epilogue
        self._after, self._finite = epilogue.table(EVERY, shapes[1][0], np.float32), np.zeros(len(self._parts), np.float32)
        self._job = Job(calls, self._finite)

    def __call__(self, x: Array, weight: Array, y: Array) -> None:
        self._job.run(*map(address_of, (x, self._factors, self._after, self._finite, y)))
        self._mend(x, weight, y)

    def step(self, x: Blob, weight: Blob, y: Blob) -> KeptStep:
        """The same of blobs."""
        job = BlobJob(self._job, (x, self._factors, self._after, self._finite), y)

        def mend() -> None:
            arrays = (x.data_for_loops(), weight.data_for_loops(), y.data)
            self._mend(*(array.reshape(shape) for array, shape in zip(arrays, self._shapes, strict=True)))

        return KeptStep([job], mend=mend)

    def _mend(self, x: Array, weight: Array, y: Array) -> None:
        for number in np.flatnonzero(self._finite):  # NaN: outputs that are not finite are to be made anew
            self._parts[number].compute(self._tiling, x, weight, self._factors, y, self._epilogue, Scratch())


@lru_cache(maxsize=512)
def _calls(
    window: Window, group: int, shapes: Shapes, factors: tuple[int, ...], workers: int
) -> tuple[Tiling, list[_Part], Calls]:
    """How arrays of these shapes are cut among so many threads, and the calls of convolve_planes for the parts."""
    (images, channels, *_), (filters, depth, *_), (*_, height, width) = shapes
    tiling = Tiling(images, (height, width), window.pad, window.dilation)
    most, each = tiles_at_once(max(channels, filters) // group), depth * filters // group
    blocks, lanes = _cut(tiling, most, factors[2], each, workers)
    parts = [_Part(block, g, lane) for block in blocks for g in range(group) for lane in lanes]
    arrays = [Later(0, (math.prod(shapes[0]),)), Later(0, (3, filters)), Later(0, (math.prod(shapes[2]),))]
    calls = [_call(tiling, part, shapes, factors, arrays, number) for number, part in enumerate(parts)]
    return tiling, parts, Calls(winograd_loops.convolve_planes, np.float32, calls)


def _call(
    tiling: Tiling, part: _Part, shapes: Shapes, factors: tuple[int, ...], arrays: Sequence[Later], number: int
) -> tuple[object, ...]:
    """What convolve_planes takes for a part, the one of this number. arrays: x, after and y."""
    x, after, y = arrays
    (_, channels, *size), _, (_, filters, *out_size) = shapes
    group, _, all_panels, depth, each = factors
    mine, panels = part.filters(factors, filters), part.panels.stop - part.panels.start
    planes = np.empty((len(part.block.planes), 6), np.int64)
    first = channels_of(channels, group)[part.group].start
    for row, plane in zip(planes, part.block.planes, strict=True):
        image, *start = tiling.start(part.block, plane, tiling.pad)
        row[:3] = (image * channels + first) * math.prod(size), *start
        image, *start = tiling.start(part.block, plane, (0, 0))
        row[3:] = (image * filters + mine.start) * math.prod(out_size), *start
    rows, columns, apart = len(part.block.rows), len(part.block.groups) * TOGETHER, all_panels * depth * each
    lengths = winograd_loops.memory_sizes(rows, columns, len(planes), depth, panels * each)
    begin = part.group * 36 * apart + part.panels.start * depth * each
    of = Later(begin, (35 * apart + panels * depth * each,))
    sizes = depth, *size, mine.stop - mine.start, *out_size, rows, columns, *tiling.dilation, panels, each, apart
    memory, finite = Room(0, (sum(lengths),)), Later(number, (1,))
    return x, of, after, finite, y, memory, POWERS, planes, (*sizes, *lengths[:3], mine.start)


def _cut(tiling: Tiling, most: int, panels: int, factors: int, workers: int) -> tuple[list[Block], list[slice]]:
    """Blocks of at most about `most` tiles, and the parts of the filters' panels: where there are few tiles, each thread
    transforms them for filters of its own. factors: of one of the 36 matrices; workers: most threads."""
    rows, groups = tiling.tiles
    tiles = tiling.planes * rows * groups * TOGETHER
    workers = max(1, min(workers, 36 * tiles * factors // TASK))
    lanes = min(workers, panels) if tiles < FEW_TILES * workers else 1
    blocks = list(tiling.blocks(most, workers=-(-workers // lanes)))
    return blocks, threads.cut(panels, lanes)


def factors_of(weight: Array, group: int, out: Array | None = None) -> Array:
    """weight (M, C / group, 3, 3), float32 -> G w G^T in panels, (group, 36, panels, C / group, rows): four times its size.

    rows: filters of a panel, those past M / group 0; all where loops are not compiled. out: where to make them.
    """
    m, c = len(weight) // group, weight.shape[1]
    factors = np.empty(factors_shape(weight.shape, group), np.float32) if out is None else out
    if (panels := factors.shape[2]) == 1:
        filters = weight.reshape(group, m, c, 9).transpose(0, 2, 3, 1)
        by_channel = factors[:, :, 0, :, :m].swapaxes(1, 2)  # (group, C, 36, M): the products land transposed, without a copy
        factors[..., m:] = 0
        threads.run(partial(np.matmul, FACTOR, filters[:, part], out=by_channel[:, part]) for part in threads.parts(c, 32))
        return factors
    given = np.broadcast_to(weight, (2, *weight.shape))  # twice: Numba would compile contiguous arrays another time
    threads.run(
        partial(winograd_loops.make_factors, given[:, g * m : (g + 1) * m], MATRIX, factors[g], part.start, part.stop)
        for g in range(group)
        for part in threads.parts(panels, PANELS, 2)
    )
    return factors


def factors_shape(weight: Sequence[int], group: int) -> tuple[int, ...]:
    """The shape of the factors of weights of this shape."""
    filters = weight[0] // group
    rows = _panel_rows(filters)
    return group, 36, -(-filters // rows), weight[1], rows


def _panel_rows(filters: int) -> int:
    """Filters of a panel; all where loops are not compiled, as NumPy's products want them."""
    return panel_rows(loops.registers(32)) if loops.compiled() else filters


def unpanelled(factors: Array, filters: int) -> Array:
    """One group's factors (36, panels, C, rows) as (6, 6, C, filters)."""
    _, panels, channels, rows = factors.shape
    columns: Array = factors[:, 0] if panels == 1 else factors.swapaxes(1, 2).reshape(36, channels, panels * rows)
    return columns[..., :filters].reshape(6, 6, channels, filters)


def turned(weight: Array, group: int) -> Array:
    """The weights (C, M / group, 3, 3) of the convolution that is the data gradient of one with weight (M, C / group, 3, 3)."""
    m, c = weight.shape[:2]
    # a correlation's gradient correlates with kernels turned by 180 degrees, filters and channels exchanged
    filters: Array = weight.reshape(group, m // group, c, 3, 3)[..., ::-1, ::-1].swapaxes(1, 2)
    return filters.reshape(group * c, m // group, 3, 3)


def turned_window(window: Window) -> Window:
    """That convolution's window: it pads by what the other leaves."""
    return Window(window.kernel, window.stride, tuple(2 * d - p for d, p in zip(window.dilation, window.pad)), window.dilation)


def tiles_at_once(channels: int) -> int:
    """Tiles of a block, measured: many channels need many tiles, since each block reads all factors from memory."""
    return 192 if channels <= 256 else 256  # with 192 tiles and 256 channels a thread's tiles take 7 MB


def channels_of(channels: int, group: int) -> list[slice]:
    """Each group's channels."""
    each = channels // group
    return [slice(g * each, (g + 1) * each) for g in range(group)]


def read(tiling: Tiling, block: Block, x: Array, scratch: Scratch) -> Array:
    """The block's slab of x (N, C, H, W): (S, C, rows + 2, columns + 2), zeros where x ends."""
    slab = scratch.next(len(block.planes), x.shape[1], *block.inputs)
    tiling.read(block, x, slab)
    return slab


def _outputs(tiling: Tiling, block: Block, x: Array, weight: Array, factors: Array, scratch: Scratch) -> Array:
    """The block's outputs (S, M, rows, columns), in scratch: of weight (M, C, 3, 3) and its factors (36, panels, C, rows)."""
    slab = read(tiling, block, x, scratch)
    # the border of 1 on each side is no output
    s, rows, columns, m = len(slab), slab.shape[2] - 2, slab.shape[3] - 2, len(weight)
    with np.errstate(invalid="ignore", over="ignore"):
        tiles = to_tiles(slab, ACROSS, BT, scratch)
        products = scratch.next(6, s * (rows // TILE) * (columns // TILE), 6, m)
        by_channel = unpanelled(factors, m)
        np.matmul(tiles.swapaxes(1, 2), by_channel, out=products.swapaxes(1, 2))  # (6, 6, T, C) @ (6, 6, C, M): the 36 products
        out = from_tiles(products, (s, m, rows, columns), scratch)
        if not all_finite(out):
            # the slab's buffer has been overwritten: read again
            convolve_directly(read(tiling, block, x, scratch), weight, UNPADDED, 1, out)
    return out


def all_finite(x: Array) -> bool:
    """Whether no number of a contiguous x is infinite or NaN; False too where squares overflow. Much cheaper than isfinite."""
    flat = x.reshape(-1)
    return math.isfinite(np.dot(flat, flat))  # squares cannot cancel: an inf or a NaN stays in the sum
