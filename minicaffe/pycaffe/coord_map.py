"""Maps between the coordinates of a NetSpec's tops, and the crop that aligns two of them. Source: pycaffe's coord_map.

    a layer's map (axis, a, b): place x of its bottom is y = a x + b of its top, on the axes behind `axis`

    convolution, pooling, im2col     a = 1 / stride, b = (pad - (extent - 1) / 2) / stride
    deconvolution                    a = stride,     b = (extent - 1) / 2 - pad
    crop                             a = 1,          b = -offset

It aligns the scores of a fully convolutional net with its image: n.score = crop(n.upscored, n.data).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.layers.batch_norm import BatchNorm
from minicaffe.layers.bias import Bias
from minicaffe.layers.convolution import Convolution
from minicaffe.layers.crop import Crop
from minicaffe.layers.deconvolution import Deconvolution
from minicaffe.layers.im2col import Im2col
from minicaffe.layers.lrn import LRN
from minicaffe.layers.mvn import MVN
from minicaffe.layers.pooling import Pooling
from minicaffe.layers.prelu import PReLU
from minicaffe.layers.scale import Scale
from minicaffe.layers.softmax import Softmax
from minicaffe.registry import types

from .net_spec import Function, Top, layers

Map = tuple[int | None, Any, Any]

WINDOWED = (Convolution, Pooling, Im2col)
"""Classes with windows on their bottoms."""
IN_PLACE = (BatchNorm, Bias, LRN, MVN, PReLU, Scale, Softmax)
"""Classes that keep coordinates, besides the elementwise ones."""

UNSUPPORTED = {"kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w", "kernel_d"}


class UndefinedMapException(Error):  # noqa: N818
    """The layer type does not map coordinates."""


class AxisMismatchException(Error):  # noqa: N818
    """Two maps act on different axes."""


def conv_params(fn: Function) -> tuple[int, NDArray[Any], NDArray[Any], NDArray[Any]]:
    """(channel axis, stride, extent, pad) of a convolution, deconvolution, pooling or im2col: one value, or one per axis."""
    params: Any = fn.params.get("convolution_param", fn.params.get("pooling_param", fn.params))
    if found := UNSUPPORTED & set(params):
        raise Error(f"{fn.type_name}: coordinates need kernel_size, stride and pad, not {', '.join(sorted(found))}")
    if "kernel_size" not in params:
        raise Error(f"{fn.type_name}: coordinates need a kernel_size")
    size, dilation, stride, pad = (
        np.array(params.get(key, default), ndmin=1)
        for key, default in (("kernel_size", 1), ("dilation", 1), ("stride", 1), ("pad", 0))
    )
    return params.get("axis", 1), stride, (size - 1) * dilation + 1, pad  # extent: the pixels from the first tap to the last


def crop_params(fn: Function) -> tuple[int, NDArray[Any]]:
    """(axis, offset) of a Crop."""
    params: Any = fn.params.get("crop_param", fn.params)
    return params.get("axis", 2), np.array(params.get("offset", 0), ndmin=1)


def coord_map(fn: Function) -> Map:
    """The map of one layer. Raises UndefinedMapException for types without one."""
    kind = types.get(fn.type_name, Layer)
    if kind in WINDOWED:
        axis, stride, extent, pad = conv_params(fn)
        return axis, 1 / stride, (pad - (extent - 1) / 2) / stride
    if kind is Deconvolution:
        axis, stride, extent, pad = conv_params(fn)
        return axis, stride, (extent - 1) / 2 - pad
    if kind.elementwise or kind in IN_PLACE:
        return None, 1, 0
    if kind is Crop:
        axis, offset = crop_params(fn)
        return axis - 1, 1, -offset  # a map's axis is the last one that it does not act on
    raise UndefinedMapException(f"{fn.type_name} does not map coordinates")


def compose(base_map: Map, next_map: Map) -> Map:
    """base_map after next_map. Raises AxisMismatchException."""
    axis1, a1, b1 = base_map
    axis2, a2, b2 = next_map
    if axis1 is not None and axis2 is not None and axis1 != axis2:
        raise AxisMismatchException(f"one map acts from axis {axis1} on, the other from axis {axis2}")
    return axis2 if axis1 is None else axis1, a1 * a2, a1 * b2 + b1  # a1 (a2 x + b2) + b1


def inverse(coord_map: Map) -> Map:
    """The inverse map."""
    axis, a, b = coord_map
    return axis, 1 / a, -b / a


def coord_map_from_to(top_from: Top, top_to: Top) -> Map:
    """The map from top_from to top_to, through a top that both depend on. Raises Error without one."""
    from_maps = _maps_down(top_from)
    for bottom, to_map in _maps_down(top_to).items():
        if bottom in from_maps:
            return compose(to_map, inverse(from_maps[bottom]))
    raise Error("no map between the tops: are they connected by layers that map coordinates?")


def _maps_down(top: Top) -> dict[Top, Map]:
    """top and every top below it that maps coordinates to it, nearest first, with its map to top."""
    maps: dict[Top, Map] = {top: (None, 1, 0)}
    frontier = [top]
    for current in frontier:  # grows in the loop: breadth first
        try:
            step = coord_map(current.fn)
        except UndefinedMapException:
            continue
        # the second gives only the size
        bottoms = current.fn.inputs[:1] if types.get(current.fn.type_name) is Crop else current.fn.inputs
        for bottom in bottoms:
            if bottom not in maps:
                maps[bottom] = compose(maps[current], step)
                frontier.append(bottom)
    return maps


def crop(top_from: Top, top_to: Top) -> Any:
    """A Crop that aligns top_from with top_to. Raises Error for another scale, or an offset that is negative or fractional."""
    axis, a, b = coord_map_from_to(top_from, top_to)
    a, b = np.asarray(a, float), np.asarray(b, float)
    if not np.allclose(a, 1):
        raise Error(f"cannot crop: the scales differ by {a.tolist()}")
    if (b > 0).any():
        raise Error(f"cannot crop: the offset {(-b).tolist()} is negative; top_from would need padding")
    if not np.allclose(b, np.round(b)):
        raise Error(f"cannot crop: the offset {(-b).tolist()} is not a whole number of pixels")
    offset = [int(n) for n in np.ravel(-np.round(b))]
    return layers.Crop(top_from, top_to, crop_param={"axis": 2 if axis is None else axis + 1, "offset": offset})
