"""Vector instructions, for loops whose rows are too short for a compiler's vectors, or whose sums must stay in registers.

    copy(x, start, y, to, count)               a row, whose last vector is masked
    copy_every_other(x, start, y, to, count)   the same with a stride of 2
    copy_inside                                a vector of many rows, where they lie on the map, and 0 elsewhere
    exponentials(y, start, count)              exp of a row, in place
    turn                                       the transpose of a matrix

Vectors emits the instructions for these, and for the tiles (tiles.py), the runs (depthwise.py), the blocks of 3x3 kernels
(depthwise_3x3.py), Winograd's loops and those of pooling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled.jit import Registers, intrinsic

MOST_TURNED = 64
"""Numbers that `turn` processes along a row of y before it continues with the next rows, which brings it back to the same
pages of x."""

MASKED_BYTES = 64
"""Bytes of a vector. Only with AVX-512 is a masked store as fast as another on all processors."""


class _Exp(NamedTuple):
    """The constants of exp for a type.

    terms: of Taylor's series after the 1. ln2: in two parts; products of the first and an exponent are exact. least, most:
    outside them exp is 0 or infinite. bits: of a fraction. bias: the number to add to an exponent for its bits.
    """

    terms: int
    ln2: tuple[float, float]
    least: float
    most: float
    bits: int
    bias: int


EXP = {
    4: _Exp(7, (6.9314575195e-01, 1.4286067653e-06), -104, 89, 23, 127),
    8: _Exp(13, (6.93147180369123816490e-01, 1.90821492927058770002e-10), -746, 710, 52, 1023),
}
"""Constants by the type's bytes. The parts of ln 2 are fdlibm's."""


class Vectors:
    """An emitter of instructions on vectors of `lanes` numbers, with llvmlite's builder. of: the numbers' type."""

    def __init__(self, builder: Any, of: Any, lanes: int) -> None:
        from llvmlite import ir

        self.builder, self.lanes, self.type = builder, lanes, ir.VectorType(of, lanes)
        self.bytes = 4 if isinstance(of, ir.FloatType) else 8
        self.zero, self._nothing = ir.Constant(self.type, [0.0] * lanes), ir.Constant(self.type, ir.Undefined)
        self.int32, self.int64, self._bits = ir.IntType(32), ir.IntType(64), ir.VectorType(ir.IntType(1), lanes)
        self._numbers = ir.Constant(ir.VectorType(self.int32, lanes), list(range(lanes)))

    def place(self, pointer: Any, vector: int = 0) -> Any:
        """Return the pointer to a vector, counted from `pointer`."""
        place = self.builder.gep(pointer, [self.int32(vector * self.lanes)])
        return self.builder.bitcast(place, self.type.as_pointer())

    def load(self, pointer: Any, count: int) -> list[Any]:
        """Return `count` consecutive vectors at the pointer."""
        return [self.builder.load(self.place(pointer, v), align=self.bytes) for v in range(count)]

    def store(self, values: Sequence[Any], pointer: Any) -> None:
        for v, value in enumerate(values):
            self.builder.store(value, self.place(pointer, v), align=self.bytes)

    def everywhere(self, number: Any) -> Any:
        """Return a vector with the number in every lane."""
        return self._shuffled(self.builder.insert_element(self._nothing, number, self.int32(0)), [0] * self.lanes)

    def everywhere_of(self, pointers: Sequence[Any]) -> list[Any]:
        """Return, for each pointer, a vector with its number in every lane."""
        return [self.everywhere(self.builder.load(pointer)) for pointer in pointers]

    def gathered(self, pointers: Sequence[Any]) -> Any:
        """Return a vector of the numbers at these pointers, one for each lane."""
        made = self._nothing
        for lane, pointer in enumerate(pointers):
            made = self.builder.insert_element(made, self.builder.load(pointer), self.int32(lane))
        return made

    def scatter(self, value: Any, pointers: Sequence[Any]) -> None:
        """Emit a store of a vector's numbers to these pointers, one for each lane."""
        for lane, pointer in enumerate(pointers):
            self.builder.store(self.builder.extract_element(value, self.int32(lane)), pointer)

    def every(self, step: int, first: Any, second: Any, start: int = 0) -> Any:
        """Return every step-th number of two consecutive vectors, from number `start` on; past the end, the last one."""
        return self._shuffled(first, [min(start + step * lane, 2 * self.lanes - 1) for lane in range(self.lanes)], second)

    def turned(self, rows: Sequence[Any]) -> list[Any]:
        """Return the numbers of 2, 4, 8 or more vectors column by column: the first of each vector, then the second of each."""
        half, order = len(rows) // 2, [lane + self.lanes * one for lane in range(self.lanes) for one in range(2)]
        parts, found = (order[: self.lanes], order[self.lanes :]), list(rows)
        for _ in range(half.bit_length()):  # interleaves the first half with the second
            found = [self._shuffled(found[i], part, found[half + i]) for i in range(half) for part in parts]
        return found

    def magnitude(self, value: Any) -> Any:
        """Return the absolute values of a vector."""
        return self.builder.call(self._function(f"llvm.fabs.v{self.lanes}f{8 * self.bytes}", self.type, [self.type]), [value])

    def sum(self, value: Any) -> Any:
        """Return the sum of a vector's numbers, added in halves, quarters, ..."""
        size = self.lanes
        while size > 1:
            size //= 2
            moved = self._shuffled(value, [min(lane + size, self.lanes - 1) for lane in range(self.lanes)])
            value = self.builder.fadd(value, moved)
        return self.builder.extract_element(value, self.int32(0))

    def add_product(self, total: Any, a: Any, b: Any) -> Any:
        """Return total + a * b, rounded only once if the processor can do so."""
        product = self.builder.fmul(a, b, flags=("contract",))
        return self.builder.fadd(total, product, flags=("contract",))

    def epilogue(self, sums: Sequence[Any], after: Sequence[Any], sloped: Any) -> list[Any]:
        """Return v = sum * scale + shift, or where v < 0, slope * v.

        after: scale, shift and slope, from everywhere_of. sloped (a bit): whether a slope may be a number other than 0 and 1;
        without such slopes it takes half of the work.
        """
        builder, (scale, shift, slope) = self.builder, after
        lowest = self.everywhere(self.type.element(float("-inf")))
        # With slope 0, negative numbers become 0 before they are multiplied, because -inf * 0 would be NaN.
        least = builder.select(builder.fcmp_ordered("==", slope, self.zero), self.zero, lowest)
        values = [self.add_product(shift, total, scale) for total in sums]
        values = [builder.select(builder.fcmp_ordered("<", value, least), least, value) for value in values]
        before = builder.block
        with builder.if_then(sloped):
            below = [builder.fcmp_ordered("<", value, self.zero) for value in values]
            made = [builder.select(is_below, builder.fmul(v, slope), v) for is_below, v in zip(below, values)]
            then = builder.block
        results = [builder.phi(self.type) for _ in values]
        for phi, value, other in zip(results, values, made):
            phi.add_incoming(value, before)
            phi.add_incoming(other, then)
        return results

    def exp(self, x: Any) -> Any:
        """Return exp(x) = 2^n exp(r), n = x / ln 2 rounded, r the remainder, to two units in the last place; NaN stays NaN."""
        from llvmlite import ir

        builder, of, word = self.builder, EXP[self.bytes], ir.VectorType(ir.IntType(8 * self.bytes), self.lanes)

        def constant(number: float, kind: Any = self.type) -> Any:
            return ir.Constant(kind, [number] * self.lanes)

        for limit, beyond in ((constant(of.least), "<"), (constant(of.most), ">")):
            x = builder.select(builder.fcmp_ordered(beyond, x, limit), limit, x)
        rounding = constant(1.5 * 2**of.bits)  # adding this rounds: the sum has no room for a fraction
        shifted = self.add_product(rounding, x, constant(1 / math.log(2)))
        n, left = builder.fsub(shifted, rounding), x
        for part in of.ln2:
            left = self.add_product(left, n, constant(-part))
        made = constant(1 / math.factorial(of.terms))
        for k in reversed(range(of.terms)):
            made = self.add_product(constant(1 / math.factorial(k)), made, left)
        exponent = builder.sub(builder.bitcast(shifted, word), builder.bitcast(rounding, word))
        half = builder.ashr(exponent, constant(1, word))
        # in two steps, because 2^n may overflow or underflow even if the result does not
        for part in (half, builder.sub(exponent, half)):
            power = builder.shl(builder.add(part, constant(of.bias, word)), constant(of.bits, word))
            made = builder.fmul(made, builder.bitcast(power, self.type))
        return made

    def is_slope(self, number: Any) -> Any:
        """Return whether a number is neither 0 nor 1."""
        found = [self.builder.fcmp_unordered("!=", number, number.type(of)) for of in (0.0, 1.0)]
        return self.builder.and_(*found)

    def load_some(self, pointer: Any, count: Any) -> Any:
        """Return a vector whose first `count` numbers (int64; None: all) are read, at most all; the others are 0."""
        return self.load(pointer, 1)[0] if count is None else self.load_where(pointer, self._mask(count))

    def load_every_other(self, pointer: Any, count: Any) -> Any:
        """Return load_some of every other number. Nothing after the last one is read."""
        builder, lanes, int64 = self.builder, self.lanes, self.int64
        wanted = int64(2 * lanes - 1) if count is None else builder.sub(builder.add(count, count), int64(1))
        second = builder.gep(pointer, [int64(lanes)])
        return self.every(2, self.load_some(pointer, wanted), self.load_some(second, builder.sub(wanted, int64(lanes))))

    def store_some(self, value: Any, pointer: Any, count: Any) -> None:
        """Emit a store of a vector's first `count` numbers (int64, at least 0; None: all), at most all."""
        if count is None:
            self.store([value], pointer)
        elif self.lanes * self.bytes == MASKED_BYTES:
            from llvmlite import ir

            of = [self.type, self.type.as_pointer(), self.int32, self._bits]
            self._call("store", ir.VoidType(), of, [value, self.place(pointer), self.int32(self.bytes), self._mask(count)])
        else:
            self._store_pieces(value, pointer, count)

    def _store_pieces(self, value: Any, pointer: Any, count: Any) -> None:
        """Emit store_some in halves, quarters, ...

        AMD's processors take 12 cycles or more for a masked store of 256 bits.
        """
        builder, size, most = self.builder, self.lanes, count.type(self.lanes)
        left = builder.select(builder.icmp_signed("<", count, most), count, most)
        while size:
            piece = builder.shuffle_vector(value, self._nothing, self._order(range(size)))
            is_stored = builder.icmp_unsigned("!=", builder.and_(left, count.type(size)), count.type(0))
            with builder.if_then(is_stored):
                builder.store(piece, builder.bitcast(pointer, piece.type.as_pointer()), align=self.bytes)
            moved = self._shuffled(value, [min(lane + size, self.lanes - 1) for lane in range(self.lanes)])
            value = builder.select(is_stored, moved, value)
            pointer = builder.select(is_stored, builder.gep(pointer, [count.type(size)]), pointer)
            size //= 2

    def load_where(self, pointer: Any, mask: Any) -> Any:
        """Return a vector whose numbers in the mask (None: all) are read; the others are 0."""
        if mask is None:
            return self.load(pointer, 1)[0]
        of = [self.type.as_pointer(), self.int32, self._bits, self.type]
        return self._call("load", self.type, of, [self.place(pointer), self.int32(self.bytes), mask, self.zero])

    def between(self, first: Any, limit: Any) -> Any:
        """Return the mask of the lanes for which 0 <= first + lane < limit. int64; limit is below 2 ** 31."""
        builder, first = self.builder, self._clamped(first, -self.lanes, limit)
        places = builder.add(self._everywhere(builder.trunc(first, self.int32)), self._numbers)
        return builder.icmp_unsigned("<", places, self._everywhere(builder.trunc(limit, self.int32)))

    def inside(self, begin: Any, end: Any) -> Any:
        """Return the mask of the lanes from begin to end - 1 (int64)."""
        return self.builder.and_(self._mask(end), self.builder.not_(self._mask(begin)))

    def each(self, count: Any, write: Callable[[Any, Any], None]) -> None:
        """Emit write(i, left) for i = 0, lanes, ... below count. left: None for a whole vector, else the numbers that are left.

        A processor forwards a number that it has just stored to a load, but not from a masked store: that load waits.
        """
        from numba.core import cgutils

        builder, int64, lanes = self.builder, count.type, count.type(self.lanes)
        whole = builder.mul(builder.sdiv(count, lanes), lanes)
        with cgutils.for_range_slice(builder, int64(0), whole, lanes, int64) as (i, _):
            write(i, None)
        with builder.if_then(builder.icmp_signed("<", whole, count)):
            write(whole, builder.sub(count, whole))

    def switch(self, value: Any, numbers: Sequence[int], write: Callable[[int], None]) -> None:
        """Emit write(number) for each of the numbers, to run for the one that equals value."""
        builder = self.builder
        end = builder.append_basic_block("end")
        choice = builder.switch(value, end)
        for number in numbers:
            choice.add_case(value.type(number), body := builder.append_basic_block(f"is_{number}"))
            builder.position_at_end(body)
            write(number)
            builder.branch(end)
        builder.position_at_end(end)

    def repeat(
        self, count: Any, pointers: Sequence[tuple[Any, Any]], write: Callable[..., Any], values: Sequence[Any] = ()
    ) -> list[Any]:
        """Emit values = write(*pointers, *values), `count` (int64) times; return the values. Each pointer advances by its step.

        The loop is not unrolled: LLVM's preparation for eight rows would take longer than copying three.
        """
        builder, before, zero, one = self.builder, self.builder.block, count.type(0), count.type(1)
        loop, end = (builder.append_basic_block(name) for name in ("repeat", "repeated"))
        builder.cbranch(builder.icmp_signed(">", count, zero), loop, end)
        builder.position_at_end(loop)
        begun = [count, *(pointer for pointer, _ in pointers), *values]
        left, *places = phis = [builder.phi(value.type) for value in begun]
        made = write(*places) or []
        moved = [builder.gep(place, [step]) for place, (_, step) in zip(places, pointers)]
        fewer, latch = builder.sub(left, one), builder.block
        for phi, value, then in zip(phis, begun, [fewer, *moved, *made], strict=True):
            phi.add_incoming(value, before)
            phi.add_incoming(then, latch)
        branch, module = builder.cbranch(builder.icmp_signed(">", fewer, zero), loop, end), builder.module
        disable = module.add_metadata(["llvm.loop.unroll.disable"])
        loop_id = module.add_metadata([f"loop {len(module.metadata)}"])
        loop_id.operands = loop_id, disable  # LLVM identifies a loop by itself
        branch.set_metadata("llvm.loop", loop_id)
        builder.position_at_end(end)
        results = [builder.phi(value.type) for value in values]
        for phi, value, then in zip(results, values, made):
            phi.add_incoming(value, before)
            phi.add_incoming(then, latch)
        return results

    def prefetch(self, pointer: Any, count: int = 1, to_write: bool = False) -> None:
        """Emit prefetches of `count` vectors at this pointer, which need not exist, into the second cache."""
        from llvmlite import ir

        byte = ir.IntType(8).as_pointer()
        function = self._function("llvm.prefetch.p0i8", ir.VoidType(), [byte, self.int32, self.int32, self.int32])
        for v in range(count):
            place = self.builder.bitcast(self.place(pointer, v), byte)
            self.builder.call(function, [place, *map(self.int32, (int(to_write), 2, 1))])

    def _mask(self, count: Any) -> Any:
        """Return the mask of the first `count` lanes; none if it is negative."""
        count = self._clamped(count, 0, count.type(self.lanes))
        return self.builder.icmp_signed("<", self._numbers, self._everywhere(self.builder.trunc(count, self.int32)))

    def _clamped(self, number: Any, least: int, most: Any) -> Any:
        """Return the number (int64) clamped to least and most, so that it fits an int32."""
        builder, low = self.builder, number.type(least)
        number = builder.select(builder.icmp_signed("<", number, low), low, number)
        return builder.select(builder.icmp_signed("<", number, most), number, most)

    def _everywhere(self, number: Any) -> Any:
        """Return a vector with an int32 in every lane."""
        from llvmlite import ir

        nothing, zeros = ir.Constant(self._numbers.type, ir.Undefined), ir.Constant(self._numbers.type, [0] * self.lanes)
        return self.builder.shuffle_vector(self.builder.insert_element(nothing, number, self.int32(0)), nothing, zeros)

    def _shuffled(self, one: Any, order: Sequence[int], other: Any = None) -> Any:
        return self.builder.shuffle_vector(one, self._nothing if other is None else other, self._order(order))

    def _order(self, order: Sequence[int]) -> Any:
        from llvmlite import ir

        return ir.Constant(ir.VectorType(self.int32, len(order)), list(order))

    def _call(self, what: str, returns: Any, of: list[Any], given: list[Any]) -> Any:
        short = f"v{self.lanes}f{8 * self.bytes}"
        return self.builder.call(self._function(f"llvm.masked.{what}.{short}.p0{short}", returns, of), given)

    def _function(self, name: str, returns: Any, of: list[Any]) -> Any:
        from llvmlite import ir

        module = self.builder.module
        return module.globals.get(name) or ir.Function(module, ir.FunctionType(returns, of), name)


def _emit_copy(builder: Any, registers: Registers, *given: Any) -> None:
    _emit_copies(builder, registers, given, 1)


def _emit_copy_every_other(builder: Any, registers: Registers, *given: Any) -> None:
    _emit_copies(builder, registers, given, 2)


def _emit_copies(builder: Any, registers: Registers, given: Sequence[Any], stride: int) -> None:
    """Emit the copies, one vector of y at a time."""
    x, start, y, to, count = given
    int64, vectors = start.type, Vectors(builder, x.type.pointee, registers.lanes)

    def write(i: Any, left: Any) -> None:
        source = builder.gep(x, [builder.add(start, builder.mul(i, int64(stride)))])
        values = vectors.load_some(source, left) if stride == 1 else vectors.load_every_other(source, left)
        vectors.store_some(values, builder.gep(y, [builder.add(to, i)]), left)

    vectors.each(count, write)


@intrinsic(_emit_copy)
def copy(x: Array, start: int, y: Array, to: int, count: int) -> None:
    """Copy y[to + i] = x[start + i], i < count; flat arrays that do not overlap."""
    for i in range(count):
        y[to + i] = x[start + i]


@intrinsic(_emit_copy_every_other)
def copy_every_other(x: Array, start: int, y: Array, to: int, count: int) -> None:
    """Copy y[to + i] = x[start + 2 i], i < count; flat arrays that do not overlap."""
    for i in range(count):
        y[to + i] = x[start + 2 * i]


def _emit_copy_inside(builder: Any, registers: Registers, *given: Any) -> None:
    x, start, stride, *others = given
    vectors = Vectors(builder, x.type.pointee, registers.lanes)
    vectors.switch(stride, (1, 2), lambda step: _emit_copies_inside(vectors, step, x, start, *others))


def _emit_copies_inside(vectors: Vectors, stride: int, *given: Any) -> None:
    """Emit a loop over the rows: without masks if all numbers are inside, with whole vectors if they have room."""
    x, start, apart, y, to, pitch, many, first, last, room, ahead, _ = given
    builder, int64, lanes = vectors.builder, start.type, vectors.lanes
    # The numbers that are read of a row. Memory may end after the last one.
    low, high = builder.mul(first, int64(stride)), builder.sub(builder.mul(last, int64(stride)), int64(stride - 1))
    offsets = [int64(part * lanes) for part in range(stride)]

    def copy_all(masks: Sequence[Any], count: Any) -> None:
        def copy_row(source: Any, target: Any) -> None:
            vectors.prefetch(builder.gep(source, [ahead]), stride)
            parts = [vectors.load_where(builder.gep(source, [offset]), mask) for offset, mask in zip(offsets, masks)]
            vectors.store_some(parts[0] if stride == 1 else vectors.every(stride, *parts), target, count)

        vectors.repeat(many, [(builder.gep(x, [start]), apart), (builder.gep(y, [to]), pitch)], copy_row)

    def masks() -> list[Any]:
        return [vectors.inside(builder.sub(low, offset), builder.sub(high, offset)) for offset in offsets]

    reaches = builder.icmp_signed(">=", high, int64(stride * lanes))
    with builder.if_else(builder.icmp_signed(">=", room, int64(lanes))) as (fits, rest):
        with fits, builder.if_else(builder.and_(builder.icmp_signed("<=", first, int64(0)), reaches)) as (all_, some):
            with all_:
                copy_all([None] * stride, None)
            with some:
                copy_all(masks(), None)
        with rest:
            copy_all(masks(), room)


@intrinsic(_emit_copy_inside)
def copy_inside(  # noqa: PLR0913, PLR0917
    x: Array,
    start: int,
    stride: int,
    apart: int,
    y: Array,
    to: int,
    pitch: int,
    many: int,
    first: int,
    last: int,
    room: int,
    ahead: int,
    lanes: int,
) -> None:
    """Set y[to + i] to x[start + stride i] if first <= i < last, else to 0, i < lanes and i < room, for each of `many` rows.

    stride: 1 or 2. lanes: of a vector. From row to row x advances by `apart`, y by pitch. The numbers at a distance of `ahead`
    are prefetched, as no processor does by itself for rows that are far apart. Flat arrays that do not overlap.
    """
    for row in range(many):
        for i in range(min(lanes, room)):
            y[to + row * pitch + i] = x[start + row * apart + stride * i] if first <= i < last else 0


def _emit_exponentials(builder: Any, registers: Registers, *given: Any) -> None:
    y, start, count = given
    vectors = Vectors(builder, y.type.pointee, registers.lanes)

    def write(i: Any, left: Any) -> None:
        place = builder.gep(y, [builder.add(start, i)])
        vectors.store_some(vectors.exp(vectors.load_some(place, left)), place, left)

    vectors.each(count, write)


@intrinsic(_emit_exponentials)
def exponentials(y: Array, start: int, count: int) -> None:
    """Replace y[start + i] by its exponential, i < count; flat."""
    for i in range(start, start + count):
        y[i] = np.exp(y[i])


def _emit_turn(builder: Any, registers: Registers, *given: Any) -> None:
    """Emit a transpose of squares, of the largest side that fits. The last ones in rows and columns overlap those before."""
    from numba.core import cgutils

    x, start, apart, y, to, pitch, rows, columns = given
    int64 = start.type

    def less(a: Any, b: Any) -> Any:
        return builder.select(builder.icmp_signed("<", a, b), a, b)

    def write(side: int) -> None:
        vectors, step = Vectors(builder, x.type.pointee, side), int64(side)

        def square(i: Any, j: Any) -> None:
            i, j = less(i, builder.sub(rows, step)), less(j, builder.sub(columns, step))
            source = builder.gep(x, [builder.add(builder.add(start, i), builder.mul(j, apart))])
            target = builder.gep(y, [builder.add(builder.add(to, j), builder.mul(i, pitch))])
            lines = [vectors.load(builder.gep(source, [builder.mul(apart, int64(line))]), 1)[0] for line in range(side)]
            for line, turned in enumerate(vectors.turned(lines)):
                vectors.store([turned], builder.gep(target, [builder.mul(pitch, int64(line))]))

        with cgutils.for_range_slice(builder, int64(0), columns, int64(MOST_TURNED), int64) as (first, _):
            end = less(builder.add(first, int64(MOST_TURNED)), columns)
            each_row = cgutils.for_range_slice(builder, int64(0), rows, step, int64)
            with each_row as (i, _), cgutils.for_range_slice(builder, first, end, step, int64) as (j, _):
                square(i, j)

    sides, side, least = sorted({registers.lanes, 4, 1}), int64(0), less(rows, columns)
    for one in sides:
        side = builder.select(builder.icmp_signed(">=", least, int64(one)), int64(one), side)
    Vectors(builder, x.type.pointee, 1).switch(side, sides, write)


@intrinsic(_emit_turn)
def turn(  # noqa: PLR0917
    x: Array, start: int, apart: int, y: Array, to: int, pitch: int, rows: int, columns: int
) -> None:
    """Copy y[to + i * pitch + j] = x[start + j * apart + i], i < rows, j < columns; flat arrays that do not overlap."""
    for i in range(rows):
        for j in range(columns):
            y[to + i * pitch + j] = x[start + j * apart + i]
