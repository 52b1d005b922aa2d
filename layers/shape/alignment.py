"""The offsets of Crops without crop_param, from maps between coordinates. Source: longjon's Caffe (Long et al., FCN).

A layer's map is (axis, a, b): place x of its bottom is place a x + b of its top, on the axes after `axis` (None: on all).

    convolution, pooling, im2col     a = 1 / stride, b = (pad - (extent - 1) / 2) / stride
    deconvolution                    a = stride,     b = (extent - 1) / 2 - pad
    crop                             a = 1,          b = -offset
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Blob
from minicaffe.errors import AlignmentError, Error, ways
from minicaffe.layer_list import Node
from minicaffe.layers.conv.convolution import Convolution
from minicaffe.layers.conv.im2col import Im2col
from minicaffe.layers.pool.pooling import Pooling

from .concat import Concat
from .crop import BVLC, LONGJON, AutoCrop, Crop

Map = tuple[int | None, Any, Any]
"""axis, and a and b: one value, or one for each axis after it."""

IDENTITY: Map = (None, 1, 0)


class UndefinedMapException(Error):  # noqa: N818
    """An error: the layer type does not map coordinates."""


class DisconnectedError(AlignmentError):
    """An error: the bottoms are not made from one blob."""


class AxisMismatchException(Error):  # noqa: N818
    """An error: two maps act on different axes."""


def compose(base_map: Map, next_map: Map) -> Map:
    """Return base_map after next_map. Raises AxisMismatchException."""
    axis1, a1, b1 = base_map
    axis2, a2, b2 = next_map
    if axis1 is not None and axis2 is not None and axis1 != axis2:
        raise AxisMismatchException(f"one map acts from axis {axis1} on, the other from axis {axis2}")
    return axis2 if axis1 is None else axis1, a1 * a2, a1 * b2 + b1


def inverse(coord_map: Map) -> Map:
    """Return the inverse map."""
    axis, a, b = coord_map
    return axis, 1 / a, -b / a


def offsets_of(coord_map: Map) -> list[int]:
    """Return the offsets at which to cut a blob to align it by this map: one number, or one for each axis.

    Raises AlignmentError for another scale, or an offset that is negative or fractional.
    """
    a, b = (np.asarray(values, float) for values in coord_map[1:])
    if not np.allclose(a, 1):
        raise AlignmentError(f"cannot crop: the scales differ by {a.tolist()}")
    if (b > 0).any():
        raise AlignmentError(f"cannot crop: the offset {(-b).tolist()} is negative; the blob would need padding")
    if not np.allclose(b, np.round(b)):
        raise AlignmentError(f"cannot crop: the offset {(-b).tolist()} is not a whole number of pixels")
    return [int(n) for n in np.ravel(-np.round(b))]


def alignment(nodes: Sequence[Node], start: str, end: str) -> Map | None:
    """Return the map from one blob to another through their nearest common source, or None.

    Sources are followed by the layers' first bottoms. Raises UndefinedMapException for a layer between them that does not map
    coordinates.
    """
    ours, theirs = _way_back(nodes, start), _way_back(nodes, end)
    common = set(ours).intersection(theirs)
    if not common:
        return None
    meeting = max(common)
    here, there = (_joined(nodes, way[: way.index(meeting)]) for way in (ours, theirs))
    return compose(there, inverse(here))


def _way_back(nodes: Sequence[Node], name: str) -> list[tuple[int, str]]:
    """Return the blob and its sources, each with its node's index. An in-place blob occurs once for each node."""
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
        joined = compose(joined, map_of(nodes[i]))
    return joined


def map_of(node: Node) -> Map:
    """Return the map of a node's layer, for types that longjon's Caffe aligns. Raises UndefinedMapException."""
    layer = node.layer
    if layer.elementwise or layer.same_positions or (isinstance(layer, Concat) and layer.axis == 1):
        return IDENTITY
    if isinstance(layer, Crop):
        param = layer.param.crop_param
        return param.axis - 1, 1, -np.array(list(param.offset) or [0])
    axes = layer.reads(node.bottoms, node.tops) if isinstance(layer, Convolution | Im2col | Pooling) else None
    if axes is None or not all(axis.stride for axis in axes):
        raise UndefinedMapException(f'{layer.type} layer "{layer.name}" does not map coordinates')
    scales = np.array([axis.divisor / axis.stride for axis in axes])
    return 1, scales, np.array([-(axis.first + axis.last) / 2 / axis.stride for axis in axes])


def _align(layer: Crop, found: Map | None, bottom: Sequence[Blob]) -> None:
    """Write the offsets of longjon's Caffe to crop_param.

    found: the map between the bottoms, None if they are not made from one blob. Raises Error where that Caffe stops.
    """
    if found is None:
        raise DisconnectedError("its bottoms are not made from one blob")
    if found[0] not in (None, 1):
        raise AlignmentError(f"cannot crop: the bottoms are aligned from axis {found[0] + 1} on")
    offsets = offsets_of(found)
    x, reference = bottom[0].shape, bottom[1].shape
    for offset, length, most in zip(np.broadcast_to(offsets, len(x[2:])), reference[2:], x[2:], strict=True):
        if offset + length > most:
            raise AlignmentError(f"cannot crop: offset {offset} and length {length} lead past length {most}")
    layer.param.crop_param.offset.extend(offsets)


def settle_crops(nodes: Sequence[Node]) -> None:
    """Align a net's AutoCrops, and make its Crops without crop_param all longjon's or all BVLC's.

    Without a fork they are longjon's if its Caffe has offsets for every one, and no layer has BVLC's field. Raises LayerError
    in a net of longjon's whose bottoms do not align, and for an AutoCrop.
    """
    _align_automatic(nodes)
    crops = [
        (i, node.layer) for i, node in enumerate(nodes) if isinstance(node.layer, Crop) and not isinstance(node.layer, AutoCrop)
    ]
    bare = {i: layer for i, layer in crops if not layer.param.HasField("crop_param")}
    if not bare:
        return
    choice = next(iter(bare.values())).choice  # chosen by the net's fork, so equal for all
    others = [layer.name for i, layer in crops if i not in bare]
    if choice:
        bvlcs = choice.why if choice.whose == BVLC else ""
    else:
        bvlcs = f'layer "{others[0]}" has crop_param' if others else ""
    bvlcs = bvlcs or _align_all(nodes, bare)
    for i, layer in bare.items():
        if bvlcs:
            layer.param.crop_param.Clear()
            # a net made from these parameters, or from some of them, must not choose again
            layer.param.crop_param.SetInParent()
        if not layer.choice:
            layer.choose(BVLC if bvlcs else LONGJON, bvlcs or "whole offsets align the bottoms of every Crop")
        layer.reshape_pass(nodes[i].bottoms, nodes[i].tops)


def _align_automatic(nodes: Sequence[Node]) -> None:
    """Align the AutoCrops without crop_param. Raises LayerError for one whose bottoms do not align."""
    for i, node in enumerate(nodes):
        if isinstance(node.layer, AutoCrop) and not node.layer.param.HasField("crop_param"):
            try:
                _align(node.layer, alignment(nodes[:i], *node.bottom_names[:2]), node.bottoms)
            except Error as error:
                raise node.layer.error(f"{error}; give offsets, as in crop_param {{ offset: 0 }}", "bottom") from error
            node.layer.reshape_pass(node.bottoms, node.tops)


def _align_all(nodes: Sequence[Node], crops: Mapping[int, Crop]) -> str:
    """Align the Crops, given by their nodes' indices, as longjon's Caffe does.

    Return the reason why they are BVLC's, or "". Raises LayerError in a net of longjon's whose bottoms do not align.
    """
    for i, layer in crops.items():
        try:
            _align(layer, alignment(nodes[:i], *nodes[i].bottom_names[:2]), nodes[i].bottoms)
        except Error as error:
            reason = f"no crop_param is given, and {error}"
            if layer.choice:
                fork = ways("--fork bvlc") or 'fork="bvlc"'
                raise layer.error(f"{reason}; give one, {{ offset: 0 }} for no offset, or {fork}", "bottom") from error
            if not isinstance(error, DisconnectedError):
                layer.warn(
                    f"{reason}: longjon's Caffe refuses that, so all of the net's Crops are BVLC's, with offset 0", "bottom"
                )
            return f'longjon\'s Caffe refuses layer "{layer.name}"'
    return ""
