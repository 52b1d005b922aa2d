"""A convolution's three products, each by the algorithm that suits it: columns and BLAS, or Winograd's.

MINICAFFE_CONV=direct turns Winograd off; MINICAFFE_CONV=winograd takes it wherever it can compute at all, whatever the
time; auto, or nothing, leaves the choice to `suits`. What gradients.py makes of few windows are products of
matrices in any case.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import Error
from minicaffe.kernels import kernel
from minicaffe.layers.elementwise.epilogue import NOTHING, Epilogue

from . import convolve as direct
from . import winograd, winograd_weights
from .kept_weights import KeptWeights
from .matrix_products import multiply
from .window import Window
from .winograd_blocks import Tiling
from .winograd_matrices import TILE, TOGETHER

Product = Callable[[Array, Array, Array], None]
"""Of x, weight and y, which it overwrites."""

VARIABLE = "MINICAFFE_CONV"
WAYS = ("auto", "direct", "winograd")


LEAST_CHANNELS, LEAST_FILTERS, LEAST_TILES, LEAST_TILES_ONCE = 32, 16, 48, 96
MOST_PADDED = 1.8
MOST_FACTORS = 1 << 24


def convolve(x: Array, weight: Array, window: Window, group: int, y: Array, epilogue: Epilogue = NOTHING) -> None:
    """y (N, M, *windows) = epilogue of x (N, C, *map) convolved with weight (M, C / group, *kernel); y is overwritten."""
    chosen(x, weight, window, group, y, epilogue)(x, weight, y)


@kernel
def chosen(  # noqa: PLR0917
    x: Array, weight: Array, window: Window, group: int, y: Array, epilogue: Epilogue, kept: KeptWeights | None = None
) -> Product:
    """The way that suits these arrays: convolve, for them or others of their shapes and types, in equal circumstances.

    kept: keeps what is made of the weights, which is good for as long as they have these values; None: it is for any weights.
    """
    if suits(x, weight, window, group, y, kept is not None):
        factors = kept.factors(weight, window, group) if kept else None
        return lambda x, weight, y: winograd.convolve(x, weight, window, group, y, epilogue, factors=factors)
    return lambda x, weight, y: direct.convolve(x, weight, window, group, y, epilogue)


@kernel
def data_gradient(dy: Array, weight: Array, window: Window, group: int, dx: Array) -> None:
    """dx (N, C, *map) from dy (N, M, *windows) and weight (M, C / group, *kernel): convolve's transpose; overwrites dx."""
    if suits(dy, weight, window, group, dx, kept=False):
        winograd.data_gradient(dy, weight, window, group, dx)
    elif window.pointwise and group == len(dy) == 1:
        multiply(weight.reshape(weight.shape[:2]).T, dy.reshape(dy.shape[1], -1), dx.reshape(dx.shape[1], -1))
    else:
        direct.data_gradient(dy, weight, window, group, dx)


@kernel
def add_weight_gradient(x: Array, dy: Array, window: Window, group: int, dweight: Array) -> None:
    """Add to dweight (M, C / group, *kernel) what dy (N, M, *windows) and x (N, C, *map) give."""
    # Winograd declines where the sums are not finite
    if suits(x, dweight, window, group, dy, kept=False) and winograd_weights.add_weight_gradient(x, dy, window, group, dweight):
        return
    direct.add_weight_gradient(x, dy, window, group, dweight)


@kernel
def suits(x: Array, weight: Array, window: Window, group: int, y: Array, kept: bool) -> bool:
    """Whether Winograd computes y (N, M, *size) from x (N, C, *map), and faster than the direct way. kept: whether its factors
    are kept.

    It can where all is float32 and the window `possible`. Measured against the direct way on 1 and 2 threads:
    - below 32 channels to 16 filters a group, the transforms take longer than the products they save (32 to 32: 0.75 of
      the direct time, 16 to 16: 1.2, 3 to 64: 3);
    - below 48 tiles, each product is too thin and reads its factors for little (14x14: 0.6 to 1.1 on one thread, up to 2
      on two; 28x28, 56 tiles: 0.5, 0.8); factors that are not kept need 96 tiles to be worth making;
    - maps of which little is left in the last tiles compute in vain (7x7 in 8x16: 1).
    Of larger kernels than 3x3 factors of more than 64 MB are not made: a fully connected layer made a convolution has them.
    """
    return suits_from(LEAST_CHANNELS, LEAST_TILES, x, weight, window, group, y, kept)


def suits_from(  # noqa: PLR0917
    channels: int, tiles: int, x: Array, weight: Array, window: Window, group: int, y: Array, kept: bool
) -> bool:
    """The same for at least so many channels, and tiles where factors are kept."""
    if not _can(x, weight, window, y) or (way := wanted_way()) == "direct":
        return False
    if way == "winograd":
        return True
    # of a strided convolution's data gradient the smaller maps, x's, are computed by tiles
    size = [min(sizes) for sizes in zip(x.shape[2:], y.shape[2:], strict=True)]
    tiling = Tiling(len(x), size, window)
    rows, groups = tiling.tiles
    count = tiling.planes * rows * groups * TOGETHER
    return (
        x.shape[1] // group >= channels
        and y.shape[1] // group >= LEAST_FILTERS
        and count >= (tiles if kept else LEAST_TILES_ONCE)
        and (window.kernel == (3, 3) or math.prod(winograd.factors_shape(weight.shape, window, group)) <= MOST_FACTORS)
        and count * TILE * TILE <= MOST_PADDED * len(x) * math.prod(size)
    )


def wanted_way() -> str:
    """The environment's MINICAFFE_CONV, or "auto". Raises Error where it is none of the three."""
    way = os.environ.get(VARIABLE) or WAYS[0]
    if way not in WAYS:
        raise Error(f"{VARIABLE} must be one of {', '.join(WAYS)}, got {way!r}")
    return way


def _can(x: Array, weight: Array, window: Window, y: Array) -> bool:
    return (
        winograd.possible(window)
        and all(array.dtype == np.float32 for array in (x, weight, y))
        and min(y.shape) > 0  # Tiling.blocks divides by the number of groups
        and len(x) > 0
    )
