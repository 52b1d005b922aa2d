"""A convolution as a product of matrices, in loops: a tile of sums at a time, which the processor's registers hold.

    y (M, windows) = epilogue of weight (M, K) @ columns (K, windows)        K: channels times taps

Windows are taken in strips, those of several images one after another. A strip's columns are laid out for some channels at a
time (about COLUMNS numbers), which a core's cache holds while all filters pass over them, four at a time; the weights are read
where they are. Each sum is made in the order of K, whatever the strips and the threads. The epilogue is that of epilogue.py:
v = sum * scale + shift, then v or, where v < 0, slope * v.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.loops import Registers, intrinsic, loop

from .vectors import Vectors, copy, copy_every_other, prefetch

at = np.uint64
"""An index that is not negative: Numba then does not look whether it counts from the end."""

Numbers = tuple[int, ...]

ROWS = 4
"""Filters of a tile."""
LANES = 16
"""A strip's rows have a multiple of so many numbers: whole vectors, whatever the processor."""
COLUMNS = 48 << 10
"""About how many numbers of columns are laid out at a time."""
AHEAD = 256
"""How many numbers of a panel are called into the cache before they are needed."""


def vectors_of(registers: Registers, rows: int) -> int:
    """How many vectors of windows a tile of so many rows has: the other registers hold columns and a weight."""
    return registers.count * 3 // (4 * rows)


def panel_rows(registers: Registers) -> int:
    """Filters of a panel."""
    return registers.count // 4


class _Tile:
    """Writes the instructions of one tile: some filters times some vectors of windows, whose columns begin at a pointer."""

    def __init__(self, vectors: Vectors, count: int, columns: Any) -> None:
        self.builder, self.vectors, self.count, self.columns = vectors.builder, vectors, count, columns

    def begun(self, places: Sequence[Any], fresh: Any) -> list[list[Any]]:
        """The sums of each row so far, from memory, or 0."""
        zero, builder = self.vectors.zero, self.builder
        return [[builder.select(fresh, zero, value) for value in self.vectors.load(place, self.count)] for place in places]

    def products(
        self, begun: list[list[Any]], weight: Sequence[Any], step: int, ahead: Any, depth: Any, width: Any
    ) -> list[list[Any]]:
        """The loop over K: begun plus all products, of each row. weight: where each row's begin, `step` apart. ahead: how far
        on those lie that are called into the cache: a processor does not foresee short runs."""
        builder, vectors, before = self.builder, self.vectors, self.builder.block
        loop, end, int64 = builder.append_basic_block("products"), builder.append_basic_block("made"), depth.type
        builder.branch(loop)
        builder.position_at_end(loop)
        k, line = builder.phi(int64), builder.phi(self.columns.type)
        sums = [[builder.phi(vectors.type) for _ in row] for row in begun]
        seen, made = vectors.load(line, self.count), []
        place = builder.mul(k, int64(step))
        for i, (row, pointer) in enumerate(zip(sums, weight)):
            factor = vectors.everywhere(builder.load(builder.gep(pointer, [place])))
            if i == 0 or step == 1:  # rows that lie side by side share a line of the cache
                vectors.prefetch(builder.gep(pointer, [builder.add(place, ahead)]))
            made.append([vectors.add_product(total, factor, x) for total, x in zip(row, seen)])
        following, below = builder.add(k, int64(1)), builder.gep(line, [width])
        all_sums = zip(chain(*sums), chain(*begun), chain(*made))
        for phi, first, then in [(k, int64(0), following), (line, self.columns, below), *all_sums]:
            phi.add_incoming(first, before)
            phi.add_incoming(then, loop)
        builder.cbranch(builder.icmp_unsigned("<", following, depth), loop, end)
        builder.position_at_end(end)
        return made


def _write_products(builder: Any, registers: Registers, *given: Any) -> None:
    """products, some vectors of the columns at a time: as many as the registers hold the sums of; then the rest."""
    weight, columns, sums, after, y, start, depth, width, fresh, last, apart, filters, row, of, to, pitch = given
    int64, vectors = start.type, Vectors(builder, weight.type.pointee, registers.lanes)

    def rows(pointer: Any, first: Any, step: Any) -> list[Any]:
        """A pointer for each row, to the last one's again where there are fewer filters."""
        found = [builder.gep(pointer, [first])]
        for r in range(1, ROWS):
            there = builder.icmp_unsigned("<", int64(r), filters)
            found.append(builder.gep(found[-1], [builder.select(there, step, int64(0))]))
        return found

    weights, scales = rows(weight, start, apart), rows(after, row, int64(1))
    is_fresh, is_last = (builder.icmp_unsigned("!=", flag, int64(0)) for flag in (fresh, last))

    def tile(count: int, offset: Any) -> None:
        one = _Tile(vectors, count, builder.gep(columns, [offset]))
        places, targets = rows(sums, offset, width), rows(y, builder.add(to, offset), pitch)
        for target in targets:
            vectors.prefetch(target, count, to_write=True)
        made = one.products(one.begun(places, is_fresh), weights, 1, builder.mul(apart, int64(ROWS)), depth, width)
        with builder.if_else(is_last) as (finish, leave):
            with finish:
                for total, scale, target in zip(made, scales, targets):
                    shift, slope = (builder.gep(scale, [builder.mul(of, int64(i))]) for i in (1, 2))
                    vectors.store(vectors.epilogue(total, vectors.everywhere_of((scale, shift, slope))), target)
            with leave:
                for total, place in zip(made, places):
                    vectors.store(total, place)

    _each_tile(builder, registers, width, vectors_of(registers, ROWS), tile)


def _each_tile(builder: Any, registers: Registers, width: Any, most: int, write: Callable[[int, Any], None]) -> None:
    """write(count, offset) for every `most` vectors of `width` numbers, and for the rest: how many, and where they begin."""
    int64, block = width.type, builder.append_basic_block
    before, head, tail, end = builder.block, block("head"), block("tail"), block("end")
    all_ = builder.udiv(width, int64(registers.lanes))
    builder.branch(head)
    builder.position_at_end(head)
    at_vector = builder.phi(int64)
    at_vector.add_incoming(int64(0), before)
    left = builder.sub(all_, at_vector)
    now = builder.select(builder.icmp_unsigned("<", left, int64(most)), left, int64(most))
    offset, choice = builder.mul(at_vector, int64(registers.lanes)), builder.switch(now, tail)
    for count in range(1, most + 1):
        choice.add_case(int64(count), body := block(f"vectors_{count}"))
        builder.position_at_end(body)
        write(count, offset)
        builder.branch(tail)
    builder.position_at_end(tail)
    following = builder.add(at_vector, now)
    at_vector.add_incoming(following, tail)
    builder.cbranch(builder.icmp_unsigned("<", following, all_), head, end)
    builder.position_at_end(end)


@intrinsic(_write_products)
def products(  # noqa: PLR0913, PLR0917
    weight: Array,
    columns: Array,
    sums: Array,
    after: Array,
    y: Array,
    start: int,
    depth: int,
    width: int,
    fresh: int,
    last: int,
    apart: int,
    filters: int,
    row: int,
    of: int,
    to: int,
    pitch: int,
) -> None:
    """sums (filters, width) += weight @ columns (depth, width); fresh: = in place of +=; last: to y, with the epilogue.

    weight: of each filter `depth` numbers, which begin at `start` and lie `apart`. width: a multiple of LANES. filters: how
    many rows there are; the first ROWS count. after (3, of), flat: scale, shift and slope of row, row + 1 ... y: each row
    begins at `to`, and lies `pitch` from the next.
    """
    for r in range(min(filters, ROWS)):
        for j in range(width):
            total = 0 if fresh else sums[r * width + j]
            for k in range(depth):
                total += weight[start + r * apart + k] * columns[k * width + j]
            if last:
                value, slope = total * after[row + r] + after[of + row + r], after[2 * of + row + r]
                y[to + r * pitch + j] = value if not value < 0 else value * slope if slope else 0
            else:
                sums[r * width + j] = total


def _write_panel_products(builder: Any, registers: Registers, *given: Any) -> None:
    panel, columns, sums, start, to, depth, width = given
    int64, rows, vectors = depth.type, panel_rows(registers), Vectors(builder, panel.type.pointee, registers.lanes)
    weights = [builder.gep(panel, [builder.add(start, int64(r))]) for r in range(rows)]

    def tile(count: int, offset: Any) -> None:
        one = _Tile(vectors, count, builder.gep(columns, [offset]))
        made = one.products([[vectors.zero] * count] * rows, weights, rows, int64(AHEAD), depth, width)
        for r, total in enumerate(made):
            vectors.store(total, builder.gep(sums, [builder.add(builder.add(to, offset), builder.mul(width, int64(r)))]))

    _each_tile(builder, registers, width, vectors_of(registers, rows), tile)


@intrinsic(_write_panel_products)
def panel_products(  # noqa: PLR0917
    panel: Array, columns: Array, sums: Array, start: int, to: int, depth: int, width: int
) -> None:
    """sums (rows, width), from `to` on, = weights (depth, rows), from start on, turned around @ columns (depth, width).

    rows: panel_rows, which this definition does not know: it is for one. width: a multiple of LANES.
    """
    for j in range(width):
        total = 0
        for k in range(depth):
            total += panel[start + k] * columns[k * width + j]
        sums[to + j] = total


@loop("T[::1], UniTuple(int64, 15), UniTuple(int64, 5), T[::1]")
def lay_out(x: Array, map_: Numbers, strip: Numbers, columns: Array) -> None:
    """columns (channels * taps, width) = what the windows of a strip see of some channels of x; 0 outside the map and behind.

    map_: C, H, W of x; windows a column and a row; kernel, stride, pad and dilation, two each; two more. strip: the first
    window, how many there are, width; the first channel and how many.
    """
    channels, height, across, down, over = map_[0], map_[1], map_[2], map_[3], map_[4]
    kernel_y, kernel_x, stride_y, stride_x = map_[5], map_[6], map_[7], map_[8]
    first, count, width, channel, many = strip
    taps = kernel_y * kernel_x
    for tap in range(taps):
        for c in range(
            many
        ):  # what lies behind is multiplied, too: old numbers, denormal ones, would take a hundred times as long
            for i in range(count, width):
                columns[at((c * taps + tap) * width + i)] = 0
        shift_y, shift_x = tap // kernel_x * map_[11] - map_[9], tap % kernel_x * map_[12] - map_[10]
        j = 0
        while j < count:  # a run of windows of one row
            row, ox = (first + j) // over, (first + j) % over
            image, run = row // down, min(over - ox, count - j)
            iy, ix = row % down * stride_y + shift_y, ox * stride_x + shift_x
            begin, end = 0, 0  # of the run, those that lie on the map
            if 0 <= iy < height:
                begin = min(run, max(0, (stride_x - 1 - ix) // stride_x))
                end = max(begin, min(run, (across - 1 - ix) // stride_x + 1))
            source, to = ((image * channels + channel) * height + iy) * across + ix, tap * width + j
            for _ in range(many):
                for i in range(begin):
                    columns[at(to + i)] = 0
                for i in range(run * stride_x, 2 * run * stride_x, LANES):  # of the next strip
                    prefetch(x, source + i)
                if stride_x == 1:
                    copy(x, source + begin, columns, to + begin, end - begin)
                elif stride_x == 2:
                    copy_every_other(x, source + 2 * begin, columns, to + begin, end - begin)
                else:
                    for i in range(begin, end):
                        columns[at(to + i)] = x[at(source + i * stride_x)]
                for i in range(end, run):
                    columns[at(to + i)] = 0
                source += height * across
                to += taps * width
            j += run


@loop("T[::1], UniTuple(int64, 7), T[::1]")
def put(rows: Array, strip: Numbers, y: Array) -> None:
    """A strip's rows (filters, width) to their places in y (N, M, windows).

    strip: the first window, how many, width; windows of an image; filters in all, from, to.
    """
    first, count, width, windows, filters, begin, end = strip
    j = 0
    while j < count:  # a run of windows of one image
        image, window = (first + j) // windows, (first + j) % windows
        run = min(windows - window, count - j)
        for m in range(begin, end):
            copy(rows, (m - begin) * width + j, y, (image * filters + m) * windows + window, run)
        j += run


@loop("T[::1], T[::1], T[::1], T[::1], UniTuple(int64, 15), UniTuple(int64, 6), T[::1], T[::1]", in_calls=True)
def convolve_strips(  # noqa: PLR0917
    x: Array, weight: Array, after: Array, y: Array, map_: Numbers, part: Numbers, columns: Array, rows: Array
) -> None:
    """Of y, the windows and filters of a part: x convolved with the weights of their group, and the epilogue.

    map_: as lay_out has it, then filters in all and channels of a group. part: windows from, to; filters from, to; the group's
    first channel; most windows of a strip. Memory: columns for COLUMNS numbers, or a strip's of one channel; rows for a strip
    of the part's filters.
    """
    begin, stop, first, last, channel, most = part
    taps, windows, filters, channels = map_[5] * map_[6], map_[3] * map_[4], map_[13], map_[14]
    depth = channels * taps
    for j in range(begin, stop, most):
        count = min(most, stop - j)
        width = (count + LANES - 1) // LANES * LANES
        together = max(1, COLUMNS // (taps * width))
        image, window = j // windows, j % windows
        whole = count == width and window + count <= windows
        for c in range(0, channels, together):
            many = min(together, channels - c)
            fresh, final = c == 0, c + many == channels
            lay_out(x, map_, (j, count, width, channel + c, many), columns)
            for m in range(first, last, ROWS):
                of, start = rows[(m - first) * width :], m * depth + c * taps
                if whole:
                    to, n, k = (image * filters + m) * windows + window, last - m, many * taps
                    products(weight, columns, of, after, y, start, k, width, fresh, final, depth, n, m, filters, to, windows)
                else:
                    n, k = last - m, many * taps
                    products(weight, columns, of, after, of, start, k, width, fresh, final, depth, n, m, filters, 0, width)
        if not whole:
            put(rows, (j, count, width, windows, filters, first, last), y)
