"""Numbers written to an empty map, each at an index h * W + w: the inverse of MAX pooling with its mask.

Of several numbers for one pixel the last stays, and it alone gets the pixel's gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.device import current
from minicaffe.errors import LayerError
from minicaffe.kernels import kernel
from minicaffe.layer import Layer
from minicaffe.layers.shape.items import whole_numbers
from minicaffe.threads import BLOCK, Index, each_block

PIECE = 1 << 15
"""Indices converted at once: 256 KB, which stay in a core's cache."""

Places = Callable[[], Iterator[tuple[slice, NDArray[np.intp]]]]
"""Yields pieces of some maps' numbers: the piece, and its pixels (maps, numbers), counted through all these maps."""


def put_by_definition(x: Array, mask: Array, y: Array) -> bool:
    """Write x (M, numbers) to y (M, pixels) at mask's indices, 0 elsewhere.

    mask: (M, numbers), or (1, numbers) for all maps. Return False at an index outside y; the rest of x is left out.
    """
    for m in range(len(x)):
        numbers, index, out = x[m], mask[m if len(mask) > 1 else 0], y[m]
        out[:] = 0
        for j in range(len(numbers)):
            if not 0 <= index[j] < len(out) or index[j] != np.floor(index[j]):
                return False
            out[np.uintp(index[j])] = numbers[j]
    return True


def put_gradient_by_definition(dy: Array, mask: Array, dx: Array, last: NDArray[np.int32]) -> bool:
    """Write dx (M, numbers): dy (M, pixels) at mask's indices, 0 for a number that a later one replaced.

    Return False as put_by_definition does. last (pixels,): memory for the number in each pixel.
    """
    for m in range(len(dx)):
        gradient, index, out = dy[m], mask[m if len(mask) > 1 else 0], dx[m]
        for j in range(len(out)):
            if not 0 <= index[j] < len(gradient) or index[j] != np.floor(index[j]):
                return False
            last[np.uintp(index[j])] = j
        for j in range(len(out)):
            place = np.uintp(index[j])
            out[j] = gradient[place] if last[place] == j else 0
    return True


@kernel
def put(layer: Layer, x: Array, mask: Array, y: Array) -> None:
    """Write x (N, C, H, W) to y (N, C, OH, OW) at mask's indices, 0 elsewhere.

    mask: (N, C, H, W), or (H, W) for all maps. Raises LayerError for an index that is not whole, or outside [0, OH * OW).
    """

    def step(maps: slice, places: Places) -> None:
        pixels = y_maps[maps].reshape(-1)
        pixels[...] = 0
        for part, index in places():
            pixels[index] = x_maps[maps, part]

    x_maps, y_maps = flat_maps(x), flat_maps(y)
    _each(layer, mask, y, step)


@kernel
def put_gradient(layer: Layer, dy: Array, mask: Array, dx: Array) -> None:
    """Write dx: dy at mask's indices, 0 for a number that a later one replaced. Shapes as in put."""

    def step(maps: slice, places: Places) -> None:
        pixels, out = dy_maps[maps].reshape(-1), dx_maps[maps]
        taken = np.zeros(len(pixels), bool)
        for part, index in places():
            np.take(pixels, index, out=out[:, part], mode="clip")  # "clip" avoids a copy of out
            taken[index.reshape(-1)] = True  # a flat index is faster here
        if np.count_nonzero(taken) < out.size:
            numbers, last = np.arange(out.size).reshape(out.shape), np.empty(len(pixels), np.intp)
            for part, index in places():
                last[index] = numbers[:, part]
            for part, index in places():
                out[:, part][last[index] != numbers[:, part]] = 0

    dx_maps, dy_maps = flat_maps(dx), flat_maps(dy)
    _each(layer, mask, dy, step)


def flat_maps(array: Array) -> Array:
    """Return an array (N, C, H, W) as a view (N * C, H * W)."""
    n, c, h, w = array.shape
    return array.reshape(n * c, h * w)


def check_indices(layer: Layer, mask: Array, pixels: int) -> None:
    """Raise LayerError for an index of mask outside a map of that many pixels."""
    whole_numbers(layer, mask, pixels, "bottom[1]", partial(_error, layer, pixels))


def _each(layer: Layer, mask: Array, y: Array, step: Callable[[slice, Places], None]) -> None:
    """Call step(maps, places) for blocks of maps, on all threads."""
    n, c, h, w = y.shape
    own = flat_maps(mask) if mask.ndim == 4 else np.broadcast_to(mask.reshape(-1), (n * c, mask.size))

    def block(where: Index) -> None:
        indices = own[where]
        first = np.arange(len(indices))[:, None] * (h * w)
        width = max(1, PIECE // len(indices))

        def places() -> Iterator[tuple[slice, NDArray[np.intp]]]:
            for start in range(0, indices.shape[1], width):
                part = slice(start, start + width)
                index = whole_numbers(layer, indices[:, part], h * w, "bottom[1]", partial(_error, layer, h * w))
                yield part, index if len(indices) == 1 else np.add(index, first, out=index)

        step(where[0], places)

    each_block((n * c,), block, max(1, BLOCK // max(1, h * w)))


def _error(layer: Layer, pixels: int, wrong: float) -> LayerError:
    """Return the error for an index outside a map.

    MAX pooling's mask is -1 where no number is greater than -FLT_MAX.
    """
    if wrong == -1:
        name = "".join(f' "{name}"' for name in layer.param.bottom[1:2])
        return layer.error(
            f"the mask{name} holds -1, which is no index: the window that was pooled had only NaN or -inf", "bottom[1]"
        )
    return layer.error(f"{wrong:g} is not a whole number in [0, {pixels})", "bottom[1]")


def launch_put(layer: Layer, x: Blob, mask: Blob, y: Blob, winner: Blob, *, backward: bool) -> None:
    """Run put, or put_gradient, on the GPU.

    mask: one index for each number of x, or of a map of it. winner: the number of x that each pixel of y has.
    """
    places = x.shape[2] * x.shape[3]
    winner.reshape(y.shape)
    last, index = winner.device_data("write"), mask.device_data("read")

    def error(left: int) -> LayerError:
        return _error(layer, y.shape[2] * y.shape[3], float(mask.read_data().reshape(-1)[mask.count - left]))

    flag = current().current_stream.watch(error)
    layer.launch("upsample.no_winners", y.count, y.count, last)
    sizes = x.count, mask.count, places, y.shape[2] * y.shape[3], index
    layer.launch("upsample.find_winners", x.count, *sizes, flag, last)
    if backward:
        dy, dx = y.device_diff("read"), x.device_diff("write")
        layer.launch("upsample.put_backward", x.count, *sizes, last, dy, dx)
    else:
        layer.launch("upsample.put", y.count, y.count, last, x.device_data("read"), y.device_data("write"))
