"""3x3 convolutions of stride 1, and larger ones in such pieces, by Winograd's F(4x4, 3x3): 36 products for 16 outputs, not 144.

    y = outputs of [ tiles of x (6, 6, T, C) @ factors of weight (6, 6, C, M) ]

Fast because every step is a matrix product (winograd_tiles), or a compiled loop (winograd_loops), on blocks of tiles that
stay in a core's cache, each block a task. Tiles with outliers (winograd_outliers), and those that come out infinite or NaN, are
computed again by the direct way: Winograd overflows earlier, and one NaN would reach its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, product

import numpy as np

from minicaffe import blocks, loops, threads
from minicaffe.blob import Array, Blob
from minicaffe.blocks import BlobJob, Calls, Job, KeptStep
from minicaffe.loops import Later, Room, address_of

from . import winograd_loops, winograd_outliers
from .convolution_blocks import LEAST_PRODUCT
from .convolve import data_gradient as data_gradient_directly
from .epilogue import EVERY, NOTHING, Epilogue
from .tiles import panel_rows
from .window import Window
from .winograd_blocks import Block, Tiling
from .winograd_loops import POWERS
from .winograd_matrices import ACROSS, BT, TILE, TOGETHER, G
from .winograd_outliers import Flags, Taps, all_taps, taps_of_pieces
from .winograd_pieces import count_of_pieces, offsets, phases, shared_taps, taps_of_phases, to_pieces
from .winograd_tiles import Scratch, from_tiles, taken, to_tiles

Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Of x, weight and y."""

PANELS = 6
"""Panels whose factors a task makes, at least."""
FEW_TILES = 56
"""Tiles for each thread, below which threads share them and divide the filters."""
TASK = 2 << 20
"""Multiplications of a task, at least."""

MOST_SHARE = 0.4
"""Of the direct way's multiplications, up to which Winograd's are worth their transforms: 0.36 for 5x5, 0.25 for 3x3."""
MOST_MAPS = 4 << 20
"""Of the numbers of a strided convolution's data gradient, that are made at a time before they go to their places."""

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
    taps: Taps | None = None,
) -> None:
    """y (N, M, *size) = x (N, C, H, W) convolved with weight (M, C / group, *kernel), then the epilogue; y is overwritten.

    All float32, no axis of the window both strided and dilated; a padding below 0 leaves out the map's rim, and y may be
    smaller or larger than the window gives. factors: factors_of(weight, window, group), if at hand. taps: those that every
    filter has, by default all.
    """
    if factors is None:
        with blocks.kept_scratch(np.float32) as memory:
            made = factors_of(weight, window, group, memory("large", *factors_shape(weight.shape, window, group)))
            convolve(x, weight, window, group, y, epilogue, factors=made, taps=taps)
        return
    shapes = x.shape, weight.shape, y.shape
    if takes_loops(factors, shapes) and x.flags.c_contiguous and y.flags.c_contiguous:  # they take maps as flat arrays
        LoopsProduct(window, group, shapes, factors, epilogue, taps)(x, weight, y)
        return
    depth, filters = factors.shape[3], y.shape[1] // group
    tiling = Tiling(len(x), y.shape[2:], window)
    parts = [_Part(block, g, slice(0, factors.shape[2])) for block in blocks_of(tiling, depth, filters) for g in range(group)]
    flags = winograd_outliers.find(x, group, tiling, taps or all_taps(window))
    free: list[Scratch] = []  # as many as threads have run at once; append and pop are atomic

    def work(part: _Part) -> None:
        scratch = taken(free)
        part.compute(tiling, x, weight, factors, y, epilogue, scratch, flags[part.group][part.block.places])
        free.append(scratch)

    threads.run(partial(work, part) for part in parts)


def blocks_of(tiling: Tiling, depth: int, filters: int) -> Iterator[Block]:
    """Those of NumPy's products, of so many channels' pieces and filters of a group."""
    return tiling.blocks(tiles_at_once(max(depth, filters)), least=-(-LEAST_PRODUCT // (depth * filters)))


def possible(window: Window) -> bool:
    """Whether Winograd's way can take the window, with fewer multiplications: a plane's, not strided and dilated at once."""
    if len(window.kernel) != 2 or any(s > 1 and d > 1 for s, d in zip(window.stride, window.dilation)):
        return False
    return count_of_pieces(window) * 36 <= MOST_SHARE * TILE * TILE * math.prod(window.kernel)


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
        self,
        tiling: Tiling,
        x: Array,
        weight: Array,
        factors: Array,
        y: Array,
        epilogue: Epilogue,
        scratch: Scratch,
        flags: Flags,
    ) -> None:
        """By products of NumPy's, but the flagged tiles."""
        filters, channels = self.filters(factors.shape, len(weight)), channels_of(x.shape[1], len(factors))[self.group]
        made = factors[self.group, :, self.panels]
        out = _outputs(tiling, self.block, x[:, channels], made, filters.stop - filters.start, flags, scratch)
        epilogue(out, filters)
        tiling.write(self.block, out, y[:, filters])
        if flags.any():
            _mend(tiling, self.block, self.group, flags, x, weight, y, epilogue)


def _mend(  # noqa: PLR0917
    tiling: Tiling, block: Block, group: int, flags: Flags, x: Array, weight: Array, y: Array, epilogue: Epilogue
) -> None:
    """Compute these tiles of a block directly, of all filters of the group: the threads must not change a product's shape."""
    groups = x.shape[1] // weight.shape[1]
    filters, channels = channels_of(len(weight), groups)[group], channels_of(x.shape[1], groups)[group]
    slab = read(tiling, block, x[:, channels], Scratch())
    for tiles, out in winograd_outliers.outputs(slab, weight[filters], tiling.window, flags):
        epilogue(out, filters)
        for tile, of_tile in zip(tiles.tolist(), out, strict=True):
            tiling.write_tile(block, tile, of_tile, y[:, filters])


class LoopsProduct:
    """convolve by compiled loops: y of x and weight, arrays of these shapes, one thread at a time. factors: of the weights."""

    def __init__(
        self, window: Window, group: int, shapes: Shapes, factors: Array, epilogue: Epilogue, taps: Taps | None = None
    ) -> None:
        self._tiling, self._parts, calls = _calls(
            window, group, shapes, factors.shape, threads.get_num_threads(), taps or all_taps(window)
        )
        self._shapes, self._factors, self._epilogue = shapes, factors, epilogue
        self._after = epilogue.table(EVERY, shapes[1][0], np.float32)
        self._flags = np.zeros(sum(part.block.tiles for part in self._parts), np.float32)
        self._job = Job(calls, self._flags)

    def __call__(self, x: Array, weight: Array, y: Array) -> None:
        self._job.run(*map(address_of, (x, self._factors, self._after, self._flags, y)))
        self._mend(x, weight, y)

    def step(self, x: Blob, weight: Blob, y: Blob) -> KeptStep:
        """The same of blobs."""
        job = BlobJob(self._job, (x, self._factors, self._after, self._flags), y)

        def mend() -> None:
            arrays = (x.data_for_loops(), weight.data_for_loops(), y.data)
            self._mend(*(array.reshape(shape) for array, shape in zip(arrays, self._shapes, strict=True)))

        return KeptStep([job], mend=mend)

    def _mend(self, x: Array, weight: Array, y: Array) -> None:
        if not self._flags.any():
            return
        found: dict[tuple[Block, int], Flags] = {}  # of all filters: those of a block may be divided among parts
        ends = accumulate(part.block.tiles for part in self._parts)
        for part, flags in zip(self._parts, np.split(self._flags != 0, list(ends)[:-1]), strict=True):
            key, (s, r, c) = (
                (part.block, part.group),
                (len(of) for of in (part.block.planes, part.block.rows, part.block.groups)),
            )
            found[key] = found.get(key, False) | flags.reshape(s, r, c * TOGETHER)
        threads.run(
            partial(_mend, self._tiling, block, g, flags, x, weight, y, self._epilogue)
            for (block, g), flags in found.items()
            if flags.any()
        )


@lru_cache(maxsize=512)
def _calls(
    window: Window, group: int, shapes: Shapes, factors: tuple[int, ...], workers: int, taps: Taps
) -> tuple[Tiling, list[_Part], Calls]:
    """How arrays of these shapes are cut among so many threads, and the calls of convolve_planes for the parts."""
    (images, *_), (filters, *_), (*_, height, width) = shapes
    tiling, depth = Tiling(images, (height, width), window), factors[3]
    most, each = tiles_at_once(max(depth, filters // group)), depth * filters // group
    blocks, lanes = _cut(tiling, most, factors[2], each, workers)
    parts = [_Part(block, g, lane) for block in blocks for g in range(group) for lane in lanes]
    arrays = [Later(0, (math.prod(shapes[0]),)), Later(0, (3, filters)), Later(0, (math.prod(shapes[2]),))]
    firsts = accumulate((part.block.tiles for part in parts), initial=0)
    calls = [_call(tiling, part, shapes, factors, arrays, first, taps) for first, part in zip(firsts, parts)]
    return tiling, parts, Calls(winograd_loops.convolve_planes, np.float32, calls)


def _call(  # noqa: PLR0917
    tiling: Tiling, part: _Part, shapes: Shapes, factors: tuple[int, ...], arrays: Sequence[Later], first: int, taps: Taps
) -> tuple[object, ...]:
    """What convolve_planes takes for a part. arrays: x, after and y; first: the number of the part's first tile."""
    x, after, y = arrays
    (_, channels, *size), _, (_, filters, *out_size) = shapes
    group, _, all_panels, depth, each = factors
    mine, panels = part.filters(factors, filters), part.panels.stop - part.panels.start
    planes, of_group = np.empty((len(part.block.planes), 6), np.int64), channels_of(channels, group)[part.group]
    for row, plane in zip(planes, part.block.planes, strict=True):
        image, *start = tiling.inputs_at(part.block, plane)
        row[:3] = (image * channels + of_group.start) * math.prod(size), *start
        image, *start = tiling.outputs_at(part.block, plane)
        row[3:] = (image * filters + mine.start) * math.prod(out_size), *start
    rows, columns, apart = len(part.block.rows), len(part.block.groups) * TOGETHER, all_panels * depth * each
    lengths = winograd_loops.memory_sizes(rows, columns, len(planes), depth, panels * each)
    begin = part.group * 36 * apart + part.panels.start * depth * each
    of = Later(begin, (35 * apart + panels * depth * each,))
    maps = channels // group, *size, mine.stop - mine.start, *out_size
    sizes = *maps, rows, columns, *tiling.apart, *tiling.window.dilation, panels, each, apart, *lengths[:3], mine.start
    memory, flags, places = (
        Room(0, (sum(lengths),)),
        Later(first, (part.block.tiles,)),
        np.array(offsets(tiling.window), np.int64),
    )
    masks, shares = taps_of_pieces(tiling.window, taps), winograd_outliers.shares(tiling, part.block, tuple(size), taps)
    return x, of, after, flags, y, memory, POWERS, planes, places, masks, shares, sizes


def _cut(tiling: Tiling, most: int, panels: int, factors: int, workers: int) -> tuple[list[Block], list[slice]]:
    """Blocks of at most about `most` tiles, and the parts of the filters' panels: where there are few tiles, each thread
    transforms them for filters of its own. factors: of one of the 36 matrices; workers: most threads."""
    rows, groups = tiling.tiles
    tiles = tiling.planes * rows * groups * TOGETHER
    workers = max(1, min(workers, 36 * tiles * factors // TASK))
    lanes = min(workers, panels) if tiles < FEW_TILES * workers else 1
    blocks = list(tiling.blocks(most, workers=-(-workers // lanes)))
    return blocks, threads.cut(panels, lanes)


def factors_of(weight: Array, window: Window, group: int, out: Array | None = None) -> Array:
    """weight (M, C / group, *kernel), float32 -> G w G^T of its pieces' 3x3 filters w, in panels of some filters.

    (group, 36, panels, pieces * C / group, rows): four times the weight's size for 3x3, six times for 5x5.

    rows: filters of a panel, those past M / group 0; all where loops are not compiled. out: where to make them.
    """
    factors = np.empty(factors_shape(weight.shape, window, group), np.float32) if out is None else out
    weight = to_pieces(weight, window)
    m, c = len(weight) // group, weight.shape[1]
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


def factors_shape(weight: Sequence[int], window: Window, group: int) -> tuple[int, ...]:
    """The shape of the factors of weights of this shape."""
    filters = weight[0] // group
    rows = _panel_rows(filters)
    return group, 36, -(-filters // rows), count_of_pieces(window) * weight[1], rows


def _panel_rows(filters: int) -> int:
    """Filters of a panel; all where loops are not compiled, as NumPy's products want them."""
    return panel_rows(loops.registers(32)) if loops.compiled() else filters


def unpanelled(factors: Array, filters: int) -> Array:
    """One group's factors (36, panels, C, rows) as (6, 6, C, filters)."""
    _, panels, channels, rows = factors.shape
    columns: Array = factors[:, 0] if panels == 1 else factors.swapaxes(1, 2).reshape(36, channels, panels * rows)
    return columns[..., :filters].reshape(6, 6, channels, filters)


def data_gradient(dy: Array, weight: Array, window: Window, group: int, dx: Array) -> None:
    """dx (N, C, *map) from dy (N, M, *windows) and weight (M, C / group, *kernel): convolve's transpose; overwrites dx.

    It is a convolution, too; with a stride one that makes a map of each phase, whose numbers then go to their places.
    """
    filters, dense, taps = phases(weight, window, group), window_of_phases(window), shared_taps(window)
    if window.stride == (1, 1):
        convolve(dy, filters, dense, group, dx)
        return
    rows, columns = map(_places, window.stride, window.pad, dx.shape[2:])
    at_once, *shape = maps_shape(dx.shape, len(filters), window)
    grouped = dx.reshape(len(dx), group, dx.shape[1] // group, *dx.shape[2:])

    def put(maps: Array, to: Array, channels: slice) -> None:
        for (r, (rows_of_dx, of_map)), (c, (columns_of_dx, across)) in product(enumerate(rows), enumerate(columns)):
            to[:, :, channels, rows_of_dx, columns_of_dx] = maps[:, :, r, c, channels, of_map, across]

    with blocks.kept_scratch(np.float32) as memory:
        factors = factors_of(filters, dense, group, memory("large", *factors_shape(filters.shape, dense, group)))
        for images in threads.cut(len(dx), -(-len(dx) // at_once)):
            of, to = dy[images], grouped[images]
            maps = memory("maps", len(of), *shape)
            convolve(of, filters, dense, group, maps, factors=factors, taps=taps)
            if not all_finite(maps):  # zeros in place of the taps that a phase lacks would spoil more than the direct way
                data_gradient_directly(of, weight, window, group, dx[images])
                continue
            by_phase = maps.reshape(len(of), group, len(rows), len(columns), -1, *shape[1:])
            threads.run(partial(put, by_phase, to, part) for part in threads.parts(to.shape[2], 8))


def window_of_phases(window: Window) -> Window:
    """The window of the convolution that makes each phase's map of dy: padded so that maps are whole, less the rows and columns
    that only the padding of x has."""
    taps = taps_of_phases(window)
    pad = tuple(d * (t - 1) - p // s for d, t, p, s in zip(window.dilation, taps, window.pad, window.stride))
    return Window(taps, (1, 1), pad, window.dilation)


def maps_shape(x: Sequence[int], filters: int, window: Window) -> tuple[int, ...]:
    """The shape of the maps of x's phases that are made at a time: of some images."""
    rows, columns = map(_places, window.stride, window.pad, x[2:])
    size = max(last.stop for _, last in rows), max(last.stop for _, last in columns)
    parts = -(-x[0] * filters * math.prod(size) // MOST_MAPS)
    return -(-x[0] // parts), filters, *size


def _places(stride: int, pad: int, length: int) -> list[tuple[slice, slice]]:
    """Of each phase of an axis: where its numbers belong, and where in its map they are."""
    places = []
    for phase in range(stride):
        first = (phase - pad) % stride
        of_map = (first + pad) // stride - pad // stride
        places.append((slice(first, length, stride), slice(of_map, of_map + len(range(first, length, stride)))))
    return places


def tiles_at_once(channels: int) -> int:
    """Tiles of a block, measured: many channels need many tiles, since each block reads all factors from memory."""
    # with 192 tiles and 256 channels a thread's tiles take 7 MB, with 256 and 2048 they take 75
    return 192 if channels <= 256 else max(48, min(256, 256 * 2048 // channels))


def channels_of(channels: int, group: int) -> list[slice]:
    """Each group's channels."""
    each = channels // group
    return [slice(g * each, (g + 1) * each) for g in range(group)]


def read(tiling: Tiling, block: Block, x: Array, scratch: Scratch) -> Array:
    """The block's slab of x (N, C, H, W): (S, pieces * C, rows + 2, columns + 2), zeros where x ends."""
    slab = scratch.next(len(block.planes), count_of_pieces(tiling.window) * x.shape[1], *block.inputs)
    tiling.read(block, x, slab)
    return slab


def _outputs(  # noqa: PLR0917
    tiling: Tiling, block: Block, x: Array, factors: Array, m: int, flags: Flags, scratch: Scratch
) -> Array:
    """The block's outputs (S, M, rows, columns), in scratch, by factors (36, panels, pieces * C, rows) of M filters. Flags the
    tiles that are not finite, too."""
    slab = read(tiling, block, x, scratch)
    # the border of 1 on each side is no output
    s, rows, columns = len(slab), slab.shape[2] - 2, slab.shape[3] - 2
    with np.errstate(invalid="ignore", over="ignore"):
        tiles = to_tiles(slab, ACROSS, BT, scratch)
        products = scratch.next(6, s * (rows // TILE) * (columns // TILE), 6, m)
        by_channel = unpanelled(factors, m)
        np.matmul(tiles.swapaxes(1, 2), by_channel, out=products.swapaxes(1, 2))  # (6, 6, T, C) @ (6, 6, C, M): the 36 products
        out = from_tiles(products, (s, m, rows, columns), scratch)
        if not all_finite(out):
            flags |= ~np.isfinite(out.reshape(s, m, rows // TILE, TILE, columns // TILE, TILE)).all(axis=(1, 3, 5))
    return out


def all_finite(x: Array) -> bool:
    """Whether no number of a contiguous x is infinite or NaN; False too where squares overflow. Much cheaper than isfinite."""
    flat = x.reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        return math.isfinite(np.dot(flat, flat))  # squares cannot cancel: an inf or a NaN stays in the sum
