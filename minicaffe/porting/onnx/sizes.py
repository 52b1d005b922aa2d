"""Which axes of a net's blobs may have another length at run time: found by giving each input's axes another length.

An axis of an input is free where the net takes twice its length, alone or together with the same axis of the other inputs.
How many rois a Proposal gives is free too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.layers.spp import SPP
from minicaffe.net import Net

from .graph import Dims

Shape = tuple[int, ...]
Shapes = dict[str, Shape]

FIXED_MAP = (SPP,)
"""Layers whose ONNX form is for one size of map."""


def symbolic_shapes(net: Net, layers: Sequence[Layer]) -> dict[str, Dims]:
    """The shape of every blob of these layers of net, a name in the place of each free axis.

    The net's inputs keep their data, other blobs do not.
    """
    kept = {name: net.blobs[name].read_data().copy() for name in net.inputs}
    net.reshape()
    base = _shapes(net)
    symbols: list[tuple[str, Shapes]] = []
    done: set[tuple[str, int]] = set()
    for name, axis in _candidates(net, layers):
        alike = [n for n in net.inputs if _length(base[n], axis) == base[name][axis]]
        for together in ([name], alike) if (name, axis) not in done else ():
            given = {n: _doubled(base[n], axis) for n in together}
            shapes = _shapes_with(net, layers, given, base)
            if shapes is not None:
                done |= {(n, axis) for n in together}
                symbols.append((f"{name}_{_letter(axis)}", shapes))
                break
    for name, array in kept.items():
        net.blobs[name].data[...] = array
    dims = {name: _dims(name, base, symbols) for name in base}
    for top, axis in _counted(net, layers):
        dims[top] = (*dims[top][:axis], f"{top}_{_letter(axis)}", *dims[top][axis + 1 :])
    return dims


def _candidates(net: Net, layers: Sequence[Layer]) -> list[tuple[str, int]]:
    """The axes that may be free: of inputs all but the channels', of proposals the rows. A Proposal takes one image."""
    single = {name for layer in layers if layer.makes_rois for name in net.bottom_names[layer.name]}
    axes = [(name, axis) for name in net.inputs for axis in range(len(net.blobs[name].shape)) if axis != 1]
    free = [(name, axis) for name, axis in axes if axis or name not in single]
    return [*free, *((top, axis) for top, axis in _counted(net, layers) if axis == 0)]


def _counted(net: Net, layers: Sequence[Layer]) -> list[tuple[str, int]]:
    found = [(layer.name, layer.found_axis) for layer in layers]
    return [(top, axis) for name, axis in found if axis is not None for top in net.top_names[name]]


def _shapes_with(net: Net, layers: Sequence[Layer], given: Mapping[str, Shape], base: Shapes) -> Shapes | None:
    """All shapes with other ones of some blobs; None where the net does not take them. Puts the old ones back."""
    try:
        for name, shape in given.items():
            net.blobs[name].reshape(shape)
        for node in net.nodes:
            if node.layer in layers:
                node.layer.reshape_pass(node.bottoms, node.tops)
        shapes = _shapes(net)
        return None if _moves_a_fixed_map(net, layers, shapes, base) else shapes
    except Error:
        return None
    finally:
        for name in given:
            net.blobs[name].reshape(base[name])
        net.reshape()


def _moves_a_fixed_map(net: Net, layers: Sequence[Layer], shapes: Shapes, base: Shapes) -> bool:
    maps = [net.bottom_names[layer.name][0] for layer in layers if isinstance(layer, FIXED_MAP)]
    return any(shapes[name][2:] != base[name][2:] for name in maps)


def _dims(name: str, base: Shapes, symbols: list[tuple[str, Shapes]]) -> Dims:
    dims: list[int | str] = []
    for axis, length in enumerate(base[name]):
        moving = [(symbol, shapes[name][axis]) for symbol, shapes in symbols if shapes[name][axis] != length]
        if not moving:
            dims.append(length)
        elif len(moving) == 1 and moving[0][1] == _twice(length) and _starts(moving[0][0], base) == length:
            dims.append(moving[0][0])
        else:
            dims.append(f"{name}_{_letter(axis)}")
    return tuple(dims)


def _starts(symbol: str, base: Shapes) -> int:
    """The length of the axis that a symbol is named after."""
    name, _, letter = symbol.rpartition("_")
    return base[name]["nchw".index(letter) if letter in "nchw" else int(letter)]


def _shapes(net: Net) -> Shapes:
    return {name: blob.shape for name, blob in net.blobs.items()}


def _length(shape: Shape, axis: int) -> int:
    return shape[axis] if axis < len(shape) else -1


def _twice(length: int) -> int:
    return max(2 * length, 1)


def _doubled(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], _twice(shape[axis]), *shape[axis + 1 :])


def _letter(axis: int) -> str:
    return "nchw"[axis] if axis < 4 else str(axis)
