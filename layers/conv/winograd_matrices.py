"""The constants of Winograd's F(4x4, 3x3): a 3x3 filter over a tile of 6x6 pixels gives 4x4 outputs.

    y = AT [ (G w G^T) * (BT d BT^T) ] A        (w 3x3, d 6x6, * number by number: 36 products instead of 144)

By Cook and Toom: d, w and y are read as polynomials, multiplied by their values at five points and at infinity. The
points 0, +-5/8, +-3/2 were chosen by measurement: with 256 channels the rms error against float64 is 4 times that of the
direct way in float32; with the usual 0, +-1, +-2 it is 9 times, with 0, +-1, 1/2, -2 it is 6 times. Every coefficient of
AT and BT is exact in float32.
Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (2016); Barabasz et al., Error Analysis and
Improving the Accuracy of Winograd Convolution for Deep Neural Networks (2020), on the choice of points.
"""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array

POINTS = (0.0, 5 / 8, -5 / 8, 3 / 2, -3 / 2)
TILE = 4
"""Outputs of a tile, on each axis; it takes TILE + 2 inputs and as many products."""
TOGETHER = 4
"""Tiles that lie side by side and are transformed by one matrix: a product of 6 x 6 alone is too small to be fast."""

Matrix = Array


def cook_toom(points: tuple[float, ...]) -> tuple[Matrix, Matrix, Matrix]:
    """AT (4, 6), G (6, 3) and BT (6, 6) for five points and infinity, in float64."""
    a, g, b = np.zeros((6, 4)), np.zeros((6, 3)), np.zeros((6, 6))  # a is A = AT^T: row i has the powers of point i
    for i, point in enumerate(points):
        others = [other for other in points if other != point]
        a[i] = point ** np.arange(4)
        # Lagrange's divisors go into G, which is applied once to the weights: AT and BT stay short numbers
        g[i] = point ** np.arange(3) / np.prod([point - other for other in others])
        b[i, :5] = np.poly(others)[::-1]  # the polynomial that is 0 at all other points, lowest power first
    a[5, 3] = g[5, 2] = 1  # at infinity only the leading coefficient counts
    b[5] = np.poly(points)[::-1]
    return a.T, g, b


def side_by_side(matrix: Matrix, step: int) -> Matrix:
    """matrix (I, J) for TOGETHER tiles, `step` columns apart: (TOGETHER * I, J + step * (TOGETHER - 1))."""
    rows, columns = matrix.shape
    out = np.zeros((TOGETHER, rows, columns + step * (TOGETHER - 1)), matrix.dtype)
    for i in range(TOGETHER):
        out[i, :, i * step : i * step + columns] = matrix  # tile i reads (or writes) from column i * step on
    return out.reshape(TOGETHER * rows, -1)


_AT, G, _BT = cook_toom(POINTS)
AT: Matrix = np.ascontiguousarray(_AT, np.float32)
BT: Matrix = np.ascontiguousarray(_BT, np.float32)
ACROSS: Matrix = side_by_side(BT, TILE)
"""BT along a row, (24, 18): the 18 pixels that four tiles reach to their 24 numbers."""
BACK: Matrix = np.ascontiguousarray(side_by_side(np.ascontiguousarray(AT.T), TILE))
"""AT along a row, (24, 16): the 24 numbers of four tiles to their 16 outputs, to be multiplied from the right."""
