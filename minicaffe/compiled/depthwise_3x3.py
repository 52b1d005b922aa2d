"""The forward of depthwise convolutions with kernels of 3x3 and strides of 1 or 2, which reads maps in place.

    rows of x     r0  r1  r2  r3  r4 ...         stride 1: y0 sees r0 r1 r2, y1 sees r1 r2 r3, ...
    rows of y         y0  y1  y2 ...             stride 2: y0 sees r0 r1 r2, y1 sees r2 r3 r4, ...

A block is some rows of y, a vector wide. Its sums stay in registers, and a vector of x is loaded once for all rows that see it.
Columns beside the map are masked; for rows above and below it, a row of zeros is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minicaffe.blob import Array
from minicaffe.compiled import jit
from minicaffe.compiled.jit import Registers, intrinsic, loop
from minicaffe.compiled.vectors import Vectors
from minicaffe.layers.conv.window import Window

KERNEL, STRIDES = 3, ((1, 1), (2, 2))

LEAST_LANES = 8
"""Least lanes of a vector of float32."""

LARGE = 1 << 12
"""Numbers of a map from which on the rows of the next block are prefetched. They lie on other pages, which a processor does
not prefetch by itself."""

Map = tuple[int, int, int, int, int, int, int, int, int]


def supports(window: Window) -> bool:
    """Return whether the loop computes such windows, and faster than runs on this processor.

    Without masked loads, which come with vectors of 256 bits, each number on a map's rim takes a branch.
    """
    square = window.kernel == (KERNEL, KERNEL) and window.dilation == (1, 1)
    return square and window.stride in STRIDES and (not jit.compiled() or jit.registers(32).lanes >= LEAST_LANES)


def rows_of(registers: Registers) -> int:
    """Return the rows of a block, 7 for 32 registers: others hold the kernel, and maps often have 7, 14, 28 ... rows."""
    return registers.count // 4 - 1


class _Block:
    """An emitter of the instructions for a block's sums. kernel: a vector for each tap; rows: of y."""

    def __init__(self, vectors: Vectors, stride: int, kernel: Sequence[Any], rows: int) -> None:
        self.vectors, self.stride, self.kernel, self.rows = vectors, stride, kernel, rows
        self.columns = range(KERNEL) if stride == 1 else range(0, 2 * vectors.lanes, vectors.lanes)
        """The positions of the vectors that are loaded from a row of x."""
        self.seen = self.columns[-1] + vectors.lanes
        """Columns of x that are loaded."""
        self.width = (self.seen - KERNEL) // stride + 1
        """The number of windows in these columns, for each row of y."""

    def pointers(self, start: Any, first: Any, count: int, pitch: Any, limit: Any, instead: Any) -> list[Any]:
        """Return pointers to `count` rows of a map from `first` on; `instead` for rows outside 0 to limit - 1."""
        builder = self.vectors.builder
        numbers, places = [first], [builder.gep(start, [builder.mul(first, pitch)])]
        for i in range(1, count):
            numbers.append(builder.add(first, first.type(i)))
            places.append(builder.gep(places[-1], [pitch]))
        return [builder.select(builder.icmp_unsigned("<", n, limit), p, instead) for n, p in zip(numbers, places)]

    def masks(self, left: Any, width: Any) -> list[Any]:
        """Return masks of the numbers in a row's vectors, from column `left` on, that lie on a map of this width."""
        return [self.vectors.between(self.vectors.builder.add(left, left.type(column)), width) for column in self.columns]

    def sums(self, seen: Sequence[Any], masks: Sequence[Any]) -> list[Any]:
        """Return each row's sums, added in the order of the taps. seen: pointers to the rows of x; masks: of their vectors."""
        totals, vectors = [self.vectors.zero] * self.rows, self.vectors
        for i, row in enumerate(seen):
            places = [vectors.builder.gep(row, [vectors.int32(column)]) for column in self.columns]
            values = [vectors.load_where(place, mask) for place, mask in zip(places, masks)]
            if self.stride == 2:
                values = [vectors.every(2, values[0], values[1], column) for column in range(KERNEL)]
            for r in range(self.rows):
                tap = i - r * self.stride
                if 0 <= tap < KERNEL:
                    for factor, value in zip(self.kernel[tap * KERNEL :], values):
                        totals[r] = vectors.add_product(totals[r], factor, value)
        return totals


def _emit_map(builder: Any, registers: Registers, *given: Any) -> None:
    """Emit convolve_map, for each stride."""
    *others, stride = given
    with builder.if_else(builder.icmp_signed("==", stride, stride.type(1))) as (one, two):
        for branch, (number, _) in zip((one, two), STRIDES):
            with branch:
                _emit_blocks(builder, registers, number, *others)


def _emit_blocks(builder: Any, registers: Registers, stride: int, *given: Any) -> None:
    from numba.core import cgutils

    x, weight, after, y, spare, origin, channel, channels, to, height, width, down, over, pad_y, pad_x = given
    int64, vectors, gep = to.type, Vectors(builder, x.type.pointee, registers.lanes), builder.gep

    taps = gep(weight, [builder.mul(channel, int64(KERNEL**2))])
    kernel = vectors.everywhere_of([gep(taps, [int64(tap)]) for tap in range(KERNEL**2)])
    scale = gep(after, [channel])
    scaling = vectors.everywhere_of(numbers := [gep(scale, [builder.mul(channels, int64(i))]) for i in range(3)])
    sloped = vectors.is_slope(builder.load(numbers[2]))
    block = _Block(vectors, stride, kernel, rows_of(registers))
    step, ahead = int64(block.width), builder.mul(width, int64(block.rows * stride))
    is_large = builder.icmp_signed(">=", builder.mul(width, height), int64(LARGE))
    with cgutils.for_range_slice(builder, int64(0), down, int64(block.rows), int64) as (top, _):
        row, count = builder.sub(builder.mul(top, int64(stride)), pad_y), (block.rows - 1) * stride + KERNEL
        sources = block.pointers(gep(x, [origin]), row, count, width, height, spare)
        targets = block.pointers(gep(y, [to]), top, block.rows, over, down, gep(spare, [width]))
        with cgutils.for_range_slice(builder, int64(0), over, step, int64) as (j, _):
            left, end = builder.sub(builder.mul(j, int64(stride)), pad_x), builder.add(j, step)

            def write(masks: Sequence[Any], count: Any) -> None:
                # Pointers used in both branches would take the registers of the sums.
                with builder.if_then(is_large):
                    for source in sources[KERNEL - stride :]:
                        vectors.prefetch(gep(source, [builder.add(left, ahead)]), stride)
                sums = block.sums([gep(source, [left]) for source in sources], masks)
                for target, value in zip(targets, vectors.epilogue(sums, scaling, sloped)):
                    vectors.store_some(value, gep(target, [j]), count)

            starts = builder.icmp_signed(">=", left, int64(0))
            ends = builder.icmp_signed("<=", builder.add(left, int64(block.seen)), width)
            whole = builder.icmp_signed("<=", end, over)
            with builder.if_else(builder.and_(whole, builder.and_(starts, ends))) as (inside, border):
                with inside:
                    write([None] * len(block.columns), step)
                with border:
                    write(block.masks(left, width), builder.sub(builder.select(whole, end, over), j))


@intrinsic(_emit_map)
def convolve_map(  # noqa: PLR0913, PLR0917
    x: Array,
    weight: Array,
    after: Array,
    y: Array,
    spare: Array,
    origin: int,
    channel: int,
    channels: int,
    to: int,
    height: int,
    width: int,
    down: int,
    over: int,
    pad_y: int,
    pad_x: int,
    stride: int,
) -> None:
    """Compute a map of y (down, over) at `to` from x (height, width) at `origin` by the channel's kernel, with the epilogue.

    after (3, channels), flat: scale, shift, slope. spare: `width` zeros, then `over` numbers that are overwritten.
    """
    scale, shift, slope = after[channel], after[channels + channel], after[2 * channels + channel]
    for oy in range(down):
        for ox in range(over):
            total = 0
            for tap in range(KERNEL**2):
                h, w = oy * stride - pad_y + tap // KERNEL, ox * stride - pad_x + tap % KERNEL
                if 0 <= h < height and 0 <= w < width:
                    total += weight[channel * KERNEL**2 + tap] * x[origin + h * width + w]
            value = total * scale + shift
            y[to + oy * over + ox] = value if not value < 0 else value * slope if slope else 0


def memory_size(map_: Sequence[int]) -> int:
    """Return the length of spare."""
    return map_[3] + map_[5]


@loop("T[::1], T[::1], T[::1], T[::1], T[::1], UniTuple(int64, 9), UniTuple(int64, 2)", in_calls=True)
def convolve_maps(  # noqa: PLR0917
    x: Array, weight: Array, after: Array, y: Array, spare: Array, map_: Map, part: tuple[int, int]
) -> None:
    """Compute y for maps first to last - 1 of x (N, C, *map), counted over all images, by convolve_map.

    map_: C, kernels of each, the sizes of x's and y's maps, pad on both axes, stride. part: first, last. spare: memory
    (memory_size).
    """
    (channels, each, height, width, down, over, pad_y, pad_x, stride), (first, last) = map_, part
    filters = channels * each
    spare[:width] = 0
    for c in range(first, last):
        for m in range(c * each, c * each + each):
            origin, channel, to = c * height * width, m % filters, m * down * over
            convolve_map(
                x, weight, after, y, spare, origin, channel, filters, to, height, width, down, over, pad_y, pad_x, stride
            )
