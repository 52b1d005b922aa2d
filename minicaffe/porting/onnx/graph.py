"""An ONNX graph under construction: nodes, constants, the idioms that the emitters share, and names for dynamic axes.

g("Add", x, 1.0)     one node; a float becomes a float32 constant, an int or a list of ints int64, an array keeps its type
g.shape(x, 0, 2)     the lengths of axes 0 and 1 as int64 (2,): a constant if they are fixed, else read at run time

An axis of an input is dynamic if the net accepts twice its length, alone or together with the same axis of the other inputs.
The number of rois of a Proposal is dynamic too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.blob import Array
from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.layer_list import Node
from minicaffe.layers.pool.spp import SPP
from minicaffe.layers.proposal.dynamic_tops import DynamicTops, dynamic_rois
from minicaffe.net import Net
from minicaffe.porting.graph import free_name

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, ValueInfoProto


Dims = tuple[int | str, ...]
"""A shape: a number for each fixed axis, a name for each dynamic one."""


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: its name and its shape."""

    name: str
    dims: Dims

    @property
    def rank(self) -> int:
        return len(self.dims)


Operand = Union[str, Value, float, int, Sequence[int], Array, "np.generic[Any]", None]
"""An input of a node: a tensor's name, a constant, or None for an omitted input."""

Emitter = Callable[["Graph", Any, list[Value], list[Dims]], list[str]]
"""(graph, layer, bottoms, the tops' shapes) -> the names of the tensors that are the tops."""

Tensor = tuple[str, DTypeLike, int]
"""A tensor of a sub-graph: name, dtype, number of axes."""

SHARED = 64
"""Equal constants of at most this many elements are stored once."""


@dataclass(frozen=True)
class Written:
    """A layer, the names of its bottoms' and tops' tensors, and its nodes."""

    layer: Layer
    bottoms: list[str]
    tops: list[str]
    nodes: list[NodeProto]


class Graph:
    """Nodes in order and constants by name.

    scope: the layer's name, a prefix of new names. layers: those written so far; weightless: the names of those whose learnable
    blobs have no effect. starts: the tensors (T, S) that are 0 in the first time step and 1 in all others.
    """

    def __init__(self, parent: Graph | None = None) -> None:
        self.nodes: list[NodeProto] = []
        self.scope: str = parent.scope if parent else ""
        self.weightless: set[str] = set()
        self.starts: set[str] = set()
        self.layers: list[Written] = []
        self.constants: dict[str, Array] = parent.constants if parent else {}
        self._names: set[str] = parent._names if parent else set()  # shared: a sub-graph must not hide an outer name
        self._known: dict[Any, str] = parent._known if parent else {}

    def reserve(self, name: str) -> str:
        """Reserve and return name, with a number appended if it is taken."""
        return free_name(self._names, name)

    def __call__(self, kind: str, *inputs: Operand, **attributes: Any) -> str:
        """Add a node with one output; return the output's name."""
        return self.several(kind, 1, *inputs, **attributes)[0]

    def several(self, kind: str, outputs: int, *inputs: Operand, **attributes: Any) -> list[str]:
        """Add a node; return its outputs' names."""
        from onnx import helper

        names = [self.reserve(f"{self.scope}/{kind}") for _ in range(outputs)]
        given = {key: value for key, value in attributes.items() if value is not None}
        self.nodes.append(helper.make_node(kind, [self.name(x) for x in inputs], names, name=names[0], **given))
        return names

    def name(self, operand: Operand) -> str:
        """Return the name of an operand's tensor."""
        if operand is None:
            return ""
        if isinstance(operand, str):
            return operand
        if isinstance(operand, Value):
            return operand.name
        if isinstance(operand, np.ndarray | np.generic):
            return self.constant(np.asarray(operand))
        kind = np.float32 if isinstance(operand, float) else np.int64  # shapes, axes and indices are int64 in ONNX
        return self.constant(np.array(operand, kind))

    def constant(self, array: Array, name: str = "constant") -> str:
        """Add a constant; return its name. Small equal constants are shared."""
        key = (array.dtype.str, array.shape, array.tobytes()) if array.size <= SHARED else None
        if key in self._known:
            return self._known[key]
        found = self.reserve(f"{self.scope}/{name}")
        self.constants[found] = array
        if key is not None:
            self._known[key] = found
        return found

    def weight(self, layer: Layer, i: int, shape: Sequence[int] | None = None) -> str:
        """Return the name of a learnable blob of a layer in float32, reshaped if shape is given.

        Blobs that layers share become one constant.
        """
        blob = layer.blobs[i].read_data()
        array = np.asarray(blob, np.float32).reshape(blob.shape if shape is None else tuple(shape))
        # Shared blobs have one address, and the net lives as long as the graph.
        key = ("weight", blob.__array_interface__["data"][0], array.shape)
        if key not in self._known:
            self._known[key] = self.constant(array, f"blobs.{i}")
        return self._known[key]

    def weights_by_address(self) -> dict[int, str]:
        """Return the names of the constants that are learnable blobs, by the blob's address in the net."""
        return {key[1]: name for key, name in self._known.items() if key[0] == "weight"}

    # Shapes.

    def shape(self, x: Value, start: int = 0, end: int | None = None) -> str:
        """Return the lengths of axes start to end as int64 (K,)."""
        dims = x.dims[start:end]
        if all(isinstance(d, int) for d in dims):
            return self.name(np.array(dims, np.int64))
        return self("Shape", x, start=start, end=x.rank if end is None else end)

    def size(self, x: Value, axis: int) -> str:
        """Return the length of one axis as int64 (1,)."""
        return self.shape(x, axis, axis + 1)

    def number(self, x: Value, axis: int, dtype: DTypeLike = np.int64) -> str:
        """Return the length of one axis as a scalar."""
        scalar = self("Squeeze", self.size(x, axis), [0])
        return scalar if dtype == np.int64 else self.cast(scalar, dtype)

    def reshape(self, x: Operand, *parts: Operand) -> str:
        """Return x reshaped to the concatenated parts, which are int64 vectors or lists with at most one -1."""
        parts = tuple(self.constants[p].tolist() if isinstance(p, str) and p in self.constants else p for p in parts)
        lists = [list(p) for p in parts if isinstance(p, list | tuple)]
        if len(lists) == len(parts):
            target = self.name([n for numbers in lists for n in numbers])
        else:
            target = self("Concat", *(p for p in parts if not isinstance(p, list | tuple) or p), axis=0)
        inferred = any(-1 in numbers for numbers in lists)
        # Without allowzero a length of 0 (no rois) would copy x's length. ONNX forbids allowzero with a -1.
        return self("Reshape", x, target, allowzero=None if inferred else 1)

    def cast(self, x: Operand, dtype: DTypeLike) -> str:
        from onnx import helper

        return self("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def columns(self, x: Operand, start: int, end: int, axis: int = 1) -> str:
        """Return x[:, start:end], or that part of another axis."""
        return self("Slice", x, [start], [end], [axis])

    def arange(self, end: Operand, dtype: DTypeLike = np.int64) -> str:
        """Return 0, 1, ..., end - 1. end: a scalar int64."""
        numbers = self("Range", 0, end, 1)
        return numbers if dtype == np.int64 else self.cast(numbers, dtype)

    def sub_graph(self, inputs: Sequence[Tensor], body: Callable[[Graph, list[str]], list[Tensor]]) -> GraphProto:
        """Return a GraphProto for a Loop, which may read this graph's tensors.

        body(graph, the inputs' names) -> outputs makes it.
        """
        from onnx import helper

        def info(tensor: Tensor) -> ValueInfoProto:
            name, dtype, axes = tensor
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [None] * axes)

        inner = Graph(self)
        given = [(self.reserve(f"{self.scope}/{name}"), dtype, axes) for name, dtype, axes in inputs]
        outputs = body(inner, [name for name, _, _ in given])
        return helper.make_graph(inner.nodes, self.reserve(f"{self.scope}/body"), [*map(info, given)], [*map(info, outputs)])


# Dynamic axes: each axis of an input gets another length.


Shape = tuple[int, ...]
Shapes = dict[str, Shape]

FIXED_MAP = (SPP,)
"""Layers whose ONNX form is for one map size."""


class _Symbol(NamedTuple):
    """A dynamic axis: its name, its length, and all shapes if it has twice that length."""

    name: str
    length: int
    shapes: Shapes


def symbolic_shapes(net: Net, nodes: Sequence[Node]) -> dict[str, Dims]:
    """Return the shape of every blob of these layers of net, with names for the dynamic axes.

    Blobs that grow lose their numbers: call this within state_kept.
    """
    net.reshape()
    base = _shapes(net)
    symbols: list[_Symbol] = []
    done: set[tuple[str, int]] = set()
    for name, axis in _candidates(net, nodes):
        alike = [n for n in net.inputs if base[n][axis : axis + 1] == base[name][axis : axis + 1]]
        # Try the input alone first. The inputs of an Eltwise, for instance, must change together.
        for together in ([name], alike) if (name, axis) not in done else ():
            given = {n: (*base[n][:axis], _twice(base[n][axis]), *base[n][axis + 1 :]) for n in together}
            shapes = _shapes_with(net, nodes, given, base)
            if shapes is not None:
                done |= {(n, axis) for n in together}
                symbols.append(_Symbol(_axis_name(name, axis), base[name][axis], shapes))
                break
    dims = {name: tuple(_dim(name, axis, base, symbols) for axis in range(len(base[name]))) for name in base}
    for top, axis in _counted(nodes):
        dims[top] = (*dims[top][:axis], _axis_name(top, axis), *dims[top][axis + 1 :])
    return dims


def _candidates(net: Net, nodes: Sequence[Node]) -> list[tuple[str, int]]:
    """Return the axes that may be dynamic: all of the inputs but the channels, and the rows of proposals.

    A Proposal takes one image, so its inputs' first axes are fixed.
    """
    single = {name for node in nodes if dynamic_rois(node.layer) for name in node.bottom_names}
    axes = [(name, axis) for name in net.inputs for axis in range(len(net.blobs[name].shape)) if axis != 1]
    free = [(name, axis) for name, axis in axes if axis or name not in single]
    return [*free, *((top, axis) for top, axis in _counted(nodes) if axis == 0)]


def _counted(nodes: Sequence[Node]) -> list[tuple[str, int]]:
    found = [(node.top_names, node.layer.dynamic_axis) for node in nodes if isinstance(node.layer, DynamicTops)]
    return [(top, axis) for tops, axis in found if axis is not None for top in tops]


def _shapes_with(net: Net, nodes: Sequence[Node], given: Mapping[str, Shape], base: Shapes) -> Shapes | None:
    """Return all shapes if some blobs have these, or None if the net rejects them. The old shapes are restored."""
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
