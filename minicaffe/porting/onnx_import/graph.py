"""An ONNX graph with everything known about it: constants folded, and the shape of every tensor.

One pass over the nodes, in order. onnx's reference implementation evaluates nodes of constants. Shape is a constant, since
the inputs have fixed shapes. For all other nodes, onnx's shape inference gives the outputs' shapes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import limits
from minicaffe.blob import Array
from minicaffe.errors import Error, first_of, nearest, pasted

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto


Shape = tuple[int, ...]


class RefusedError(Exception):
    """A node that cannot be imported; the text says why."""


@dataclass
class Node:
    """An operator: attributes as Python values; left-out inputs are ""."""

    op: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)

    def get(self, attribute: str, default: Any) -> Any:
        return self.attributes.get(attribute, default)

    def input(self, i: int) -> str:
        """Return the name of input i, "" if it is left out."""
        return self.inputs[i] if i < len(self.inputs) else ""

    @property
    def reads(self) -> list[str]:
        """Its inputs, and the outer tensors that its sub-graphs read."""
        return [*self.inputs, *(name for graph in self.attributes.values() for name in _outer(graph))]

    @classmethod
    def of(cls, proto: NodeProto) -> Node:
        from onnx import helper

        attributes = {item.name: _plain(helper.get_attribute_value(item)) for item in proto.attribute}
        op = proto.op_type if proto.domain in ("", "ai.onnx") else f"{proto.domain}.{proto.op_type}"
        name = (proto.name or next(iter(proto.output), "")).lstrip("/") or proto.op_type
        return cls(op, name, [*proto.input], [*proto.output], attributes)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _outer(graph: Any) -> Iterator[str]:
    """Yield the outer tensors that a sub-graph reads; nothing for another attribute."""
    from onnx import GraphProto

    if isinstance(graph, GraphProto):
        nodes = [Node.of(proto) for proto in graph.node]
        own = {item.name for item in graph.input} | {tensor.name for tensor in graph.initializer}
        own.update(name for node in nodes for name in node.outputs)
        yield from (name for node in nodes for name in node.reads if name not in own)


SMALL = 1024
"""Constants of at most this many elements are shown to shape inference: sizes, axes, pads."""
SIZES = 8
"""They are among an operator's first inputs: those that take any number, such as Sum, have shapes alone."""

ROOM = 2**28
"""Bytes that constants may take beyond four times those of the model: a few bytes can ask for any size."""

FOLDED = frozenset(
    "Abs Add And BatchNormalization Cast CastLike Ceil Clip Concat ConstantOfShape CumSum DequantizeLinear Div Equal Exp Expand"
    " Flatten Floor Gather GatherElements Greater GreaterOrEqual Less LessOrEqual Log Max Mean Min Mod Mul Neg Not Or Pad Pow"
    " Range Reciprocal ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Round"
    " ScatterND Sigmoid Sign Slice Split Sqrt Squeeze Sub Sum Tanh Tile Transpose Unsqueeze Where".split()
)
"""Operators that are evaluated: their work grows as their inputs and outputs do."""


@dataclass
class Graph:
    """Nodes in order. inputs: the shapes of the model's inputs; shapes: of all tensors whose shape is known."""

    opset: int
    nodes: list[Node] = field(default_factory=list)
    inputs: dict[str, Shape] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)

    def makers(self) -> dict[str, Node]:
        return {name: node for node in self.nodes for name in node.outputs if name}

    def readers(self) -> dict[str, list[Node]]:
        """Return the nodes that read each tensor."""
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.reads):
                found.setdefault(name, []).append(node)
        return found

    def drop_unused(self) -> None:
        """Remove the nodes that no output depends on."""
        wanted, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                wanted.update(node.reads)
                kept.append(node)
        self.nodes = kept[::-1]


def known_graph(
    model: ModelProto, given: Mapping[str, Sequence[int]], path: str | os.PathLike[str], until: Sequence[str] = ()
) -> Graph:
    """Return the graph of a model for inputs of these shapes. A missing one is the model's, with 1 for a dynamic batch.

    until: the tensors that are its outputs, instead of the model's.

    Raises Error for a dynamic axis other than the first, for a constant or a tensor that is too large, and for a tensor that
    the model lacks.
    """
    return _Pass(model, given, os.fspath(path)).run(until)


class _Pass:
    """The pass over the nodes, with types and shapes by name."""

    def __init__(self, model: ModelProto, given: Mapping[str, Sequence[int]], path: str) -> None:
        self.model, self.path = model, path
        self.opsets = {item.domain: item for item in model.opset_import}
        default = self.opsets.get("", self.opsets.get("ai.onnx"))
        self.graph = Graph(default.version if default else 0)
        self._infos: dict[str, ValueInfoProto] = {}
        self.types: dict[str, int] = {}
        self.room = ROOM + 4 * sum(t.ByteSize() for t in model.graph.initializer)
        for tensor in model.graph.initializer:
            self._keep(tensor.name, self._array(tensor), free=True)
        self._take_inputs(given)

    def run(self, until: Sequence[str]) -> Graph:
        made = [name for proto in self.model.graph.node for name in proto.output]
        for name in until:
            if name not in made:
                near = nearest(name, made)
                meant = f'; did you mean "{near[0]}"?' if near else ""
                raise Error(f'{self.path}: no node makes the tensor "{name}"{meant}')
        self.graph.outputs = list(dict.fromkeys(until or [output.name for output in self.model.graph.output]))
        for proto in self.model.graph.node:
            node = Node.of(proto)
            if not self._fold(node, proto):
                self._infer(node, proto)
                self.graph.nodes.append(node)
        self.graph.drop_unused()
        return self.graph

    def _take_inputs(self, given: Mapping[str, Sequence[int]]) -> None:
        inputs = [item for item in self.model.graph.input if item.name not in self.graph.constants]
        names = [item.name for item in inputs]
        for name in given:
            if name not in names:
                raise Error(f"--shape {name}: the model's inputs are {first_of(names) or 'none'}")
        unknown = []
        for item in inputs:
            if not item.type.HasField("tensor_type"):
                raise Error(f'{self.path}: its input "{item.name}" is no tensor')
            dims = [d.dim_value for d in item.type.tensor_type.shape.dim]  # 0 if it is dynamic
            shape = tuple(given.get(item.name, [dims[0] or 1, *dims[1:]] if dims else []))
            fits = len(shape) == len(dims) and all(d in (0, s) or i == 0 for i, (s, d) in enumerate(zip(shape, dims)))
            if item.name in given and not fits:
                raise Error(f"--shape {item.name}: the model wants {' x '.join(str(d or '?') for d in dims)}, got {shape}")
            if 0 in shape:
                sizes = ",".join(str(d or "?") for d in shape)
                unknown.append(f"--shape {pasted(f'{item.name}={sizes}')}")  # a shell expands ?
            self._check_elements(item.name, shape)
            self.graph.inputs[item.name] = self.graph.shapes[item.name] = shape
            self.types[item.name] = item.type.tensor_type.elem_type
        if unknown:
            raise Error(f"{self.path}: axes of its inputs are dynamic: give their sizes with {first_of(unknown, ' ')}")

    def _array(self, tensor: TensorProto) -> Array:
        from onnx import numpy_helper

        try:
            array: Array = numpy_helper.to_array(tensor)
            return array
        except Exception as error:  # numpy's and onnx's, for contents that do not fit the shape
            raise Error(f'{self.path}: the constant "{tensor.name}" is damaged: {error}') from error

    def _keep(self, name: str, array: Array, *, free: bool = False) -> None:
        from onnx import helper

        self.room -= 0 if free else array.nbytes
        self.graph.constants[name], self.graph.shapes[name] = array, array.shape
        self.types[name] = helper.np_dtype_to_tensor_dtype(array.dtype)

    def _check_elements(self, name: str, shape: Shape) -> None:
        limits.check(f'{self.path}: the tensor "{name}" of shape {shape}', math.prod(shape), "blob_elements")

    def _fold(self, node: Node, proto: NodeProto) -> bool:
        """Make the node's outputs constants if its inputs are; return whether they are."""
        graph = self.graph
        if node.op == "Constant":
            self._keep(node.outputs[0], self._constant(node))
        elif node.op in ("Shape", "Size") and node.inputs[0] in graph.shapes:
            shape = graph.shapes[node.inputs[0]]
            shape = shape[slice(node.get("start", 0), node.get("end", None))]
            self._keep(node.outputs[0], np.array(math.prod(shape) if node.op == "Size" else shape, np.int64))
        elif node.op == "Identity" and node.inputs[0] in graph.constants:
            self._keep(node.outputs[0], graph.constants[node.inputs[0]], free=True)
        elif node.op in FOLDED and all(not name or name in graph.constants for name in node.inputs):
            return self._evaluate(node, proto)
        else:
            return False
        return True

    def _constant(self, node: Node) -> Array:
        if "value" in node.attributes:
            return self._array(node.attributes["value"])
        kind, value = next(iter(node.attributes.items()), ("", None))
        if kind in ("", "sparse_value"):
            raise Error(f'{self.path}: the constant "{node.name}" is sparse, or has no value')
        return np.array(value, np.int64 if "int" in kind else np.float32 if "float" in kind else object)

    def _evaluate(self, node: Node, proto: NodeProto) -> bool:
        from onnx.reference import ReferenceEvaluator

        found = self._inferred(proto)
        shapes = [[d for d in found[name][1] if d is not None] for name in node.outputs if name in found]
        if any(name and (name not in found or None in found[name][1]) for name in node.outputs):
            return False  # of unknown size
        if self.room < (size := sum(8 * math.prod(shape) for shape in shapes)):
            raise Error(f'{self.path}: node "{node.name}" ({node.op}) makes a constant of {size:,} bytes, above the limit')
        try:
            with np.errstate(all="ignore"):
                made = ReferenceEvaluator(self._single(proto)).run(
                    None, {name: self.graph.constants[name] for name in node.inputs if name}
                )
        except Exception as error:  # an invalid node may raise any type
            raise Error(f'{self.path}: node "{node.name}" ({node.op}) cannot be evaluated: {error}') from error
        for name, array in zip(node.outputs, made, strict=False):
            self._keep(name, np.asarray(array))
        return True

    def _infer(self, node: Node, proto: NodeProto) -> None:
        for name, (kind, shape) in self._inferred(proto).items():
            self.types[name] = kind
            if None not in shape:
                self._check_elements(name, shape)  # type: ignore[arg-type]
                self.graph.shapes[name] = shape  # type: ignore[assignment]
        ceil = node.op in ("MaxPool", "AveragePool") and node.get("ceil_mode", 0)
        if ceil and node.get("auto_pad", "NOTSET") == "NOTSET" and node.outputs[0] in self.graph.shapes:
            # onnx counts a window that starts in the padding, which no runtime computes
            shape = self.graph.shapes[node.inputs[0]]
            self.graph.shapes[node.outputs[0]] = (*shape[:2], *(axis.count for axis in pool_windows(node, shape[2:])))

    def _inferred(self, proto: NodeProto) -> dict[str, tuple[int, tuple[int | None, ...]]]:
        """Return the type and shape of each output, as far as onnx infers them."""
        from onnx import numpy_helper, shape_inference

        model = self._single(proto)
        for name in dict.fromkeys(proto.input[:SIZES]):
            array = self.graph.constants.get(name)
            if array is not None and array.size <= SMALL and array.dtype != object:
                model.graph.initializer.append(numpy_helper.from_array(array, name))
        try:
            inferred = shape_inference.infer_shapes(model)
        except Exception as error:
            raise Error(f'{self.path}: node "{proto.name}" ({proto.op_type}) is not valid: {error}') from error
        found = {}
        for item in inferred.graph.output:
            tensor = item.type.tensor_type
            if tensor.HasField("shape"):
                dims = tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
                found[item.name] = tensor.elem_type, dims
        return found

    def _single(self, proto: NodeProto) -> ModelProto:
        """Return a model of this node alone, with only the opsets that it needs. A file may list any number for each node."""
        from onnx import ValueInfoProto, helper

        inputs = [self._info(name) for name in dict.fromkeys(proto.input) if name]
        outputs = [ValueInfoProto(name=name) for name in proto.output if name]
        whole = helper.make_graph([proto], "node", inputs, outputs)
        domains = dict.fromkeys(["", "ai.onnx", proto.domain, *_inner_domains(proto)])
        opsets = [self.opsets[domain] for domain in domains if domain in self.opsets]
        return helper.make_model(whole, opset_imports=opsets, ir_version=self.model.ir_version)

    def _info(self, name: str) -> ValueInfoProto:
        """Return the type and shape of a tensor that an earlier node makes."""
        from onnx import helper

        if (found := self._infos.get(name)) is None:
            found = helper.make_tensor_value_info(name, self.types.get(name, 1), self.graph.shapes.get(name))
            self._infos[name] = found
        return found


def _inner_domains(proto: NodeProto) -> Iterator[str]:
    """Yield the operators' domains in a node's sub-graphs."""
    graphs = (graph for attribute in proto.attribute for graph in (attribute.g, *attribute.graphs))
    for node in chain.from_iterable(graph.node for graph in graphs):
        yield node.domain
        yield from _inner_domains(node)


# The windows of a pooling.


@dataclass(frozen=True)
class Windows:
    """ONNX's windows on one axis. up: their number is rounded up; counts: an average counts padding."""

    size: int
    kernel: int
    stride: int
    begin: int
    end: int
    up: bool
    counts: bool

    @property
    def count(self) -> int:
        room = self.size + self.begin + self.end - self.kernel
        count = (-(-room // self.stride) if self.up else room // self.stride) + 1
        return count - (self.up and (count - 1) * self.stride >= self.size + self.begin)  # less one that starts in the padding

    def divisors(self) -> NDArray[np.intp]:
        """Return the number of pixels that count in each window (count,)."""
        start = np.arange(self.count) * self.stride - self.begin
        last, first = (self.size + self.end, -self.begin) if self.counts else (self.size, 0)
        return np.minimum(start + self.kernel, last) - np.maximum(start, first)


def pads_of(node: Node, size: Shape, kernel: list[int], stride: list[int]) -> tuple[list[int], list[int]]:
    """Return the padding at the start and at the end of each axis. kernel: the dilated extent."""
    auto, axes = node.get("auto_pad", "NOTSET"), len(kernel)
    if auto in ("NOTSET", ""):
        pads = list(node.get("pads", [0] * 2 * axes))
        return pads[:axes], pads[axes:]
    if auto == "VALID":
        return [0] * axes, [0] * axes
    whole = [(-(-n // s) - 1) * s + k - n for n, k, s in zip(size, kernel, stride)]
    if min(whole) < -1:  # runtimes disagree
        raise RefusedError(f"auto_pad = {auto} with a kernel of {kernel} and strides {stride} on a map of {size}")
    whole = [max(p, 0) for p in whole]
    less, more = [p // 2 for p in whole], [p - p // 2 for p in whole]
    return (less, more) if auto == "SAME_UPPER" else (more, less)


def pool_windows(node: Node, size: Shape) -> list[Windows]:
    """Return the windows of a MaxPool or AveragePool over maps of this height and width."""
    kernel, axes = node.attributes["kernel_shape"], len(size)
    stride, dilation = (list(node.get(name, [1] * axes)) for name in ("strides", "dilations"))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    begin, end = pads_of(node, size, reach, stride)
    up, counts = bool(node.get("ceil_mode", 0)), bool(node.get("count_include_pad", 0))
    return [Windows(*sizes, up, counts) for sizes in zip(size, reach, stride, begin, end, strict=True)]
