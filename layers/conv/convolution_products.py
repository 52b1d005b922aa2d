"""A convolution's three products, each by the fastest algorithm: columns and BLAS, or Winograd's method.

MINICAFFE_CONV=direct turns Winograd off; MINICAFFE_CONV=winograd takes it wherever it can compute at all, whatever the
time; auto, or nothing, leaves the choice to `supports`. What gradients.py makes of few windows are products of
matrices in any case.

WeightCache: Winograd's factors are four times the weights, of 5x5 six times, and making them is slow. In TEST they are reused
while the weights are unchanged. If a view of the weights exists, they may change at any time, so they are compared bit for bit
with a copy. The comparison is fast compared with the convolution. Panels (tiled.py) take no more time than a comparison, so
they are made anew.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Array, Blob, Unchanged, paged_zeros
from minicaffe.errors import Error
from minicaffe.kernels import kernel
from minicaffe.layers.elementwise.epilogue import NOTHING, Epilogue
from minicaffe.threads import each_block

from . import convolve as direct
from . import winograd, winograd_weights
from .matrix_products import multiply
from .window import Window
from .winograd import Shapes, factors_of, factors_shape
from .winograd_tiles import TILE, TOGETHER, Tiling

VARIABLE = "MINICAFFE_CONV"
WAYS = ("auto", "direct", "winograd")

LEAST_CHANNELS, LEAST_FILTERS, LEAST_TILES, LEAST_TILES_ONCE = 32, 16, 48, 96
MOST_PADDED = 1.8
MOST_FACTORS = 1 << 24
"""The bounds of `supports`."""

Product = Callable[[Array, Array, Array], None]
"""A function of x, weight and y; it overwrites y."""


class WeightCache:
    """The factors or the panels of one layer's weights, whichever was requested last."""

    def __init__(self) -> None:
        self._factors: Array | None = None
        self._panels: Array | None = None
        self._of: Array | tuple[Blob, Unchanged] | None = None
        """A copy of the weights to which the factors belong, or the blob and a check that it is unchanged."""
        self._how: tuple[Window, int] | None = None
        """The window and the groups of the factors."""
        self._now: tuple[Blob, Unchanged] | None = None

    @property
    def nbytes(self) -> int:
        """Return the bytes kept now: of the factors, a copy of the weights and the panels."""
        return sum(one.nbytes for one in (self._of, self._factors, self._panels) if isinstance(one, np.ndarray))

    def look_at(self, weight: Blob) -> None:
        """Watch these weights. Call it before making views of them that are passed to `factors` or used for panels."""
        weight.data_address("read")  # changes can be detected only in memory that exists
        self._now = weight, Unchanged((weight,))

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Return memory for panels, which replace the factors: the last panels' memory if its shape is the same."""
        self._of = self._factors = None
        if self._panels is None or self._panels.shape != shape:
            self._panels = paged_zeros(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
        return self._panels

    def factors(self, weight: Array, window: Window, group: int) -> Array:
        """Return factors_of(weight, window, group). Recompute them only if the weights, window or group have changed."""
        now, self._now, self._panels = self._now, None, None
        how = window, group
        if self._factors is None or self._how != how or not self._is_of(weight, now):
            self._of = self._factors = None  # free the old factors before the new ones are made
            self._how = how
            if now is not None and now[1].holds():
                self._of = now
            else:
                # A copy: a write to the weights in between must not separate weights and factors.
                self._of = weight = weight.copy()
            self._factors = factors_of(weight, window, group)
        return self._factors

    def _is_of(self, weight: Array, now: tuple[Blob, Unchanged] | None) -> bool:
        """Return whether the factors belong to these weights, which look_at has just watched."""
        if isinstance(self._of, tuple):
            return now is not None and now[0] is self._of[0] and self._of[1].holds()
        return self._of is not None and self._of.shape == weight.shape and same_bits(self._of, weight)


def factors_bytes(weight: Sequence[int], window: Window, group: int, held: bool) -> int:
    """Return the bytes that Winograd keeps for weights of this shape.

    held: whether a view of the weights exists. Then a copy of them is kept with the factors.
    """
    return (held * math.prod(weight) + math.prod(factors_shape(weight, window, group))) * 4


@kernel
def panels_bytes(shapes: Shapes, window: Window, group: int, dtype: np.dtype[Any]) -> int:
    """Return the bytes kept for weights without Winograd factors. shapes: of x, weight and y."""
    return 0


def same_bits(a: Array, b: Array) -> bool:
    """Return whether two float32 arrays of one shape hold the same bits (NaN is itself, 0 is not -0)."""
    one, other = (array.reshape(-1).view(np.uint32) for array in (a, b))
    equal: list[bool] = []
    each_block(one.shape, lambda index: equal.append(np.array_equal(one[index], other[index])))
    return all(equal)


def convolve(x: Array, weight: Array, window: Window, group: int, y: Array, epilogue: Epilogue = NOTHING) -> None:
    """Compute y (N, M, *windows) = epilogue of x (N, C, *map) convolved with weight (M, C / group, *kernel)."""
    chosen(x, weight, window, group, y, epilogue)(x, weight, y)


@kernel
def chosen(  # noqa: PLR0917
    x: Array, weight: Array, window: Window, group: int, y: Array, epilogue: Epilogue, kept: WeightCache | None = None
) -> Product:
    """Return the fastest product for arrays of these shapes and types, in an unchanged environment.

    kept: a cache for these weights' factors or panels. Without it the product accepts any weights.
    """
    if supports(x, weight, window, group, y, kept is not None):
        return by_winograd(window, group, epilogue, kept.factors(weight, window, group) if kept else None)
    return directly(window, group, epilogue)


def by_winograd(window: Window, group: int, epilogue: Epilogue, factors: Array | None) -> Product:
    """Return Winograd's product. factors: those of its weights, if available."""
    return lambda x, weight, y: winograd.convolve(x, weight, window, group, y, epilogue, factors=factors)


def directly(window: Window, group: int, epilogue: Epilogue) -> Product:
    """Return the product by columns and BLAS."""
    return lambda x, weight, y: direct.convolve(x, weight, window, group, y, epilogue)


@kernel
def data_gradient(dy: Array, weight: Array, window: Window, group: int, dx: Array) -> None:
    """Compute dx (N, C, *map) from dy (N, M, *windows) and weight (M, C / group, *kernel): convolve's transpose."""
    if supports(dy, weight, window, group, dx, kept=False):
        winograd.data_gradient(dy, weight, window, group, dx)
    elif window.pointwise and group == len(dy) == 1:
        multiply(weight.reshape(weight.shape[:2]).T, dy.reshape(dy.shape[1], -1), dx.reshape(dx.shape[1], -1))
    else:
        direct.data_gradient(dy, weight, window, group, dx)


@kernel
def add_weight_gradient(x: Array, dy: Array, window: Window, group: int, dweight: Array) -> None:
    """Add to dweight (M, C / group, *kernel) the gradient from dy (N, M, *windows) and x (N, C, *map)."""
    # Winograd declines if its sums are not finite.
    if supports(x, dweight, window, group, dy, kept=False) and winograd_weights.add_weight_gradient(
        x, dy, window, group, dweight
    ):
        return
    direct.add_weight_gradient(x, dy, window, group, dweight)


@kernel
def supports(x: Array, weight: Array, window: Window, group: int, y: Array, kept: bool) -> bool:
    """Return whether Winograd computes y (N, M, *size) from x (N, C, *map) faster than the direct product.

    It can if all arrays are float32 and the window is `possible`. kept: whether its factors are kept. It is slower
    - below 32 channels to 16 filters a group: the transforms take longer than the products they save;
    - below 48 tiles: each product is too thin for its factors. Factors that are not kept need 96 tiles;
    - if maps hardly reach into their last tiles, which wastes work.
    For kernels larger than 3x3, factors of more than 64 MB are not made. A fully connected layer as a convolution has them.
    """
    return supports_from(LEAST_CHANNELS, LEAST_TILES, x, weight, window, group, y, kept)


def supports_from(  # noqa: PLR0917
    channels: int, tiles: int, x: Array, weight: Array, window: Window, group: int, y: Array, kept: bool
) -> bool:
    """Return `supports` with these least numbers of channels, and of tiles if factors are kept."""
    is_single = all(array.dtype == np.float32 for array in (x, weight, y))
    # min(...) > 0, because Tiling.blocks divides by the number of groups.
    if not (is_single and winograd.possible(window) and min(y.shape) > 0 and len(x) > 0):
        return False
    if (way := wanted_way()) != "auto":
        return way == "winograd"
    # In the data gradient of a strided convolution, the smaller maps, x's, are computed by tiles.
    size = [min(sizes) for sizes in zip(x.shape[2:], y.shape[2:], strict=True)]
    tiling = Tiling(len(x), size, window)
    rows, groups = tiling.tiles
    count = tiling.planes * rows * groups * TOGETHER
    return (
        x.shape[1] // group >= channels
        and y.shape[1] // group >= LEAST_FILTERS
        and count >= (tiles if kept else LEAST_TILES_ONCE)
        and (window.kernel == (3, 3) or math.prod(factors_shape(weight.shape, window, group)) <= MOST_FACTORS)
        and count * TILE * TILE <= MOST_PADDED * len(x) * math.prod(size)
    )


def wanted_way() -> str:
    """Return the environment's MINICAFFE_CONV, or "auto". Raises Error if it is none of the three values."""
    way = os.environ.get(VARIABLE) or WAYS[0]
    if way not in WAYS:
        raise Error(f"{VARIABLE} must be one of {', '.join(WAYS)}, got {way!r}")
    return way
