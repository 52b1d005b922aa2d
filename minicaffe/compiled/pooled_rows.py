"""Maxima and sums of rows by vectors, for pooling in compiled loops.

max_windows, mean_windows       a row of small windows, read from the map in place
max_rows, add_rows, divide      large windows: up to three rows, number by number, then the columns of the joined row, which
                                are neighbouring numbers, at the stride of the windows
sum_up                          a whole map
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from minicaffe.blob import Array
from minicaffe.compiled.jit import Registers, intrinsic
from minicaffe.compiled.vectors import Vectors
from minicaffe.layers.pool.pooling_windows import LOWEST

MOST = 3
"""Rows, or columns, at a time."""
STRIDES = 1, 2


def _larger(builder: Any, most: Any, value: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", value, most), value, most)


def _sum(builder: Any, total: Any, value: Any) -> Any:
    return builder.fadd(total, value)


def _emit_max_rows(builder: Any, registers: Registers, *given: Any) -> None:
    _emit_rows(builder, registers, given, LOWEST, partial(_larger, builder))


def _emit_add_rows(builder: Any, registers: Registers, *given: Any) -> None:
    _emit_rows(builder, registers, given, 0.0, partial(_sum, builder))


def _emit_rows(builder: Any, registers: Registers, given: Any, neutral: float, join: Callable[[Any, Any], Any]) -> None:
    """Emit the loop for each number of rows and stride, starting from y or, if fresh, from the neutral number."""
    x, start, apart, rows, y, to, count, stride, fresh = given
    int64, vectors = to.type, Vectors(builder, x.type.pointee, registers.lanes)
    nothing = vectors.everywhere(x.type.pointee(neutral))
    is_one, is_fresh = builder.icmp_signed("==", stride, int64(1)), builder.icmp_signed("!=", fresh, int64(0))

    def write(terms: int, step: int, begins: bool) -> None:
        def one(i: Any, left: Any) -> None:
            place, source = (
                builder.gep(y, [builder.add(to, i)]),
                builder.gep(x, [builder.add(start, builder.mul(i, int64(step)))]),
            )
            value = nothing if begins else vectors.load_some(place, left)
            for _ in range(terms):
                row = vectors.load_some(source, left) if step == 1 else vectors.load_every_other(source, left)
                value, source = join(value, row), builder.gep(source, [apart])
            vectors.store_some(value, place, left)

        vectors.each(count, one)

    def write_each(terms: int) -> None:
        with builder.if_else(is_one) as branches:
            for branch, step in zip(branches, STRIDES):
                with branch, builder.if_else(is_fresh) as (begin, go_on):
                    with begin:
                        write(terms, step, begins=True)
                    with go_on:
                        write(terms, step, begins=False)

    vectors.switch(rows, range(1, MOST + 1), write_each)


@intrinsic(_emit_max_rows)
def max_rows(  # noqa: PLR0913, PLR0917
    x: Array, start: int, apart: int, rows: int, y: Array, to: int, count: int, stride: int, fresh: int
) -> None:
    """Set y[to + i], i < count, to the maximum of x[start + stride i], the same of the other rows, and y[to + i] before.

    There are 1 to MOST rows, `apart` from each other. If fresh, LOWEST replaces y[to + i] before. stride: 1 or 2. The numbers
    read of x are not those written of y.
    """
    for i in range(count):
        most = LOWEST if fresh else y[to + i]
        for r in range(rows):
            value = x[start + r * apart + stride * i]
            most = value if value > most else most
        y[to + i] = most


@intrinsic(_emit_add_rows)
def add_rows(  # noqa: PLR0913, PLR0917
    x: Array, start: int, apart: int, rows: int, y: Array, to: int, count: int, stride: int, fresh: int
) -> None:
    """Add rows as max_rows takes their maximum; if fresh, the sums begin at 0."""
    for i in range(count):
        total = 0 if fresh else y[to + i]
        for r in range(rows):
            total += x[start + r * apart + stride * i]
        y[to + i] = total


def _emit_sum_up(builder: Any, registers: Registers, *given: Any) -> None:
    x, start, count, y, to = given
    int64, vectors = to.type, Vectors(builder, x.type.pointee, registers.lanes)
    whole = builder.sdiv(count, lanes := int64(vectors.lanes))

    def add(place: Any, total: Any) -> list[Any]:
        return [builder.fadd(total, vectors.load(place, 1)[0])]

    (total,) = vectors.repeat(whole, [(builder.gep(x, [start]), lanes)], add, [vectors.zero])
    done = builder.mul(whole, lanes)
    rest = vectors.load_some(builder.gep(x, [builder.add(start, done)]), builder.sub(count, done))
    builder.store(vectors.sum(builder.fadd(total, rest)), builder.gep(y, [to]))


@intrinsic(_emit_sum_up)
def sum_up(x: Array, start: int, count: int, y: Array, to: int) -> None:
    """Set y[to] to the sum of x[start + i], i < count."""
    y[to] = 0
    for i in range(start, start + count):
        y[to] += x[i]


def _emit_divide(builder: Any, registers: Registers, *given: Any) -> None:
    y, to, sizes, start, count = given
    vectors = Vectors(builder, y.type.pointee, registers.lanes)

    def write(i: Any, left: Any) -> None:
        place, size = builder.gep(y, [builder.add(to, i)]), builder.gep(sizes, [builder.add(start, i)])
        vectors.store_some(builder.fdiv(vectors.load_some(place, left), vectors.load_some(size, left)), place, left)

    vectors.each(count, write)


@intrinsic(_emit_divide)
def divide(y: Array, to: int, sizes: Array, start: int, count: int) -> None:
    """Compute y[to + i] /= sizes[start + i], i < count."""
    for i in range(count):
        y[to + i] /= sizes[start + i]


def _emit_windows(
    builder: Any, registers: Registers, given: Any, neutral: float, join: Callable[[Any, Any], Any], finish: Callable[..., Any]
) -> None:
    """Emit a row of windows: two vectors of each row are joined, then the columns that a window sees.

    Loads need no masks if both vectors lie on the map. With three columns and a stride of 2, the vectors do not contain the
    last window.
    """
    from numba.core import cgutils

    x, start, pitch, rows, columns, left, width, y, to, count, stride = given
    int64, vectors, lanes = to.type, Vectors(builder, x.type.pointee, registers.lanes), registers.lanes
    nothing = vectors.everywhere(x.type.pointee(neutral))

    def joined_rows(first: Any, masks: Sequence[Any]) -> list[Any]:
        def row(pointer: Any, *values: Any) -> list[Any]:
            pointers = pointer, builder.gep(pointer, [int64(lanes)])
            parts = [vectors.load_where(place, mask) for place, mask in zip(pointers, masks)]
            if neutral:
                parts = [part if mask is None else builder.select(mask, part, nothing) for mask, part in zip(masks, parts)]
            return [join(value, part) for value, part in zip(values, parts)]

        return vectors.repeat(rows, [(builder.gep(x, [builder.add(start, first)]), pitch)], row, [nothing, nothing])

    def write(step: int, seen: int) -> None:
        each = lanes - 1 if seen > step else lanes
        with cgutils.for_range_slice(builder, int64(0), count, int64(each if step > 1 else lanes), int64) as (i, _):
            first = builder.add(left, builder.mul(i, int64(step)))
            places = first, builder.add(first, int64(lanes))
            ends = builder.icmp_signed("<=", builder.add(first, int64(2 * lanes)), width)
            with builder.if_else(builder.and_(builder.icmp_signed(">=", first, int64(0)), ends)) as (inside, border):
                with inside:
                    whole, after_whole = joined_rows(first, [None, None]), builder.block
                with border:
                    part, after_part = joined_rows(first, [vectors.between(place, width) for place in places]), builder.block
            both = [builder.phi(vectors.type) for _ in whole]
            for phi, one, other in zip(both, whole, part):
                phi.add_incoming(one, after_whole)
                phi.add_incoming(other, after_part)
            value, *others = (vectors.every(step, both[0], both[1], column) for column in range(seen))
            for other in others:
                value = join(value, other)
            some, place = builder.sub(count, i), builder.gep(y, [builder.add(to, i)])
            with builder.if_else(builder.icmp_signed(">=", some, int64(lanes))) as (full, rest):
                for branch, number in ((full, None), (rest, some)):
                    with branch:  # the next windows overwrite the numbers after the last window
                        vectors.store_some(finish(vectors, value, i, number), place, number)

    with builder.if_else(builder.icmp_signed("==", stride, int64(1))) as branches:
        for branch, step in zip(branches, STRIDES):
            with branch:
                vectors.switch(columns, range(1, MOST + 1), partial(write, step))


def _emit_max_windows(builder: Any, registers: Registers, *given: Any) -> None:
    _emit_windows(builder, registers, given, LOWEST, partial(_larger, builder), lambda _, value, *__: value)


def _emit_mean_windows(builder: Any, registers: Registers, *given: Any) -> None:
    *windows, sizes, place = given

    def divided(vectors: Vectors, value: Any, i: Any, some: Any) -> Any:
        return builder.fdiv(value, vectors.load_some(builder.gep(sizes, [builder.add(place, i)]), some))

    _emit_windows(builder, registers, windows, 0.0, partial(_sum, builder), divided)


@intrinsic(_emit_max_windows)
def max_windows(  # noqa: PLR0913, PLR0917
    x: Array, start: int, pitch: int, rows: int, columns: int, left: int, width: int, y: Array, to: int, count: int, stride: int
) -> None:
    """Set y[to + i], i < count, to the maximum of the window that begins at column left + stride * i of a map, at least LOWEST.

    The rows that windows see begin at start, pitch apart. Only columns from 0 to width - 1 count. columns: of a window, 1 to
    MOST; stride: 1 or 2.
    """
    for i in range(count):
        most = LOWEST
        for column in range(left + stride * i, left + stride * i + columns):
            for r in range(rows if 0 <= column < width else 0):
                value = x[start + r * pitch + column]
                most = value if value > most else most
        y[to + i] = most


@intrinsic(_emit_mean_windows)
def mean_windows(  # noqa: PLR0913, PLR0917
    x: Array,
    start: int,
    pitch: int,
    rows: int,
    columns: int,
    left: int,
    width: int,
    y: Array,
    to: int,
    count: int,
    stride: int,
    sizes: Array,
    place: int,
) -> None:
    """Set y[to + i], i < count, to the sum of max_windows' window / sizes[place + i]."""
    for i in range(count):
        total = 0
        for column in range(left + stride * i, left + stride * i + columns):
            for r in range(rows if 0 <= column < width else 0):
                total += x[start + r * pitch + column]
        y[to + i] = total / sizes[place + i]
