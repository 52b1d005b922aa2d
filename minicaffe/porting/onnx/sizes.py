"""Which axes of a net's blobs are dynamic: found by giving each axis of an input another length.

An axis of an input is dynamic if the net accepts twice its length, alone or together with the same axis of the other inputs.
The number of rois of a Proposal is dynamic too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from minicaffe.errors import Error
from minicaffe.layer_list import Node
from minicaffe.layers.pool.spp import SPP
from minicaffe.layers.proposal.dynamic_tops import DynamicTops, dynamic_rois
from minicaffe.net import Net

from .graph import Dims

Shape = tuple[int, ...]
Shapes = dict[str, Shape]

FIXED_MAP = (SPP,)
"""Layers whose ONNX form is for one map size."""


class _Symbol(NamedTuple):
    """A dynamic axis: its name, its length, and all shapes when it has twice that length."""

    name: str
    length: int
    shapes: Shapes


def symbolic_shapes(net: Net, nodes: Sequence[Node]) -> dict[str, Dims]:
    """The shape of every blob of these layers of net, with names for the dynamic axes.

    The net's inputs keep their data, other blobs do not.
    """
    kept = {name: net.blobs[name].read_data().copy() for name in net.inputs}
    net.reshape()
    base = _shapes(net)
    symbols: list[_Symbol] = []
    done: set[tuple[str, int]] = set()
    for name, axis in _candidates(net, nodes):
        alike = [n for n in net.inputs if base[n][axis : axis + 1] == base[name][axis : axis + 1]]
        # Alone first; the inputs of an Eltwise, for instance, are accepted only with the same length.
        for together in ([name], alike) if (name, axis) not in done else ():
            given = {n: (*base[n][:axis], _twice(base[n][axis]), *base[n][axis + 1 :]) for n in together}
            shapes = _shapes_with(net, nodes, given, base)
            if shapes is not None:
                done |= {(n, axis) for n in together}
                symbols.append(_Symbol(_axis_name(name, axis), base[name][axis], shapes))
                break
    for name, array in kept.items():
        net.blobs[name].data[...] = array
    dims = {name: tuple(_dim(name, axis, base, symbols) for axis in range(len(base[name]))) for name in base}
    for top, axis in _counted(nodes):
        dims[top] = (*dims[top][:axis], _axis_name(top, axis), *dims[top][axis + 1 :])
    return dims


def _candidates(net: Net, nodes: Sequence[Node]) -> list[tuple[str, int]]:
    """The axes that may be dynamic: all but the channels of inputs, the rows of proposals. A Proposal takes one image."""
    single = {name for node in nodes if dynamic_rois(node.layer) for name in node.bottom_names}
    axes = [(name, axis) for name in net.inputs for axis in range(len(net.blobs[name].shape)) if axis != 1]
    free = [(name, axis) for name, axis in axes if axis or name not in single]
    return [*free, *((top, axis) for top, axis in _counted(nodes) if axis == 0)]


def _counted(nodes: Sequence[Node]) -> list[tuple[str, int]]:
    found = [(node.top_names, node.layer.dynamic_axis) for node in nodes if isinstance(node.layer, DynamicTops)]
    return [(top, axis) for tops, axis in found if axis is not None for top in tops]


def _shapes_with(net: Net, nodes: Sequence[Node], given: Mapping[str, Shape], base: Shapes) -> Shapes | None:
    """All shapes when some blobs have other ones, or None if the net rejects them. Restores the old ones."""
    try:
        for name, shape in given.items():
            net.blobs[name].reshape(shape)
        for node in nodes:
            node.layer.reshape_pass(node.bottoms, node.tops)
        shapes = _shapes(net)
        fixed = [node.bottom_names[0] for node in nodes if isinstance(node.layer, FIXED_MAP)]
        return None if any(shapes[name][2:] != base[name][2:] for name in fixed) else shapes
    except Error:
        return None
    finally:
        for name in given:
            net.blobs[name].reshape(base[name])
        net.reshape()


def _dim(name: str, axis: int, base: Shapes, symbols: Sequence[_Symbol]) -> int | str:
    length = base[name][axis]
    moving = [symbol for symbol in symbols if symbol.shapes[name][axis] != length]
    if not moving:
        return length
    same = len(moving) == 1 and moving[0].length == length and moving[0].shapes[name][axis] == _twice(length)
    return moving[0].name if same else _axis_name(name, axis)


def _shapes(net: Net) -> Shapes:
    return {name: blob.shape for name, blob in net.blobs.items()}


def _twice(length: int) -> int:
    return max(2 * length, 1)


def _axis_name(blob: str, axis: int) -> str:
    return f"{blob}_{'nchw'[axis] if axis < 4 else axis}"
