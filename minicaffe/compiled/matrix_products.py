"""Products of matrices as 1x1 convolutions by tiles.

One matrix has a filter's K weights in each row; the other is a map of K channels. Tiles read large weights from memory only
once, and lay out nothing for few rows.
"""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled import tiled
from minicaffe.compiled.tiled import PIXEL
from minicaffe.compiled.tiled_loops import convolve_strips
from minicaffe.compiled.tiles import LANES
from minicaffe.kernels import provides
from minicaffe.layers.conv.matrix_products import LARGE, LEAST, has_few_rows, multiply

LEAST_TURNED = 1 << 20
"""Least numbers of column-major weights for which tiles are faster."""

MOST_PUT = 1 << 19
"""Most numbers of a factor that is copied to one piece of memory for tiles. Copying more takes too long."""


def _are_tiled(a: Array, b: Array, out: Array) -> bool:
    """Return whether tiles can compute this product, and faster than BLAS."""
    if a.dtype not in (np.float32, np.float64) or not a.dtype == b.dtype == out.dtype:
        return False
    if has_few_rows(a, b, out):
        return b.size > LEAST_TURNED
    is_large = len(a) > 1 and b.shape[1] >= LANES and b.size > LARGE and a.size * b.shape[1] > LEAST
    return is_large and b.flags.c_contiguous and out.flags.c_contiguous and (a.flags.c_contiguous or a.size <= MOST_PUT)


@provides(multiply, loops=(convolve_strips,))
def multiply_by_tiles(a: Array, b: Array, out: Array) -> None:
    if not _are_tiled(a, b, out):
        multiply.by_numpy(a, b, out)
    elif has_few_rows(a, b, out):
        made = np.empty(out.shape[::-1], out.dtype)
        _by_tiles(b.T, np.ascontiguousarray(a.T), made)
        out[...] = made.T
    else:
        _by_tiles(np.ascontiguousarray(a), b, out)


def _by_tiles(a: Array, b: Array, out: Array) -> None:
    """Compute out (I, J) = a (I, K) @ b (K, J), all C-contiguous."""
    tiled.convolve(b.reshape(1, *b.shape), a.reshape(*a.shape, 1), PIXEL, 1, out.reshape(1, *out.shape))
