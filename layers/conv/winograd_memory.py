"""What Winograd's products take beside their arrays, computed from shapes: that of NumPy's way, which takes most."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from minicaffe.threads import get_num_threads

from .window import Window
from .winograd import Shapes, blocks_of, factors_shape, maps_shape, window_of_phases
from .winograd_blocks import Tiling
from .winograd_pieces import TAPS, count_of_pieces
from .winograd_weights import Cut


class Numbers(NamedTuple):
    """float32 numbers of a pass. tiles: of all threads' blocks; large: what lies in the memory of that name, which stays for
    the next pass: factors, or sums and tiles of a weight gradient; maps: of a stride's phases, which stay, too; weights: copies
    of these or of their gradient, turned or in pieces."""

    tiles: int
    large: int = 0
    maps: int = 0
    weights: int = 0


def working_bytes(passes: Iterable[Numbers]) -> int:
    """Of these passes, one after the other."""
    return sum(4 * max(numbers) for numbers in zip(*passes))


def of_passes(shapes: Shapes, window: Window, group: int, *, made: bool) -> Sequence[Numbers]:
    """Of convolve, data_gradient and add_weight_gradient. made: whether convolve makes the factors."""
    return (
        _of_convolve(shapes, window, group, made=made),
        _of_data_gradient(shapes, window, group),
        _of_weight_gradient(shapes, window, group),
    )


def _of_convolve(shapes: Shapes, window: Window, group: int, *, made: bool) -> Numbers:
    """Two buffers a thread of a block's transformed tiles, 36 numbers for each tile and channel."""
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
    """Each thread's tiles of a block are fewer than convolve's."""
    x, weight, y = shapes
    pieces, filters, channels = count_of_pieces(window), weight[0] // group, weight[1]
    cut = Cut.of(Tiling(x[0], y[2:], window), filters, pieces, channels)
    return Numbers(0, large=sum(cut.sizes), weights=weight[0] * pieces * channels * TAPS * TAPS)
