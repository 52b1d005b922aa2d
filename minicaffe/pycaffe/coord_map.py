"""Maps (layers/shape/alignment.py) between tops of a NetSpec, and the crop that aligns two. Source: pycaffe's coord_map.

It aligns the scores of a fully convolutional net with its image: n.score = crop(n.upscored, n.data).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import AlignmentError, UnconnectedError
from minicaffe.layer import Layer
from minicaffe.layers.conv.convolution import Convolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.im2col import Im2col
from minicaffe.layers.pool.pooling import Pooling
from minicaffe.layers.shape.alignment import (
    IDENTITY,
    AxisMismatchException,
    Map,
    UndefinedMapException,
    compose,
    inverse,
    offsets_of,
)
from minicaffe.layers.shape.crop import Crop
from minicaffe.registry import types

from .net_spec import Function, Top, layers

__all__ = [
    "AxisMismatchException",
    "UndefinedMapException",
    "compose",
    "conv_params",
    "coord_map",
    "coord_map_from_to",
    "crop",
    "crop_params",
    "inverse",
]

WINDOWED = (Convolution, Pooling, Im2col)
"""Classes with windows on their bottoms."""
UNSUPPORTED = {"kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w", "kernel_d"}


def conv_params(fn: Function) -> tuple[int, NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return (channel axis, stride, extent, pad) of a convolution, deconvolution, pooling or im2col.

    Each of the last three has one value, or one per axis.
    """
    params: Any = fn.params.get("convolution_param", fn.params.get("pooling_param", fn.params))
    if found := UNSUPPORTED & set(params):
        raise AlignmentError(f"{fn.type_name}: coordinates need kernel_size, stride and pad, not {', '.join(sorted(found))}")
    if "kernel_size" not in params:
        raise AlignmentError(f"{fn.type_name}: coordinates need a kernel_size")
    size, dilation, stride, pad = (
        np.array(params.get(key, default), ndmin=1)
        for key, default in (("kernel_size", 1), ("dilation", 1), ("stride", 1), ("pad", 0))
    )
    return params.get("axis", 1), stride, (size - 1) * dilation + 1, pad  # the extent counts from the first tap to the last


def crop_params(fn: Function) -> tuple[int, NDArray[Any]]:
    """Return (axis, offset) of a Crop."""
    params: Any = fn.params.get("crop_param", fn.params)
    return params.get("axis", 2), np.array(params.get("offset", 0), ndmin=1)


def coord_map(fn: Function) -> Map:
    """Return the map of one layer. Raises UndefinedMapException for types without one."""
    kind = types.get(fn.type_name, Layer)
    if kind in WINDOWED:
        axis, stride, extent, pad = conv_params(fn)
        return axis, 1 / stride, (pad - (extent - 1) / 2) / stride
    if kind is Deconvolution:
        axis, stride, extent, pad = conv_params(fn)
        return axis, stride, (extent - 1) / 2 - pad
    if kind.elementwise or kind.same_positions:
        return IDENTITY
    if kind is Crop:
        axis, offset = crop_params(fn)
        return axis - 1, 1, -offset  # a map's axis is the last one before those that it crops
    raise UndefinedMapException(f"{fn.type_name} does not map coordinates")


def coord_map_from_to(top_from: Top, top_to: Top) -> Map:
    """Return the map from top_from to top_to, through a top that both depend on. Raises UnconnectedError without one."""
    from_maps = _maps_down(top_from)
    for bottom, to_map in _maps_down(top_to).items():
        if bottom in from_maps:
            return compose(to_map, inverse(from_maps[bottom]))
    raise UnconnectedError("no map between the tops: are they connected by layers that map coordinates?")


def _maps_down(top: Top) -> dict[Top, Map]:
    """Return the top and every top below it whose coordinates map to it, nearest first, each with its map to top."""
    maps: dict[Top, Map] = {top: (None, 1, 0)}
    frontier = [top]
    for current in frontier:  # breadth first: the loop appends to the list
        try:
            step = coord_map(current.fn)
        except UndefinedMapException:
            continue
        # Crop's second bottom only gives the size.
        bottoms = current.fn.inputs[:1] if types.get(current.fn.type_name) is Crop else current.fn.inputs
        for bottom in bottoms:
            if bottom not in maps:
                maps[bottom] = compose(maps[current], step)
                frontier.append(bottom)
    return maps


def crop(top_from: Top, top_to: Top) -> Any:
    """Return a Crop that aligns top_from with top_to.

    Raises AlignmentError for another scale, or an offset that is negative or fractional.
    """
    found = coord_map_from_to(top_from, top_to)
    axis, offset = found[0], offsets_of(found)
    return layers.Crop(top_from, top_to, crop_param={"axis": 2 if axis is None else axis + 1, "offset": offset})
