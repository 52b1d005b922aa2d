"""A convolution's three products, each by the algorithm that suits it: columns and BLAS, or Winograd's.

MINICAFFE_CONV=direct turns Winograd off; MINICAFFE_CONV=winograd takes it wherever it can compute at all, whatever the
time; auto, or nothing, leaves the choice to `suits`. What gradients.py makes of few windows are products of
matrices in any case.

What products make of a layer's weights, kept from one forward to the next in TEST. A net asks for it again only where
blob.Unchanged cannot tell that the weights are the same: whoever holds a view of a blob's data may write into it at any time.

Winograd's factors are four times the weights, of 5x5 six times, and making them takes a third of the time of VGG16's last
convolutions. So they are used again while the weights are the same for sure, or, where somebody held a view of them, bit for
bit those of a copy kept beside them: the comparison takes 0.5 ms for 512x512 filters (9.4 MB), where the convolution takes 20.
Panels (tiled.py) take no more time than a comparison: they are made anew. They lie side by side in large pages: each forward
reads them from memory, and MobileNet v1 takes 0.99 of the time.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minicaffe import threads
from minicaffe.blob import ALIGNMENT, LARGE, Array, Blob, Unchanged, paged_zeros
from minicaffe.errors import Error
from minicaffe.kernels import kernel
from minicaffe.layers.elementwise.epilogue import NOTHING, Epilogue

from . import convolve as direct
from . import winograd, winograd_weights
from .matrix_products import multiply
from .window import Window
from .winograd import Shapes, factors_of, factors_shape
from .winograd_tiles import TILE, TOGETHER, Tiling

LEAST_PART = 1 << 20
"""Bytes, at least, that one thread compares."""


class _Shelf(threading.local):
    """Memory for arrays of which most are smaller than a large page: they lie side by side in pieces that have some, of each
    thread its own."""

    def __init__(self) -> None:
        self._left: Array = paged_zeros(0)

    def zeros(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array that begins at a line of the cache. Its piece is freed with the last array there."""
        size = math.prod(shape) * dtype.itemsize
        if size > len(self._left):
            self._left = paged_zeros(max(size, LARGE))
        made, self._left = self._left[:size], self._left[-(-size // ALIGNMENT) * ALIGNMENT :]
        return made.view(dtype).reshape(shape)


_shelf = _Shelf()


class KeptWeights:
    """The factors or the panels of one layer's weights, whichever its maps wanted last."""

    def __init__(self) -> None:
        self._of: tuple[Array | _Seen, Array] | None = None
        """What tells whether the weights are the same, and the factors."""
        self._panels: Array | None = None
        self._now: _Seen | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that are kept now: the factors, a copy of the weights, the panels."""
        kept = (*(self._of or ()), self._panels)
        return sum(array.nbytes for array in kept if isinstance(array, np.ndarray))

    def look_at(self, weight: Blob) -> None:
        """Before views of these weights are made that factors or panels are then asked for."""
        weight.data_address("read")  # of memory that is not there yet nobody could tell
        self._now = _Seen(weight, Unchanged((weight,)))

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for what is made of the weights in place of factors: the last one's, if it has this shape."""
        self._of = None
        if self._panels is None or self._panels.shape != shape:
            self._panels = _shelf.zeros(shape, dtype)
        return self._panels

    def factors(self, weight: Array, window: Window, group: int) -> Array:
        """factors_of(weight, window, group), made anew only when the weights have changed, or what they are multiplied by."""
        kept, now, self._now, self._panels = self._of, self._now, None, None
        shape = factors_shape(weight.shape, window, group)
        if kept is None or kept[1].shape != shape or not _is_of(kept[0], weight, now):
            self._of = kept = None  # free the old factors before the new ones are made
            if now is not None and now.unchanged.holds():
                kept = now, factors_of(weight, window, group)
            else:
                copy = weight.copy()
                # made of the copy: a write to the weights meanwhile cannot part the two
                kept = copy, factors_of(copy, window, group)
            self._of = kept
        return kept[1]


class _Seen(NamedTuple):
    """Weights, and whether they surely are as they were."""

    weight: Blob
    unchanged: Unchanged


def _is_of(before: Array | _Seen, weight: Array, now: _Seen | None) -> bool:
    """Whether the weights that were looked at now are those of before."""
    if isinstance(before, _Seen):
        return now is not None and now.weight is before.weight and before.unchanged.holds()
    return before.shape == weight.shape and same_bits(before, weight)


def factors_bytes(weight: Sequence[int], window: Window, group: int, held: bool) -> int:
    """What is kept for weights of this shape by Winograd, in bytes: the factors, and a copy of weights of which somebody holds
    a view."""
    return (held * math.prod(weight) + math.prod(factors_shape(weight, window, group))) * 4


@kernel
def panels_bytes(shapes: Shapes, window: Window, group: int, dtype: np.dtype[Any]) -> int:
    """Return the bytes kept for weights without Winograd factors. shapes: of x, weight and y."""
    return 0


def same_bits(a: Array, b: Array) -> bool:
    """Whether two float32 arrays of one shape hold the same bits (NaN is itself, 0 is not -0)."""
    one, other = (array.reshape(-1).view(np.uint32) for array in (a, b))
    differ = threading.Event()

    def compare(part: slice) -> None:
        if not np.array_equal(one[part], other[part]):
            differ.set()

    threads.run(partial(compare, part) for part in threads.parts(one.size, LEAST_PART // 4))
    return not differ.is_set()


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
        return by_winograd(window, group, epilogue, kept.factors(weight, window, group) if kept else None)
    return directly(window, group, epilogue)


def by_winograd(window: Window, group: int, epilogue: Epilogue, factors: Array | None) -> Product:
    """Return Winograd's product. factors: of the weights that it will be given, if at hand."""
    return lambda x, weight, y: winograd.convolve(x, weight, window, group, y, epilogue, factors=factors)


def directly(window: Window, group: int, epilogue: Epilogue) -> Product:
    """Return the product by columns and BLAS."""
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
