"""Winograd's transforms as loops, in the nearest cache. They do winograd_tiles' matrix products one channel at a time.

    to_tiles     pixels of x, dealt out to the tiles -> BT along rows -> BT along columns -> tiles (36, C, T)
                 (and the sums of |x| over channels, from which find_outliers flags tiles: winograd_outliers.py)
    multiply     factors (36, M, C), in panels of some filters side by side, times tiles -> products (36, M, T)
    from_tiles   products (36, M, T) -> AT along columns -> AT along rows -> relu(out * scale + shift) -> pixels of y

Every inner loop runs over tiles, which are contiguous. The symmetry of the points (p, -p, q, -q) halves the multiplications:
the results of even and odd powers are added for one point and subtracted for the other.

All arrays are flat, and at(k) is an index that is not negative. Otherwise Numba counts references to each named part of an
array, and checks each index for counting from the end, and then the loops cannot be vectorised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled.jit import Registers, intrinsic, loop
from minicaffe.compiled.tiles import LANES, panel_products
from minicaffe.compiled.vectors import Vectors
from minicaffe.layers.conv.winograd_tiles import POINTS

_p, _q = POINTS[1], POINTS[3]
POWERS: Array = np.array([_p, _q, _p**2, _q**2, _p**3, _q**3, _p**2 + _q**2, _p**2 * _q**2], np.float32)
"""The factors in the transforms."""

APART = 16
"""Numbers between two of the 36 matrices, which would otherwise lie in the same cache lines."""

NUMBERS = 1 << 17
"""Numbers of tiles that all panels of factors multiply before the next tiles: 512 KB, which the second cache holds next to the
sums."""

SUMS, WINDOWS, TOTAL = 48, 72, 88
"""The places in `line`, counted in rows of tiles' numbers, where sums of |x| begin: of the 24 pixels that tiles do not share,
of the windows of a tile's 16 outputs, and of the whole tile."""

FACTORS = 512
"""Numbers of each of the 36 matrices that are made at a time, in the first cache."""

at = np.uint64


def memory_sizes(rows: int, columns: int, planes: int, channels: int, filters: int) -> tuple[int, int, int, int]:
    """Return the lengths of `line`, `pixels`, `tiles` and `products`, multiples of LANES, for planes of this many tiles."""
    row, plane = padded((rows + 1) * columns), padded(planes * rows * columns)
    return (TOTAL + 1) * row, padded(4 * row + 2 * (rows + 1)), 36 * (channels * plane + APART), 36 * (filters * plane + APART)


def padded(count: int) -> int:
    """Return count rounded up to a multiple of LANES."""
    return -(-count // LANES) * LANES


def _emit_transform(builder: Any, registers: Registers, *given: Any) -> None:
    d, *of, t, first, step, count, padded, powers = given
    int64, vectors = count.type, Vectors(builder, d.type.pointee, registers.lanes)
    p, q, p2, q2, _, _, both, product = _everywhere(builder, vectors, powers, int64)
    plus, minus, times = builder.fadd, builder.fsub, builder.fmul

    def write(i: Any, left: Any) -> None:
        e0, e1, e2, e3, e4, e5 = (vectors.load_some(builder.gep(d, [builder.add(start, i)]), left) for start in of)
        even_p, odd_p = minus(e4, times(q2, e2)), times(p, minus(e3, times(q2, e1)))
        even_q, odd_q = minus(e4, times(p2, e2)), times(q, minus(e3, times(p2, e1)))
        made = (
            plus(minus(e4, times(both, e2)), times(product, e0)),
            plus(even_p, odd_p),
            minus(even_p, odd_p),
            plus(even_q, odd_q),
            minus(even_q, odd_q),
            plus(minus(e5, times(both, e3)), times(product, e1)),
        )
        _store(vectors, made, builder.gep(t, [builder.add(first, i)]), step, left, padded)

    vectors.each(count, write)


@intrinsic(_emit_transform)
def _transform(  # noqa: PLR0913, PLR0917
    d: Array,
    d0: int,
    d1: int,
    d2: int,
    d3: int,
    d4: int,
    d5: int,
    t: Array,
    first: int,
    step: int,
    count: int,
    padded: int,
    powers: Array,
) -> None:
    """Compute t = BT d, `count` times: the six numbers of d begin at d0 to d5, those of t at `first`, `step` apart.

    padded: whether the numbers after these, up to a multiple of LANES, may be overwritten.
    """
    p, q, p2, q2, both, product = powers[0], powers[1], powers[2], powers[3], powers[6], powers[7]
    for k in range(count):
        e1, e2, e3, e4 = d[d1 + k], d[d2 + k], d[d3 + k], d[d4 + k]
        even_p, odd_p = e4 - q2 * e2, p * (e3 - q2 * e1)
        even_q, odd_q = e4 - p2 * e2, q * (e3 - p2 * e1)
        e0, e5 = d[d0 + k], d[d5 + k]
        t[first + k] = e4 - both * e2 + product * e0
        t[first + step + k] = even_p + odd_p
        t[first + 2 * step + k] = even_p - odd_p
        t[first + 3 * step + k] = even_q + odd_q
        t[first + 4 * step + k] = even_q - odd_q
        t[first + 5 * step + k] = e5 - both * e3 + product * e1


def _emit_outputs(builder: Any, registers: Registers, *given: Any) -> None:
    t, start, stride, y, first, step, count, powers = given
    int64, vectors = count.type, Vectors(builder, t.type.pointee, registers.lanes)
    p, q, p2, q2, p3, q3, _, _ = _everywhere(builder, vectors, powers, int64)
    plus, minus, times = builder.fadd, builder.fsub, builder.fmul

    def write(i: Any, left: Any) -> None:
        of = builder.gep(t, [builder.add(start, i)])
        e0, e1, e2, e3, e4, e5 = (vectors.load_some(builder.gep(of, [builder.mul(stride, int64(k))]), left) for k in range(6))
        even_p, odd_p, even_q, odd_q = plus(e1, e2), minus(e1, e2), plus(e3, e4), minus(e3, e4)
        made = (
            plus(plus(e0, even_p), even_q),
            plus(times(p, odd_p), times(q, odd_q)),
            plus(times(p2, even_p), times(q2, even_q)),
            plus(plus(times(p3, odd_p), times(q3, odd_q)), e5),
        )
        _store(vectors, made, builder.gep(y, [builder.add(first, i)]), step, None, None)

    vectors.each(count, write)


@intrinsic(_emit_outputs)
def _outputs(  # noqa: PLR0917
    t: Array, start: int, stride: int, y: Array, first: int, step: int, count: int, powers: Array
) -> None:
    """Compute y = AT t, `count` times: t's six numbers begin at `start`, `stride` apart, y's four at `first`, `step` apart.

    The numbers after these, up to a multiple of LANES, may be overwritten.
    """
    p, q, p2, q2, p3, q3 = powers[0], powers[1], powers[2], powers[3], powers[4], powers[5]
    for k in range(count):
        e1, e2, e3, e4 = t[start + stride + k], t[start + 2 * stride + k], t[start + 3 * stride + k], t[start + 4 * stride + k]
        even_p, odd_p, even_q, odd_q = e1 + e2, e1 - e2, e3 + e4, e3 - e4
        e0, e5 = t[start + k], t[start + 5 * stride + k]
        y[first + k] = e0 + even_p + even_q
        y[first + step + k] = p * odd_p + q * odd_q
        y[first + 2 * step + k] = p2 * even_p + q2 * even_q
        y[first + 3 * step + k] = p3 * odd_p + q3 * odd_q + e5


def _emit_deal(builder: Any, registers: Registers, *given: Any) -> None:
    from numba.core import cgutils

    pixels, line, to, sums, step, count = given
    int64, vectors = count.type, Vectors(builder, pixels.type.pointee, registers.lanes)
    with cgutils.for_range_slice(builder, int64(0), count, int64(registers.lanes), int64) as (i, _):
        a, b, c, d = vectors.load(builder.gep(pixels, [builder.mul(i, int64(4))]), 4)
        halves = [(vectors.every(2, a, b, start), vectors.every(2, c, d, start)) for start in (0, 1)]
        for k in range(4):  # numbers k, k + 4, ...: taking every other number twice
            made, on = vectors.every(2, *halves[k % 2], start=k // 2), builder.add(i, builder.mul(step, int64(k)))
            place, total = (builder.gep(line, [builder.add(start, on)]) for start in (to, sums))
            vectors.store([made], place)
            vectors.store([builder.fadd(vectors.load(total, 1)[0], vectors.magnitude(made))], total)


@intrinsic(_emit_deal)
def _deal(pixels: Array, line: Array, to: int, sums: int, step: int, count: int) -> None:
    """Set line[to + j step + i] to d, and add |d| to line[sums + j step + i], d = pixels[4 i + j], for j < 4 and i < count.

    The numbers after these, up to a multiple of LANES, are also read and overwritten.
    """
    for i in range(count):
        for j in range(4):
            line[to + j * step + i] = pixels[4 * i + j]
            line[sums + j * step + i] += abs(pixels[4 * i + j])


def _store(vectors: Vectors, values: Sequence[Any], to: Any, step: Any, left: Any, padded: Any) -> None:
    """Emit the stores of vectors, `step` apart. left: the numbers that count, None for whole vectors.

    padded: whether the other numbers may be overwritten, with 0 or numbers computed from 0.
    """
    builder = vectors.builder
    places = [builder.gep(to, [builder.mul(step, step.type(k))]) for k in range(len(values))]
    if left is None:
        for value, place in zip(values, places):
            vectors.store([value], place)
        return
    with builder.if_else(builder.icmp_signed("!=", padded, padded.type(0))) as (whole, some):
        with whole:
            for value, place in zip(values, places):
                vectors.store([value], place)
        with some:
            for value, place in zip(values, places):
                vectors.store_some(value, place, left)


def _everywhere(builder: Any, vectors: Vectors, powers: Any, int64: Any) -> list[Any]:
    """Return each of the powers as a vector with it in every lane."""
    return [vectors.everywhere(builder.load(builder.gep(powers, [int64(i)]))) for i in range(8)]


@loop("Array(T, 5, 'A', True), T[:,::1], T[:,:,:,::1], int64, int64")
def make_factors(weight: Array, g: Array, factors: Array, first: int, last: int) -> None:
    """Compute factors (36, panels, C, rows) = G w G^T of weight (1 or more, M, C, 3, 3), for panels first to last - 1.

    Filters past M get 0.
    """
    (filters, channels), rows = weight.shape[1:3], factors.shape[3]
    w, down = np.empty((9, FACTORS), weight.dtype), np.empty((3, FACTORS), weight.dtype)
    together = FACTORS // rows
    for c0 in range(0, channels, together):  # the outer loop, because other channels of a gradient are on other pages
        count = min(together, channels - c0)
        for p in range(first, last):
            for c in range(count):
                for r in range(rows):
                    f = p * rows + r
                    for i in range(3):
                        for j in range(3):
                            w[3 * i + j, c * rows + r] = weight[0, f, c0 + c, i, j] if f < filters else 0
            for i in range(6):
                for j in range(3):
                    for k in range(count * rows):
                        down[j, k] = g[i, 0] * w[j, k] + g[i, 1] * w[3 + j, k] + g[i, 2] * w[6 + j, k]
                for j in range(6):
                    made = factors[6 * i + j, p].reshape(-1)[c0 * rows :]
                    for k in range(count * rows):
                        made[k] = g[j, 0] * down[0, k] + g[j, 1] * down[1, k] + g[j, 2] * down[2, k]


@loop("T[::1], UniTuple(int64, 8), T[::1], UniTuple(int64, 4), T[::1], T[::1], T[::1]")
def to_tiles(  # noqa: PLR0917
    x: Array,
    place: tuple[int, ...],
    tiles: Array,
    grid: tuple[int, int, int, int],
    line: Array,
    pixels: Array,
    powers: Array,
) -> None:
    """Set tiles[6 i + j, number + c, first + t] to (BT d BT^T)[i, j], d the 6 x 6 pixels of tile t of x (C, H, W).

    place: C, H, W; the row and the column of the pixel at which the first tile begins; the distance of a tile's pixels on the
    map, down and across; number. Pixels may lie off the map: there d is 0. tiles is (36, number + C or more, plane). grid:
    plane, first, rows and columns of tiles. Up to LANES tiles after them become 0. line and pixels (memory_sizes) are
    overwritten. line[SUMS * most :] becomes the sums over channels of |d|, for columns 4 and 5 only where no tile follows.
    """
    channels, height, width, row, column, down, across, number = place
    plane, first, rows, columns = grid
    count, most = rows * columns, ((rows + 1) * columns + LANES - 1) // LANES * LANES
    wide, step = 4 * columns, len(tiles) // 36
    behind = min(plane, first + count + LANES)
    past = 4 * most  # where in `pixels` the numbers begin that the last tile of each row has after its fourth
    left = min(wide, max(0, (across - 1 - column) // across))
    right = max(left, min(wide, (width - column + across - 1) // across))
    sums, zero = SUMS * most, powers[0] - powers[0]
    for k in range(24 * most):
        line[at(sums + k)] = zero
    for c in range(channels):
        # row i of all tiles; for tiles that share it with the next row of tiles, also row 4 + i of the last one
        for i in range(4):
            below = rows + 1 if i < 2 else rows
            n, p0 = below * columns, 6 * i * most
            for r in range(below):
                h, start = row + (4 * r + i) * down, r * wide
                inside = 0 <= h < height
                x0 = (c * height + h) * width + column
                for k in range(left if inside else wide):
                    pixels[at(start + k)] = 0
                if inside:
                    if across == 1:
                        for k in range(left, right):
                            pixels[at(start + k)] = x[at(x0 + k)]
                    else:
                        for k in range(left, right):
                            pixels[at(start + k)] = x[at(x0 + k * across)]
                    for k in range(right, wide):
                        pixels[at(start + k)] = 0
                for k in range(2):
                    on = (wide + k) * across
                    pixels[past + 2 * r + k] = 0
                    if inside and 0 <= column + on < width:
                        pixels[past + 2 * r + k] = x[x0 + on]
            _deal(pixels, line, p0, sums + p0, most, n)  # pixels 0 to 3 of each tile
            for k in range(n - 1):  # pixels 4 and 5 are pixels 0 and 1 of the next tile
                line[at(p0 + 4 * most + k)], line[at(p0 + 5 * most + k)] = line[at(p0 + k + 1)], line[at(p0 + most + k + 1)]
            for r in range(below):
                last = p0 + 4 * most + (r + 1) * columns - 1
                line[last], line[last + most] = pixels[past + 2 * r], pixels[past + 2 * r + 1]
                line[sums + last] += abs(line[last])
                line[sums + last + most] += abs(line[last + most])
            p1, p2, p3, p4, p5 = p0 + most, p0 + 2 * most, p0 + 3 * most, p0 + 4 * most, p0 + 5 * most
            _transform(line, p0, p1, p2, p3, p4, p5, line, p0 + 24 * most, most, n, 1, powers)
        for j in range(6):
            d0 = (24 + j) * most
            d1 = d0 + 6 * most
            d2, d3, to = d0 + 12 * most, d0 + 18 * most, j * step + (number + c) * plane + first
            _transform(line, d0, d1, d2, d3, d0 + columns, d1 + columns, tiles, to, 6 * step, count, 0, powers)
        # vectors also multiply the numbers after the last tile, and old ones may be denormal, which are slow
        for i in range(36):
            for k in range(first + count, behind):
                tiles[at(i * step + (number + c) * plane + k)] = 0


@loop("T[::1], int64, int64, T[::1]")
def add_windows(line: Array, rows: int, columns: int, taps: Array) -> None:
    """Add to_tiles' sums of |d| in line to those of each output's window, and of the whole tile.

    taps (6,): 1 for rows, then columns, of the 3 x 3 taps that the piece has, else 0.
    """
    count, most = rows * columns, ((rows + 1) * columns + LANES - 1) // LANES * LANES
    a0, a1, a2, b0, b1, b2 = taps[0], taps[1], taps[2], taps[3], taps[4], taps[5]
    for i in range(4):
        p0, n = (SUMS + 6 * i) * most, count + columns if i < 2 else count
        for first in range(p0, p0 + n, columns):
            for k in range(first, first + columns - 1):
                line[at(k + 4 * most)], line[at(k + 5 * most)] = line[at(k + 1)], line[at(k + most + 1)]
        for k in range(n):
            e0, e1, e2 = line[at(p0 + k)], line[at(p0 + most + k)], line[at(p0 + 2 * most + k)]
            e3, e4, e5 = line[at(p0 + 3 * most + k)], line[at(p0 + 4 * most + k)], line[at(p0 + 5 * most + k)]
            line[at(p0 + k)] = b0 * e0 + b1 * e1 + b2 * e2
            line[at(p0 + most + k)] = b0 * e1 + b1 * e2 + b2 * e3
            line[at(p0 + 2 * most + k)] = b0 * e2 + b1 * e3 + b2 * e4
            line[at(p0 + 3 * most + k)] = b0 * e3 + b1 * e4 + b2 * e5
            line[at(p0 + 4 * most + k)] = e0 + e1 + e2 + e3 + e4 + e5
    for j in range(5):
        p0, p1, p2, p3 = (SUMS + j) * most, (SUMS + 6 + j) * most, (SUMS + 12 + j) * most, (SUMS + 18 + j) * most
        to = (WINDOWS + 4 * j) * most
        for k in range(count):
            e0, e1, e2, e3 = line[at(p0 + k)], line[at(p1 + k)], line[at(p2 + k)], line[at(p3 + k)]
            e4, e5 = line[at(p0 + columns + k)], line[at(p1 + columns + k)]
            if j == 4:
                line[at(to + k)] += e0 + e1 + e2 + e3 + e4 + e5
            else:
                line[at(to + k)] += a0 * e0 + a1 * e1 + a2 * e2
                line[at(to + most + k)] += a0 * e1 + a1 * e2 + a2 * e3
                line[at(to + 2 * most + k)] += a0 * e2 + a1 * e3 + a2 * e4
                line[at(to + 3 * most + k)] += a0 * e3 + a1 * e4 + a2 * e5


@loop("T[::1], int64, int64, T[::1], T[::1]")
def find_outliers(line: Array, rows: int, columns: int, shares: Array, flags: Array) -> None:
    """Set flags (tiles,) to 0 where each window's sum in line is at least its share of the whole tile's, else to 1.

    shares: a factor for each of the 4 rows of outputs of each row of tiles, then for each of the 4 columns of each column.
    """
    count, most = rows * columns, ((rows + 1) * columns + LANES - 1) // LANES * LANES
    total = TOTAL * most
    zero = shares[0] - shares[0]
    one = zero + 1
    for k in range(count):
        flags[at(k)] = zero
    for j in range(4):
        for i in range(4):
            window, across = (WINDOWS + 4 * j + i) * most, 4 * rows + j * columns
            for r in range(rows):
                down, first = shares[i * rows + r], r * columns
                for k in range(columns):
                    least = line[at(total + first + k)] * down * shares[at(across + k)]
                    is_right = least <= line[at(window + first + k)]  # False for NaN
                    flags[at(first + k)] = flags[at(first + k)] if is_right else one


@loop("T[::1], T[::1], T[::1], UniTuple(int64, 5)")
def multiply(factors: Array, tiles: Array, sums: Array, sizes: tuple[int, ...]) -> None:
    """Compute sums (36, panels * rows, plane) = factors (36, panels, C, rows) @ tiles (36, C, plane).

    Each sum is made in the order of C, of which some channels are taken at a time. tiles and sums may have more numbers after
    each of the 36. sizes: panels, C, rows, plane (a multiple of LANES), and the distance between the 36 matrices in factors.
    """
    panels, channels, rows, plane, apart = sizes
    parts = (channels * plane + NUMBERS - 1) // NUMBERS
    together = (channels + parts - 1) // parts
    for i in range(36):
        for c in range(0, channels, together):
            columns, depth = tiles[i * (len(tiles) // 36) + c * plane :], min(together, channels - c)
            for p in range(panels):
                start, to = i * apart + (p * channels + c) * rows, i * (len(sums) // 36) + p * rows * plane
                panel_products(factors, columns, sums, start, to, depth, plane, c == 0)


@loop("T[::1], UniTuple(int64, 4), T[::1], UniTuple(int64, 8), T[:,::1], T[::1], T[::1], T[::1], T[::1]")
def from_tiles(  # noqa: PLR0913, PLR0917
    tiles: Array,
    grid: tuple[int, int, int, int],
    y: Array,
    place: tuple[int, ...],
    after: Array,
    flags: Array,
    line: Array,
    pixels: Array,
    powers: Array,
) -> None:
    """Set y[m] to relu(AT tile A * scale[m] + shift[m]), of products (36, M or more, plane). Pixels off the map are left out.

    grid, place: as for to_tiles, but place is for y (M, H, W) and ends with the number of its first filter in after (3, M or
    more): scale, shift, slope. relu(v) is v, or slope * v where v < 0. line and pixels (memory_sizes) are overwritten. flags
    (tiles,) become NaN where not all outputs of a tile were finite before the scale.
    """
    channels, height, width, row, column, down, across, number = place
    plane, first, rows, columns = grid
    count, step, wide = rows * columns, len(tiles) // 36, 4 * columns
    right, zero = min(wide, (width - column + across - 1) // across), powers[0] - powers[0]
    most = (count + LANES - 1) // LANES * LANES
    out, check = 24 * most, 28 * most
    for k in range(count):
        line[at(check + k)] = flags[at(k)]
    for m in range(channels):
        scale, shift, slope = after[0, number + m], after[1, number + m], after[2, number + m]
        for j in range(6):
            _outputs(tiles, j * step + m * plane + first, 6 * step, line, j * most, 6 * most, count, powers)
        for i in range(4):
            _outputs(line, 6 * i * most, most, line, out, most, count, powers)
            for j in range(4):
                o = out + j * most
                for k in range(count):
                    value = line[at(o + k)]
                    line[at(check + k)] += value * zero  # stays NaN after the first one
                    value = value * scale + shift
                    below = zero if slope == zero else value * slope  # -inf * 0 would be NaN
                    line[at(o + k)] = below if value < zero else value
            for k in range(count):
                o0, o1 = line[at(out + k)], line[at(out + most + k)]
                o2, o3 = line[at(out + 2 * most + k)], line[at(out + 3 * most + k)]
                pixels[4 * k], pixels[4 * k + 1], pixels[4 * k + 2], pixels[4 * k + 3] = o0, o1, o2, o3
            for r in range(rows):
                h, start = row + (4 * r + i) * down, r * wide
                if h >= height:
                    break
                y0 = (m * height + h) * width + column
                if across == 1:
                    for k in range(right):
                        y[at(y0 + k)] = pixels[at(start + k)]
                else:
                    for k in range(right):
                        y[at(y0 + k * across)] = pixels[at(start + k)]
    for k in range(count):
        flags[at(k)] = line[at(check + k)]


@loop(
    "T[::1], T[::1], T[:,::1], T[::1], T[::1], T[::1], T[::1], int64[:,::1], int64[:,::1], T[:,::1], T[:,::1], "
    "UniTuple(int64, 19)",
    in_calls=True,
)
def convolve_planes(  # noqa: PLR0913, PLR0917
    x: Array,
    factors: Array,
    after: Array,
    flags: Array,
    y: Array,
    memory: Array,
    powers: Array,
    planes: Array,
    pieces: Array,
    taps: Array,
    shares: Array,
    sizes: tuple[int, ...],
) -> None:
    """Compute some planes of a convolution: y = relu(outputs of [factors @ tiles of x] * scale + shift).

    x, factors, flags, y and memory are flat.

    planes (S, 6): where the plane's channels begin in x, the row and column of its first tile's first pixel there; the same for
    y. pieces (P, 2): how many rows and columns further a piece's pixels are; taps (P, 6) and shares (S, 4 rows + 4 columns):
    for add_windows and find_outliers. sizes: C, H, W of x; M, H, W of y; rows and columns of tiles; the distances of pixels,
    down and across, in x and in y; panels, rows of one, and the distance between the 36 matrices in factors; the lengths of
    line, pixels and tiles, which precede the products in memory (memory_sizes); the first filter's number in after (3, M or
    more). flags (S * tiles,): 0 for tiles whose outputs are right.
    """
    channels, height, width, filters, out_height, out_width, rows, columns, down, across = sizes[:10]
    out_down, out_across, panels, each, apart = sizes[10:15]
    count, depth = rows * columns, len(pieces) * channels
    plane = (len(planes) * count + LANES - 1) // LANES * LANES
    begin = sizes[15] + sizes[16]
    line, pixels, end = memory[: sizes[15]], memory[sizes[15] : begin], begin + sizes[17]
    tiles, products = memory[begin:end], memory[end:]
    most, zero = ((rows + 1) * columns + LANES - 1) // LANES * LANES, powers[0] - powers[0]
    for s in range(len(planes)):
        for k in range(WINDOWS * most, (TOTAL + 1) * most):
            line[at(k)] = zero
        for p in range(len(pieces)):
            row, column = planes[s, 1] + pieces[p, 0], planes[s, 2] + pieces[p, 1]
            place = (channels, height, width, row, column, down, across, p * channels)
            to_tiles(x[planes[s, 0] :], place, tiles, (plane, s * count, rows, columns), line, pixels, powers)
            add_windows(line, rows, columns, taps[p])
        find_outliers(line, rows, columns, shares[s], flags[s * count :])
    multiply(factors, tiles, products, (panels, depth, each, plane, apart))
    for s in range(len(planes)):
        of_y = (filters, out_height, out_width, planes[s, 4], planes[s, 5], out_down, out_across, sizes[18])
        out, of_plane = y[planes[s, 3] :], flags[s * count :]
        from_tiles(products, (plane, s * count, rows, columns), out, of_y, after, of_plane, line, pixels, powers)
