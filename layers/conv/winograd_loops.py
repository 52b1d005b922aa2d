"""Winograd's transforms as loops: what winograd_tiles does by matrix products, a channel at a time, in the nearest cache.

    to_tiles     pixels of x, dealt out to the tiles -> BT along rows -> BT along columns -> tiles (36, C, T)
    from_tiles   products (36, M, T) -> AT along columns -> AT along rows -> relu(out * scale + shift) -> pixels of y

Every inner loop runs over tiles, which lie side by side. The symmetry of the points (p, -p, q, -q) halves the
multiplications: what even and odd powers give is added for the one and subtracted for the other.

All arrays are flat, and at(k) is an index that is not negative: Numba counts references to each part of an array that gets
a name, and looks at each index for whether it counts from the end, which would keep the loops from running on vectors.
"""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.loops import loop

from .winograd_matrices import POINTS

_p, _q = POINTS[1], POINTS[3]
POWERS: Array = np.array([_p, _q, _p**2, _q**2, _p**3, _q**3, _p**2 + _q**2, _p**2 * _q**2], np.float32)
"""What the transforms multiply by."""

at = np.uint64


def scratch_sizes(rows: int, columns: int) -> tuple[int, int]:
    """How long `line` and `pixels` of the loops must be for so many tiles."""
    return 48 * (rows + 1) * columns, (rows + 1) * (4 * columns + 2)


@loop("T[::1], UniTuple(int64, 6), T[::1], UniTuple(int64, 3), T[::1]")
def _transform(d: Array, of: tuple[int, ...], t: Array, to: tuple[int, int, int], powers: Array) -> None:
    """t = BT d, many times: the six numbers of d from `of` on, those of t from to[0] on, to[1] apart; to[2] times."""
    p, q, p2, q2, both, product = powers[0], powers[1], powers[2], powers[3], powers[6], powers[7]
    d0, d1, d2, d3, d4, d5 = of
    first, step, count = to
    for k in range(count):
        e1, e2, e3, e4 = d[at(d1 + k)], d[at(d2 + k)], d[at(d3 + k)], d[at(d4 + k)]
        even_p, odd_p = e4 - q2 * e2, p * (e3 - q2 * e1)
        even_q, odd_q = e4 - p2 * e2, q * (e3 - p2 * e1)
        t[at(first + k)] = e4 - both * e2 + product * d[at(d0 + k)]
        t[at(first + step + k)] = even_p + odd_p
        t[at(first + 2 * step + k)] = even_p - odd_p
        t[at(first + 3 * step + k)] = even_q + odd_q
        t[at(first + 4 * step + k)] = even_q - odd_q
        t[at(first + 5 * step + k)] = d[at(d5 + k)] - both * e3 + product * e1


@loop("T[::1], UniTuple(int64, 2), T[::1], UniTuple(int64, 3), T[::1]")
def _outputs(t: Array, of: tuple[int, int], y: Array, to: tuple[int, int, int], powers: Array) -> None:
    """y = AT t, many times: the six numbers of t from of[0] on, of[1] apart; the four of y from to[0] on, to[1] apart; to[2]
    times."""
    p, q, p2, q2, p3, q3 = powers[0], powers[1], powers[2], powers[3], powers[4], powers[5]
    start, stride = of
    first, step, count = to
    for k in range(count):
        e1, e2 = t[at(start + stride + k)], t[at(start + 2 * stride + k)]
        e3, e4 = t[at(start + 3 * stride + k)], t[at(start + 4 * stride + k)]
        even_p, odd_p, even_q, odd_q = e1 + e2, e1 - e2, e3 + e4, e3 - e4
        y[at(first + k)] = t[at(start + k)] + even_p + even_q
        y[at(first + step + k)] = p * odd_p + q * odd_q
        y[at(first + 2 * step + k)] = p2 * even_p + q2 * even_q
        y[at(first + 3 * step + k)] = p3 * odd_p + q3 * odd_q + t[at(start + 5 * stride + k)]


@loop("T[::1], UniTuple(int64, 7), T[::1], UniTuple(int64, 4), T[::1], T[::1], T[::1]")
def to_tiles(  # noqa: PLR0917
    x: Array,
    place: tuple[int, ...],
    tiles: Array,
    grid: tuple[int, int, int, int],
    line: Array,
    pixels: Array,
    powers: Array,
) -> None:
    """tiles[6 i + j, c, first + t] = (BT d BT^T)[i, j], d the 6 x 6 pixels of tile t of x (C, H, W).

    place: C, H, W; the pixel, row and column, at which the first tile begins, which may lie off the map, as may others: there
    d is 0; how far apart on the map the pixels of a tile are, down and across. tiles is (36, C, plane); grid: plane, first,
    rows and columns of tiles. line and pixels (scratch_sizes) are overwritten.
    """
    channels, height, width, row, column, down, across = place
    plane, first, rows, columns = grid
    count, most, wide, step = rows * columns, (rows + 1) * columns, 4 * columns, channels * plane
    past = 4 * most  # where in pixels those begin that the last tile of a row has past its fourth
    left = min(wide, max(0, (across - 1 - column) // across))
    right = max(left, min(wide, (width - column + across - 1) // across))
    for c in range(channels):
        for i in range(4):  # row i of all tiles, and of those that the next row of tiles shares also row 4 + i of the last
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
            for k in range(n):  # pixels 0 to 3 of tile k
                line[at(p0 + k)], line[at(p0 + most + k)] = pixels[4 * k], pixels[4 * k + 1]
                line[at(p0 + 2 * most + k)], line[at(p0 + 3 * most + k)] = pixels[4 * k + 2], pixels[4 * k + 3]
            for k in range(n - 1):  # 4 and 5 are 0 and 1 of the next tile
                line[at(p0 + 4 * most + k)], line[at(p0 + 5 * most + k)] = line[at(p0 + k + 1)], line[at(p0 + most + k + 1)]
            for r in range(below):
                last = p0 + 4 * most + (r + 1) * columns - 1
                line[last], line[last + most] = pixels[past + 2 * r], pixels[past + 2 * r + 1]
            of = (p0, p0 + most, p0 + 2 * most, p0 + 3 * most, p0 + 4 * most, p0 + 5 * most)
            _transform(line, of, line, (p0 + 24 * most, most, n), powers)
        for j in range(6):
            d0 = (24 + j) * most
            d1 = d0 + 6 * most
            of = (d0, d1, d0 + 12 * most, d0 + 18 * most, d0 + columns, d1 + columns)
            _transform(line, of, tiles, (j * step + c * plane + first, 6 * step, count), powers)


@loop("T[::1], UniTuple(int64, 4), T[::1], UniTuple(int64, 7), T[:,::1], T[::1], T[::1], T[::1]")
def from_tiles(  # noqa: PLR0917
    tiles: Array,
    grid: tuple[int, int, int, int],
    y: Array,
    place: tuple[int, ...],
    after: Array,
    line: Array,
    pixels: Array,
    powers: Array,
) -> float:
    """y[m] = relu(AT tile A * scale[m] + shift[m]), of products (36, M, plane); what lies off the map is left out.

    grid, place: as for to_tiles, place of y (M, H, W). after (3, M): scale, shift, slope; relu(v) is v, or slope * v where
    v < 0. line and pixels (scratch_sizes) are overwritten. Returns 0 if all outputs were finite before the scale, else NaN.
    """
    channels, height, width, row, column, down, across = place
    plane, first, rows, columns = grid
    count, step, wide = rows * columns, channels * plane, 4 * columns
    right, zero = min(wide, (width - column + across - 1) // across), powers[0] - powers[0]
    out, check = 24 * count, 28 * count
    for k in range(count):
        line[at(check + k)] = zero
    for m in range(channels):
        scale, shift, slope = after[0, m], after[1, m], after[2, m]
        for j in range(6):
            _outputs(tiles, (j * step + m * plane + first, 6 * step), line, (j * count, 6 * count, count), powers)
        for i in range(4):
            _outputs(line, (6 * i * count, count), line, (out, count, count), powers)
            for j in range(4):
                o = out + j * count
                for k in range(count):
                    value = line[at(o + k)]
                    line[at(check + k)] += value * zero  # stays NaN once it is
                    value = value * scale + shift
                    below = zero if slope == zero else value * slope  # -inf * 0 would be NaN
                    line[at(o + k)] = below if value < zero else value
            for k in range(count):
                o0, o1 = line[at(out + k)], line[at(out + count + k)]
                o2, o3 = line[at(out + 2 * count + k)], line[at(out + 3 * count + k)]
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
    total = zero
    for k in range(count):
        total += line[at(check + k)]
    return float(total)
