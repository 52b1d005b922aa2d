"""Tiles of sums that fit in the processor's registers, and panels of weights: the parts of products in compiled loops.

turned           some filters' weights, row by row -> a panel (K, filters), which is contiguous for a tile
products         a tile: sums (filters, windows) += panel^T @ columns (K, windows), then the epilogue
                 (a vector has windows of one filter; for the few windows that fill no vector, filters of one window)
panel_products   the same for a whole panel and many windows, without an epilogue (winograd_loops.py)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any

from minicaffe.blob import Array
from minicaffe.compiled.jit import Registers, intrinsic
from minicaffe.compiled.vectors import Vectors

LANES = 16
"""Depths of panels, and rows of Winograd's tiles, are multiples of it: whole vectors on every processor."""
AHEAD = 256
"""The number of a panel's numbers that are prefetched."""


def panel_rows(registers: Registers) -> int:
    """Return the number of filters in a panel."""
    return registers.count // 4


def tile_vectors(registers: Registers) -> int:
    """Return the vectors of windows in a tile. The other registers hold columns and a weight."""
    return registers.count * 3 // (4 * panel_rows(registers))


def most_beside(registers: Registers) -> int:
    """Return how many windows outside vectors a tile may have. The remaining registers hold their sums."""
    rows, vectors = panel_rows(registers), tile_vectors(registers)
    each = -(-rows // registers.lanes)  # registers for one number of each filter
    return max(0, registers.count - rows * vectors - vectors - 1 - each) // each


def most_alone(registers: Registers) -> int:
    """Return how many windows make a tile without vectors of windows: so few need fewer vectors of filters."""
    return min(panel_rows(registers), registers.lanes) - 1


class _Tile:
    """An emitter of one tile's instructions: some rows of a panel times some vectors of columns, which begin at a pointer.

    few: the number of windows outside the vectors; their columns (K, few) begin at the pointer beside. A vector of `filters`
    has the sums of one of them.
    """

    def __init__(self, vectors: Vectors, count: int, columns: Any, filters: Vectors, few: int, beside: Any) -> None:
        self.builder, self.vectors, self.count, self.columns = vectors.builder, vectors, count, columns
        self.filters, self.few, self.beside = filters, few, beside

    def begun(self, places: Sequence[Any], fresh: Any) -> list[list[Any]]:
        """Return the initial sums of each row and of the windows outside vectors: 0 if fresh, otherwise those in memory."""
        builder, before = self.builder, self.builder.block
        read, end = (builder.append_basic_block(name) for name in ("read", "begun"))
        builder.cbranch(fresh, end, read)
        builder.position_at_end(read)
        found = [self.vectors.load(place, self.count) for place in places]
        found.append([self.filters.gathered(self.window_beside(places, i)) for i in range(self.few)])
        builder.branch(end)
        builder.position_at_end(end)
        sums = [[builder.phi(value.type) for value in row] for row in found]
        for phi, value in zip(chain(*sums), chain(*found)):
            phi.add_incoming(value.type(None), before)
            phi.add_incoming(value, read)
        return sums

    def window_beside(self, places: Sequence[Any], i: int) -> list[Any]:
        """Return pointers to the i-th window outside the vectors, for rows at these places."""
        behind = self.vectors.int32(self.count * self.vectors.lanes + i)
        return [self.builder.gep(place, [behind]) for place in places]

    def products(
        self, begun: list[list[Any]], panel: Any, pitch: Any, depth: Any, width: Any, ahead: Sequence[Any]
    ) -> list[list[Any]]:
        """Return the sums after the loop over K: begun plus all products.

        panel: a pointer to the first weights; the next ones follow at a distance of `pitch`. ahead: the prefetches, evenly
        spread since memory delivers only a few lines at a time: a pointer, the number of prefetches in a row, the distance
        between rows, and the step between prefetches.
        """
        builder, vectors, before, int64 = self.builder, self.vectors, self.builder.block, depth.type
        loop, turn, end = (builder.append_basic_block(name) for name in ("products", "next_row", "made"))
        first, each, apart, step = ahead
        builder.branch(loop)
        builder.position_at_end(loop)
        k, limit = builder.phi(int64), builder.phi(int64)
        line, few, factors, called, row = (builder.phi(of.type) for of in (self.columns, self.beside, panel, first, first))
        sums = [[builder.phi(value.type) for value in one] for one in begun]
        seen, made = vectors.load(line, self.count), []
        vectors.prefetch(called, 2)
        *rows, beside = sums
        for r, totals in enumerate(rows):
            factor = vectors.everywhere(builder.load(builder.gep(factors, [int64(r)])))
            made.append([vectors.add_product(total, factor, x) for total, x in zip(totals, seen)])
        numbers = self.filters.everywhere_of([builder.gep(few, [int64(i)]) for i in range(self.few)])
        weights = self.filters.load(factors, 1) * self.few
        made.append([self.filters.add_product(*triple) for triple in zip(beside, numbers, weights)])
        following = builder.add(k, int64(1))
        steps = (line, width), (factors, pitch), (called, step), (few, int64(self.few))
        on = [builder.gep(pointer, [by]) for pointer, by in steps]
        builder.cbranch(builder.icmp_unsigned("<", following, limit), loop, turn)
        builder.position_at_end(turn)
        next_row, next_limit = builder.gep(row, [apart]), builder.add(limit, each)
        next_limit = builder.select(builder.icmp_unsigned("<", next_limit, depth), next_limit, depth)
        builder.cbranch(builder.icmp_unsigned("<", following, depth), loop, end)
        moved = [(k, int64(0), following, following), (limit, each, limit, next_limit), (row, first, row, next_row)]
        moved += [(line, self.columns, on[0], on[0]), (factors, panel, on[1], on[1]), (called, first, on[2], next_row)]
        moved += [(few, self.beside, on[3], on[3])]
        moved += [(phi, start, then, then) for phi, start, then in zip(chain(*sums), chain(*begun), chain(*made))]
        for phi, *values in moved:
            for value, block in zip(values, (before, loop, turn)):
                phi.add_incoming(value, block)
        builder.position_at_end(end)
        return made


def _emit_products(builder: Any, registers: Registers, *given: Any) -> None:
    """Emit products for each number of vectors and of windows outside them that a tile may have, and for such windows alone.

    Without such windows, also emit it for half of the rows, if the others are missing.
    """
    (
        panels,
        start,
        columns,
        seen,
        apart,
        others,
        beside,
        few,
        sums,
        place,
        width,
        after,
        row,
        of,
        y,
        to,
        pitch,
        wanted,
        *more,
    ) = given
    depth, fresh, last, sloped, filters, weight, call_y, *ahead, _ = more
    int64, lanes, most = depth.type, registers.lanes, panel_rows(registers)
    limit, alone = most_beside(registers), most_alone(registers)
    vectors, narrow = (Vectors(builder, panels.type.pointee, count) for count in (lanes, most))

    def is_there(r: int) -> Any:
        return builder.icmp_unsigned("<", int64(r), filters)

    def rows(count: int, pointer: Any, first: Any, step: Any) -> list[Any]:
        """Return pointers to the rows."""
        return [builder.gep(pointer, [builder.add(first, builder.mul(step, int64(r)))]) for r in range(count)]

    def rows_there(count: int, pointer: Any, first: Any, step: Any) -> list[Any]:
        """Return pointers to the rows; missing filters get the last one's pointer, which is faster than selecting."""
        found = [builder.gep(pointer, [first])]
        for r in range(1, count):
            found.append(builder.gep(found[-1], [builder.select(is_there(r), step, int64(0))]))
        return found

    is_fresh, is_last, is_sloped = (builder.icmp_unsigned("!=", flag, int64(0)) for flag in (fresh, last, sloped))
    call = [builder.gep(weight, ahead[:1]), *ahead[1:]]

    def tile(each: int, count: int, few: int = 0) -> None:
        one = _Tile(vectors, count, builder.gep(columns, [seen]), narrow, few, builder.gep(others, [beside]))
        those = rows_there if few else rows
        places, targets, scales = those(each, sums, place, width), those(each, y, to, pitch), those(each, after, row, int64(1))
        before = int64((count - 1) * lanes)
        with builder.if_then(builder.icmp_unsigned("!=", call_y, int64(0))):
            for target in targets:
                vectors.prefetch(target, count, to_write=True)
        begun = one.begun(places, is_fresh)
        *made, made_beside = one.products(begun, builder.gep(panels, [start]), int64(most), depth, apart, call)
        with builder.if_else(is_last) as (finish, leave):
            with finish:
                numbers = [[builder.gep(scale, [builder.mul(of, int64(i))]) for scale in scales] for i in range(3)]
                for r, (total, target, *three) in enumerate(zip(made if count else [], targets, *numbers)):
                    with nullcontext() if few or not r else builder.if_then(is_there(r), likely=True):
                        *whole, rest = vectors.epilogue(total, vectors.everywhere_of(three), is_sloped)
                        vectors.store(whole, target)
                        vectors.store_some(rest, builder.gep(target, [before]), builder.sub(wanted, before))
                if few:
                    gathered = [narrow.gathered(three) for three in numbers]
                    for i, value in enumerate(narrow.epilogue(made_beside, gathered, is_sloped)):
                        narrow.scatter(value, one.window_beside(targets, i))
            with leave:
                for total, where in zip(made, places):
                    vectors.store(total, where)
                for i, value in enumerate(made_beside):
                    narrow.scatter(value, one.window_beside(places, i))

    count = builder.udiv(builder.add(builder.sub(wanted, few), int64(lanes - 1)), int64(lanes))
    is_half = builder.icmp_unsigned("<=", filters, int64(most // 2))
    halves = builder.and_(is_half, builder.icmp_unsigned("==", few, int64(0)))
    with builder.if_else(halves) as (half, all_):
        with half:
            vectors.switch(count, range(1, tile_vectors(registers) + 1), lambda count: tile(most // 2, count))
        with all_:
            step = max(limit, alone) + 1
            both = [count * step + few for count in range(1, tile_vectors(registers) + 1) for few in range(limit + 1)]
            number = builder.add(builder.mul(count, int64(step)), few)
            vectors.switch(number, [*range(1, alone + 1), *both], lambda number: tile(most, *divmod(number, step)))


@intrinsic(_emit_products)
def products(  # noqa: PLR0913, PLR0917
    panels: Array,
    start: int,
    columns: Array,
    seen: int,
    apart: int,
    others: Array,
    beside: int,
    few: int,
    sums: Array,
    place: int,
    width: int,
    after: Array,
    row: int,
    of: int,
    y: Array,
    to: int,
    pitch: int,
    wanted: int,
    depth: int,
    fresh: int,
    last: int,
    sloped: int,
    filters: int,
    weight: Array,
    call_y: int,
    ahead: int,
    ahead_each: int,
    ahead_apart: int,
    ahead_step: int,
    rows: int,
) -> None:
    """Compute sums (filters, windows) += panel^T @ columns (depth, windows). panel: (depth, rows).

    fresh: = in place of +=. last: write to y, with the epilogue. sloped: 0 if each filter's slope is 0 or 1.
    filters: their number; only the first `rows` (panel_rows) count, and sums has room for all `rows`. wanted: the number of
    windows, at most tile_vectors vectors, of whose columns and sums whole vectors are read and written; the last `few`, at most
    most_beside, are outside the vectors. Without vectors there are at most most_alone windows.
    The panel begins at `start`; rows of columns at `seen`, `apart` from each other; those of the few windows, in others, at
    `beside`, `few` apart; rows of sums at `place`, `width` apart; rows of y at `to`, `pitch` apart. after (3, of), flat: scale,
    shift and slope of row, row + 1 ...
    Prefetched: the tile's place in y, if call_y; and meanwhile, from weight at `ahead` on, `depth` numbers, ahead_step apart,
    in rows of ahead_each, which are ahead_apart from each other.
    """
    whole = wanted - few
    for r in range(min(filters, rows)):
        for j in range(wanted):
            total = 0 if fresh else sums[place + r * width + j]
            for k in range(depth):
                x = columns[seen + k * apart + j] if j < whole else others[beside + k * few + j - whole]
                total += panels[start + k * rows + r] * x
            if last:
                value, slope = total * after[row + r] + after[of + row + r], after[2 * of + row + r]
                y[to + r * pitch + j] = value if not value < 0 else value * slope if slope else 0
            else:
                sums[place + r * width + j] = total


def _emit_turned(builder: Any, registers: Registers, *given: Any) -> None:
    weight, start, apart, filters, depth, panels, to, _ = given
    int64, vectors, rows = start.type, Vectors(builder, weight.type.pointee, registers.lanes), panel_rows(registers)

    def write(k: Any, left: Any) -> None:
        numbers, place = [], builder.gep(weight, [builder.add(start, k)])
        for r in range(rows):
            numbers.append(vectors.load_some(place, left))
            there = builder.icmp_unsigned("<", int64(r + 1), filters)
            place = builder.gep(place, [builder.select(there, apart, int64(0))])
        vectors.store(vectors.turned(numbers), builder.gep(panels, [builder.add(to, builder.mul(k, int64(rows)))]))

    vectors.each(depth, write)


@intrinsic(_emit_turned)
def turned(  # noqa: PLR0917
    weight: Array, start: int, apart: int, filters: int, depth: int, panels: Array, to: int, rows: int
) -> None:
    """Fill a panel (depth, rows) at `to` with `depth` numbers of some filters, which begin at `start`, `apart` from each other.

    filters: their number; only the first `rows` (panel_rows) count, and the last one replaces missing ones. The panel has room
    for a depth that is a multiple of LANES.
    """
    for r in range(rows):
        for k in range(depth):
            panels[to + k * rows + r] = weight[start + min(r, filters - 1) * apart + k]


def _emit_panel_products(builder: Any, registers: Registers, *given: Any) -> None:
    panel, columns, sums, start, to, depth, width, fresh = given
    int64, rows, is_fresh = depth.type, panel_rows(registers), builder.icmp_unsigned("!=", fresh, fresh.type(0))
    vectors, narrow = (Vectors(builder, panel.type.pointee, count) for count in (registers.lanes, rows))
    first = builder.gep(panel, [start])
    ahead = builder.gep(first, [int64(AHEAD)]), depth, int64(0), int64(rows)

    def tile(count: int, offset: Any) -> None:
        one = _Tile(vectors, count, builder.gep(columns, [offset]), narrow, 0, columns)
        places = [builder.gep(sums, [builder.add(builder.add(to, offset), builder.mul(width, int64(r)))]) for r in range(rows)]
        *made, _ = one.products(one.begun(places, is_fresh), first, int64(rows), depth, width, ahead)
        for total, place in zip(made, places):
            vectors.store(total, place)

    _each_tile(vectors, width, tile_vectors(registers), tile)


def _each_tile(vectors: Vectors, width: Any, most: int, write: Callable[[int, Any], None]) -> None:
    """Emit write(count, offset) for every `most` vectors of `width` numbers, and for the rest. offset: in numbers."""
    builder, int64, block = vectors.builder, width.type, vectors.builder.append_basic_block
    before, head, tail, end = builder.block, block("head"), block("tail"), block("end")
    all_ = builder.udiv(width, int64(vectors.lanes))
    builder.branch(head)
    builder.position_at_end(head)
    at_vector = builder.phi(int64)
    at_vector.add_incoming(int64(0), before)
    left = builder.sub(all_, at_vector)
    now = builder.select(builder.icmp_unsigned("<", left, int64(most)), left, int64(most))
    offset = builder.mul(at_vector, int64(vectors.lanes))
    vectors.switch(now, range(1, most + 1), lambda count: write(count, offset))
    builder.branch(tail)
    builder.position_at_end(tail)
    following = builder.add(at_vector, now)
    at_vector.add_incoming(following, tail)
    builder.cbranch(builder.icmp_unsigned("<", following, all_), head, end)
    builder.position_at_end(end)


@intrinsic(_emit_panel_products)
def panel_products(  # noqa: PLR0917
    panel: Array, columns: Array, sums: Array, start: int, to: int, depth: int, width: int, fresh: int
) -> None:
    """Compute sums (rows, width) at `to` += weights^T @ columns (depth, width). weights: (depth, rows) at start.

    fresh: = in place of +=. rows: panel_rows; this definition, which does not know it, is for 1. width: a multiple of LANES.
    """
    for j in range(width):
        total = 0 if fresh else sums[to + j]
        for k in range(depth):
            total += panel[start + k] * columns[k * width + j]
        sums[to + j] = total
