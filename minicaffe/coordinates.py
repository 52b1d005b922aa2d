"""Maps between the coordinates of blobs, which align one with another. Source: longjon's Caffe (Long et al., FCN), coord_map.

a layer's map (axis, a, b): place x of its bottom is y = a x + b of its top, on the axes behind `axis` (None: on all)

convolution, pooling, im2col     a = 1 / stride, b = (pad - (extent - 1) / 2) / stride
deconvolution                    a = stride,     b = (extent - 1) / 2 - pad
crop                             a = 1,          b = -offset
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import AlignmentError, Error
from .layer import Layer
from .node import Node

Map = tuple[int | None, Any, Any]
"""axis, and a and b: one value, or one for each axis behind it."""

IDENTITY: Map = (None, 1, 0)


class UndefinedMapException(Error):  # noqa: N818
    """The layer type does not map coordinates."""


class AxisMismatchException(Error):  # noqa: N818
    """Two maps act on different axes."""


def windowed(axis: int, stride: Any, extent: Any, pad: Any) -> Map:
    """The map of windows on the bottom, in pixels."""
    stride, extent, pad = (np.asarray(values) for values in (stride, extent, pad))
    return axis, 1 / stride, (pad - (extent - 1) / 2) / stride


def spread(axis: int, stride: Any, extent: Any, pad: Any) -> Map:
    """The map of a deconvolution."""
    stride, extent, pad = (np.asarray(values) for values in (stride, extent, pad))
    return axis, stride, (extent - 1) / 2 - pad


def compose(base_map: Map, next_map: Map) -> Map:
    """base_map after next_map. Raises AxisMismatchException."""
    axis1, a1, b1 = base_map
    axis2, a2, b2 = next_map
    if axis1 is not None and axis2 is not None and axis1 != axis2:
        raise AxisMismatchException(f"one map acts from axis {axis1} on, the other from axis {axis2}")
    return axis2 if axis1 is None else axis1, a1 * a2, a1 * b2 + b1


def inverse(coord_map: Map) -> Map:
    """The inverse map."""
    axis, a, b = coord_map
    return axis, 1 / a, -b / a


def offsets_of(coord_map: Map) -> list[int]:
    """Where a blob is cut so that it aligns with the one that the map leads to: one number, or one for each axis. Raises
    AlignmentError for another scale, or an offset that is negative or fractional."""
    a, b = (np.asarray(values, float) for values in coord_map[1:])
    if not np.allclose(a, 1):
        raise AlignmentError(f"cannot crop: the scales differ by {a.tolist()}")
    if (b > 0).any():
        raise AlignmentError(f"cannot crop: the offset {(-b).tolist()} is negative; the blob would need padding")
    if not np.allclose(b, np.round(b)):
        raise AlignmentError(f"cannot crop: the offset {(-b).tolist()} is not a whole number of pixels")
    return [int(n) for n in np.ravel(-np.round(b))]


def alignment(nodes: Sequence[Node], start: str, end: str) -> Map | None:
    """The map from one blob to another through the nearest that both are made from, by the layers' first bottoms; None where
    there is none. Raises UndefinedMapException for a layer between them that does not map coordinates."""
    ours, theirs = _way_back(nodes, start), _way_back(nodes, end)
    common = set(ours).intersection(theirs)
    if not common:
        return None
    meeting = max(common)
    here, there = (_joined(nodes, way[: way.index(meeting)]) for way in (ours, theirs))
    return compose(there, inverse(here))


def _way_back(nodes: Sequence[Node], name: str) -> list[tuple[int, str]]:
    """The blob and those it is made from, each with the index of its node: an in-place blob comes once for each."""
    way: list[tuple[int, str]] = []
    for i in reversed(range(len(nodes))):
        if name in nodes[i].top_names:
            way.append((i, name))
            if not nodes[i].bottom_names:
                break
            name = nodes[i].bottom_names[0]
    return way


def _joined(nodes: Sequence[Node], way: Sequence[tuple[int, str]]) -> Map:
    joined = IDENTITY
    for i, _ in way:
        joined = compose(joined, map_of(nodes[i].layer))
    return joined


def map_of(layer: Layer) -> Map:
    """A connected layer's map. Raises UndefinedMapException."""
    found = layer.coordinates()
    if found is None:
        raise UndefinedMapException(f'{layer.type} layer "{layer.name}" does not map coordinates')
    return found
