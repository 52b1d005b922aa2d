"""Winograd's convolutions by loops: transforms and products by vectors, with each tile's numbers always in the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate

import numpy as np

from minicaffe import threads
from minicaffe.blob import Array, Blob, address_of
from minicaffe.compiled import jit, winograd_loops
from minicaffe.compiled.epilogue import table
from minicaffe.compiled.jit import DynamicArray, ScratchArray
from minicaffe.compiled.jobs import BlobJob, Calls, Job, KeptStep
from minicaffe.compiled.tiles import panel_rows
from minicaffe.compiled.winograd_loops import POWERS
from minicaffe.kernels import provides
from minicaffe.layers.conv import winograd, winograd_outliers
from minicaffe.layers.conv.window import Window
from minicaffe.layers.conv.winograd import Shapes, channels_of, fixup, tiles_at_once
from minicaffe.layers.conv.winograd_outliers import Flags, Taps, all_taps, taps_of_pieces
from minicaffe.layers.conv.winograd_tiles import TOGETHER, Block, G, Tiling, count_of_pieces, offsets, to_pieces
from minicaffe.layers.elementwise.epilogue import EVERY, Epilogue

PANELS = 6
"""Least panels whose factors a task makes."""
FEW_TILES = 56
"""Tiles for each thread below which threads share tiles and divide the filters."""
TASK = 2 << 20
"""Least multiplications of a task."""
MATRIX: Array = G.astype(np.float32)


@dataclass(frozen=True)
class _Part:
    """The part of a convolution for one call: a block, and the filters in some panels of a group."""

    block: Block
    group: int
    panels: slice

    def filters(self, factors: Sequence[int], all_: int) -> slice:
        """Return the part's filters as a slice of the layer's."""
        each, start = all_ // factors[0], self.group * (all_ // factors[0])
        rows = factors[4]
        return slice(start + self.panels.start * rows, start + min(each, self.panels.stop * rows))


class LoopsProduct:
    """convolve by compiled loops, for arrays x, weight and y of these shapes, one thread at a time. factors: of the weights."""

    def __init__(
        self, window: Window, group: int, shapes: Shapes, factors: Array, epilogue: Epilogue, taps: Taps | None = None
    ) -> None:
        self._tiling, self._parts, calls = _calls(
            window, group, shapes, factors.shape, threads.get_num_threads(), taps or all_taps(window)
        )
        self._shapes, self._factors, self._epilogue = shapes, factors, epilogue
        self._after = table(epilogue, EVERY, shapes[1][0], np.float32)
        self._flags = np.zeros(sum(part.block.tiles for part in self._parts), np.float32)
        self._job = Job(calls, self._flags)

    def __call__(self, x: Array, weight: Array, y: Array) -> None:
        self._job.run(*map(address_of, (x, self._factors, self._after, self._flags, y)))
        self._mend(x, weight, y)

    def step(self, x: Blob, weight: Blob, y: Blob) -> KeptStep:
        """Return the product of blobs as a KeptStep."""
        job = BlobJob(self._job, (x, self._factors, self._after, self._flags), y)

        def fixup() -> None:
            arrays = (x.data_for_loops(), weight.data_for_loops(), y.data)
            self._mend(*(array.reshape(shape) for array, shape in zip(arrays, self._shapes, strict=True)))

        return KeptStep([job], fixup=fixup)

    def _mend(self, x: Array, weight: Array, y: Array) -> None:
        if not self._flags.any():
            return
        found: dict[tuple[Block, int], Flags] = {}  # for all filters, because parts may divide those of a block
        ends = accumulate(part.block.tiles for part in self._parts)
        for part, flags in zip(self._parts, np.split(self._flags != 0, list(ends)[:-1]), strict=True):
            key, (s, r, c) = (
                (part.block, part.group),
                (len(of) for of in (part.block.planes, part.block.rows, part.block.groups)),
            )
            found[key] = found.get(key, False) | flags.reshape(s, r, c * TOGETHER)
        threads.run(
            partial(fixup, self._tiling, block, g, flags, x, weight, y, self._epilogue)
            for (block, g), flags in found.items()
            if flags.any()
        )


@lru_cache(maxsize=512)
def _calls(
    window: Window, group: int, shapes: Shapes, factors: tuple[int, ...], workers: int, taps: Taps
) -> tuple[Tiling, list[_Part], Calls]:
    """Return the tiling and the parts of arrays of these shapes for this many threads, and convolve_planes' calls for them."""
    (images, *_), (filters, *_), (*_, height, width) = shapes
    tiling, depth = Tiling(images, (height, width), window), factors[3]
    most, each = tiles_at_once(max(depth, filters // group)), depth * filters // group
    blocks, lanes = _cut(tiling, most, factors[2], each, workers)
    parts = [_Part(block, g, lane) for block in blocks for g in range(group) for lane in lanes]
    arrays = [DynamicArray(0, (math.prod(shapes[0]),)), DynamicArray(0, (3, filters)), DynamicArray(0, (math.prod(shapes[2]),))]
    firsts = accumulate((part.block.tiles for part in parts), initial=0)
    calls = [_call(tiling, part, shapes, factors, arrays, first, taps) for first, part in zip(firsts, parts)]
    return tiling, parts, Calls(winograd_loops.convolve_planes, np.float32, calls)


def _call(  # noqa: PLR0917
    tiling: Tiling,
    part: _Part,
    shapes: Shapes,
    factors: tuple[int, ...],
    arrays: Sequence[DynamicArray],
    first: int,
    taps: Taps,
) -> tuple[object, ...]:
    """Return convolve_planes' arguments for a part. arrays: x, after and y; first: the number of the part's first tile."""
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
    of = DynamicArray(begin, (35 * apart + panels * depth * each,))
    maps = channels // group, *size, mine.stop - mine.start, *out_size
    sizes = *maps, rows, columns, *tiling.apart, *tiling.window.dilation, panels, each, apart, *lengths[:3], mine.start
    memory, flags, places = (
        ScratchArray(0, (sum(lengths),)),
        DynamicArray(first, (part.block.tiles,)),
        np.array(offsets(tiling.window), np.int64),
    )
    masks, shares = taps_of_pieces(tiling.window, taps), winograd_outliers.shares(tiling, part.block, tuple(size), taps)
    return x, of, after, flags, y, memory, POWERS, planes, places, masks, shares, sizes


def _cut(tiling: Tiling, most: int, panels: int, factors: int, workers: int) -> tuple[list[Block], list[slice]]:
    """Return blocks of at most about `most` tiles, and slices of the filters' panels.

    If there are few tiles, each thread transforms them for its own filters. factors: numbers of one of the 36 matrices;
    workers: most threads.
    """
    rows, groups = tiling.tiles
    tiles = tiling.planes * rows * groups * TOGETHER
    workers = max(1, min(workers, 36 * tiles * factors // TASK))
    lanes = min(workers, panels) if tiles < FEW_TILES * workers else 1
    blocks = list(tiling.blocks(most, workers=-(-workers // lanes)))
    return blocks, threads.cut(panels, lanes)


def takes_factors(factors: Array) -> bool:
    """Return whether the loops support these factors, which may have been made before loops were compiled."""
    return int(factors.shape[4]) == _panel_rows()


def _panel_rows() -> int:
    """Return the number of filters in a panel."""
    return panel_rows(jit.registers(32))


@provides(winograd.convolve_by_factors, loops=(winograd_loops.convolve_planes,))
def convolve_by_loops(  # noqa: PLR0917
    x: Array, weight: Array, factors: Array, window: Window, y: Array, epilogue: Epilogue, taps: Taps
) -> None:
    if takes_factors(factors) and x.flags.c_contiguous and y.flags.c_contiguous:  # the loop takes maps as flat arrays
        LoopsProduct(window, len(factors), (x.shape, weight.shape, y.shape), factors, epilogue, taps)(x, weight, y)
    else:
        winograd.convolve_by_factors.by_numpy(x, weight, factors, window, y, epilogue, taps)


@provides(winograd.factors_shape)
def factors_shape_by_loops(weight: Sequence[int], window: Window, group: int) -> tuple[int, ...]:
    rows = _panel_rows()
    return group, 36, -(-(weight[0] // group) // rows), count_of_pieces(window) * weight[1], rows


@provides(winograd.factors_of, loops=(winograd_loops.make_factors,))
def factors_of_by_loops(weight: Array, window: Window, group: int, out: Array | None = None) -> Array:
    factors = np.empty(factors_shape_by_loops(weight.shape, window, group), np.float32) if out is None else out
    if factors.shape[2] == 1:
        return winograd.factors_of.by_numpy(weight, window, group, factors)
    weight = to_pieces(weight, window)
    # not contiguous, or Numba would compile the loop again
    given = np.broadcast_to(weight, (2, *weight.shape))
    m = len(weight) // group
    threads.run(
        partial(winograd_loops.make_factors, given[:, g * m : (g + 1) * m], MATRIX, factors[g], part.start, part.stop)
        for g in range(group)
        for part in threads.parts(factors.shape[2], PANELS, 2)
    )
    return factors
