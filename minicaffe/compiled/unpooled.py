"""Numbers put into empty maps by compiled loops: maps split across all threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled.jit import loop
from minicaffe.kernels import provides
from minicaffe.layer import Layer
from minicaffe.layers.pool import unpooled
from minicaffe.layers.pool.unpooled import flat_maps
from minicaffe.threads import parts, run

LEAST = 1 << 16
"""Least pixels that are worth a thread."""

put_maps = loop("T[:,::1], T[:,::1], T[:,::1]")(unpooled.put_by_definition)
put_maps_backward = loop("T[:,::1], T[:,::1], T[:,::1], int32[::1]")(unpooled.put_gradient_by_definition)


@provides(unpooled.put, loops=(put_maps,))
def put(layer: Layer, x: Array, mask: Array, y: Array) -> None:
    """Split the maps across the threads."""
    x_maps, y_maps = flat_maps(x), flat_maps(y)
    _each_part(layer, mask, y, lambda maps, index: put_maps(x_maps[maps], index, y_maps[maps]))


@provides(unpooled.put_gradient, loops=(put_maps_backward,))
def put_gradient(layer: Layer, dy: Array, mask: Array, dx: Array) -> None:
    """Split the maps across the threads."""
    dx_maps, dy_maps = flat_maps(dx), flat_maps(dy)

    def step(maps: slice, index: Array) -> bool:
        last = np.empty(dy_maps.shape[1], np.int32)
        return bool(put_maps_backward(dy_maps[maps], index, dx_maps[maps], last))

    _each_part(layer, mask, dy, step)


def _each_part(layer: Layer, mask: Array, y: Array, step: Callable[[slice, Array], bool]) -> None:
    """Run step(maps, mask) on parts of the maps. The mask is for these maps or for all; step returns False for a bad index."""
    pixels = y.shape[2] * y.shape[3]
    index = flat_maps(mask) if mask.ndim == 4 else mask.reshape(1, mask.size)

    def task(maps: slice) -> None:
        mine = index[maps] if mask.ndim == 4 else index
        if not step(maps, mine):
            unpooled.check_indices(layer, mine, pixels)  # raises an error for the index

    run(partial(task, maps) for maps in parts(y.shape[0] * y.shape[1], -(-LEAST // max(1, pixels)), each=2))
