"""A Caffe net under construction: layers, their weights, and the blob of each ONNX tensor.

@imports("Relu")
def relu(b, node): return [b("ReLU", [b.blob(node.inputs[0])])]      # the blobs that are the node's outputs

b(kind, bottoms, weights, tops=1, **fields) adds a layer; the fields are those of the type's parameter block. Layers are named
after their node. The last steps name outputs as in the model, silence tops that nothing reads, and put layers in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import Error, LayerError
from minicaffe.layer import Layer
from minicaffe.layers.conv.convolution import Convolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.inner_product import InnerProduct
from minicaffe.layers.elementwise.eltwise import Eltwise
from minicaffe.layers.elementwise.scale import Bias, Scale
from minicaffe.layers.neuron.functions import ReLU6
from minicaffe.layers.neuron.relu import PReLU, ReLU
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.porting.graph import free_name
from minicaffe.proto import caffe_pb2
from minicaffe.registry import types

from .graph import Graph, Node, RefusedError, Shape

Importer = Callable[["Builder", Node], Sequence[str]]
"""(builder, node) -> the blobs that are the node's outputs. Raises RefusedError."""

importers: dict[str, Importer] = {}
"""By ONNX operator."""

UNBUILT = {
    "DeformConv": ("DeformableConvolution", "which is not translated yet"),
    "Greater": ("Threshold", "which gives numbers, not truth values"),
    "MaxRoiPool": ("ROIPooling", "which is not translated yet"),
    "MaxUnpool": ("Unpooling", "whose positions count within one map"),
    "NonMaxSuppression": ("DetectionOutput", "which decodes the boxes, too"),
    "ReverseSequence": ("Reverse", "which reverses sequences of one length"),
    "RoiAlign": ("ROIAlign", "whose rois begin with the number of their image"),
    "TopK": ("ArgMax", "whose top_k gives indices or values, not both"),
}
"""Operators that are not imported although Caffe or a fork has a layer: its type, and the difference."""


def imports(*operators: str) -> Callable[[Importer], Importer]:
    """Return a decorator for a function that imports the nodes of these operators."""

    def decorate(function: Importer) -> Importer:
        importers.update(dict.fromkeys(operators, function))
        return function

    return decorate


class Builder:
    """Layers in order, weights by layer, blobs by tensor.

    read: the tensors that are read; refused: why, by node; restored: the tops of restored layers.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.layers: list[caffe_pb2.LayerParameter] = []
        self.weights: dict[str, list[Array]] = {}
        self.blobs: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self.restored: set[str] = set()
        self._layer_names: set[str] = set()
        self._blob_names: set[str] = {*graph.inputs, *graph.outputs}
        self.read = {*graph.readers(), *graph.outputs}
        self._unknown: set[str] = set()  # the outputs of refused nodes
        self._scope = ""

    def build(self) -> None:
        """Add the layers of all nodes. Refused nodes are collected with their names."""
        for name, shape in self.graph.inputs.items():
            layer = self.add("Input", [], name)
            layer.top.append(name)
            layer.input_param.shape.add(dim=shape)
            self.blobs[name] = name
        for node in self.graph.nodes:
            self._build_node(node)
        for output in self.graph.outputs if not self.refused else ():
            self._scope = output
            self.blob(output)  # an output may be a constant, which needs a layer

    def _build_node(self, node: Node) -> None:
        self._scope = node.name
        unknown = [name for name in node.inputs if name in self._unknown and name not in self.graph.shapes]
        try:
            if unknown:  # an earlier refused node is the cause
                self._unknown.update(node.outputs)
                return
            if node.op not in importers:
                raise RefusedError(_unbuilt(node.op))
            self.blobs.update(zip(node.outputs, importers[node.op](self, node), strict=False))
        except (RefusedError, LayerError, ArithmeticError, LookupError, TypeError, ValueError) as why:
            # Invalid nodes raise the built-in errors: an attribute is missing, or shapes do not fit.
            self._unknown.update(node.outputs)
            self.refused[node.name] = f'node "{node.name}" ({node.op}): {why or type(why).__name__}'
            self.blobs.update((name, name) for name in node.outputs)

    def __call__(
        self, kind: str, bottoms: Sequence[str], weights: Sequence[Array] = (), *, tops: int = 1, name: str = "", **fields: Any
    ) -> str:
        """Add a layer; return the blob that is its first top."""
        return self.several(kind, bottoms, weights, tops=tops, name=name, **fields)[0]

    def several(
        self, kind: str, bottoms: Sequence[str], weights: Sequence[Array] = (), *, tops: int = 1, name: str = "", **fields: Any
    ) -> list[str]:
        """Add a layer; return the blobs that are its tops. name: a suffix of its name, for all but the node's main layer."""
        layer = self.add(kind, bottoms, f"{self._scope}/{name}" if name else self._scope)
        given = {name: value for name, value in fields.items() if value is not None}
        if given:
            block = getattr(layer, types[kind].param_block[0])
            block.MergeFrom(type(block)(**given))
        layer.top.extend(free_name(self._blob_names, layer.name) for _ in range(tops))
        self._keep(layer, weights)
        return list(layer.top)

    def restore(
        self, param: caffe_pb2.LayerParameter, bottoms: Sequence[str], weights: Sequence[Array], tops: Sequence[str]
    ) -> list[str]:
        """Add a layer with the name, type and parameters of another.

        Its tops get the names of these tensors if they are free.
        """
        layer = self.add(param.type, bottoms, param.name)
        name = layer.name
        layer.MergeFrom(param)
        layer.name = name
        layer.top.extend(top if top in self.graph.outputs else free_name(self._blob_names, top) for top in tops)
        self.restored.update(layer.top)
        self._keep(layer, weights)
        return list(layer.top)

    def _keep(self, layer: caffe_pb2.LayerParameter, weights: Sequence[Array]) -> None:
        if len(weights):
            self.weights[layer.name] = [np.ascontiguousarray(array, np.float32) for array in weights]

    def add(self, kind: str, bottoms: Sequence[str], name: str) -> caffe_pb2.LayerParameter:
        """Add a layer without tops. If its name exists, its type or a number is appended."""
        taken = f"{name}/{kind.lower()}" if name in self._layer_names else name
        layer = caffe_pb2.LayerParameter(name=free_name(self._layer_names, taken), type=kind, bottom=bottoms)
        self.layers.append(layer)
        return layer

    # The inputs of a node.

    def blob(self, tensor: str) -> str:
        """Return the blob of a tensor. A constant becomes a Parameter layer."""
        if tensor in self.blobs:
            return self.blobs[tensor]
        self.blobs[tensor] = self.parameter(self.constant(tensor))
        return self.blobs[tensor]

    def parameter(self, array: Array, name: str = "") -> str:
        """Add a Parameter layer that gives an array."""
        return self("Parameter", [], [array], name=name, shape=caffe_pb2.BlobShape(dim=array.shape))

    def is_constant(self, tensor: str) -> bool:
        return tensor in self.graph.constants

    def constant(self, tensor: str) -> Array:
        """Return a constant in its type. Raises RefusedError for a computed tensor."""
        if tensor not in self.graph.constants:
            raise RefusedError(f'its input "{tensor}" is computed, and is a constant in Caffe')
        return self.graph.constants[tensor]

    def weight(self, tensor: str) -> Array:
        """Return a constant in float32."""
        return np.asarray(self.constant(tensor), np.float32)

    def shape(self, tensor: str) -> Shape:
        """Return the shape of a tensor. Raises RefusedError if it is only known at run time."""
        if tensor not in self.graph.shapes:
            raise RefusedError(f'the shape of "{tensor}" is only known when the model runs')
        return self.graph.shapes[tensor]

    def numbers(self, node: Node, i: int, attribute: str) -> list[Any] | None:
        """Return numbers that old opsets have as an attribute and new ones as input i; None if they are left out."""
        if node.input(i):
            numbers: list[Any] = self.constant(node.input(i)).reshape(-1).tolist()
            return numbers
        given = node.get(attribute, None)
        return None if given is None else list(given) if isinstance(given, list | tuple) else [given]

    # Layers that several importers need.

    def cut(self, blob: str, shape: Shape, axis: int, start: int, end: int) -> str:
        """Return the part of a blob of this shape from start to end along an axis."""
        points = [point for point in (start, end) if 0 < point < shape[axis]]
        if not points:
            return blob
        tops = self.several("Slice", [blob], tops=len(points) + 1, axis=axis, slice_point=points)
        return tops[1 if start > 0 else 0]

    def reshaped(self, blob: str, old: Shape, new: Shape, free: int | None = None) -> str:
        """Return a blob of shape `old` reshaped to `new`.

        The batch is copied if it stays; free: the axis whose length is inferred.
        """
        if old == new:
            return blob
        if len(new) == 2 and len(old) > 2 and new[0] == old[0]:
            return self("Flatten", [blob])
        same = [bool(old) and i == 0 and bool(new) and old[0] == new[0] for i in range(len(new))]
        dims = [0 if copied else -1 if i == free else length for i, (copied, length) in enumerate(zip(same, new))]
        return self("Reshape", [blob], shape=caffe_pb2.BlobShape(dim=dims))


def _unbuilt(operator: str) -> str:
    if operator not in UNBUILT:
        return "import does not build this operator"
    layer, difference = UNBUILT[operator]
    return f"import does not build it as {layer}, {difference}; import up to its inputs, and add the layer to the prototxt"


def refuse_others(node: Node, **allowed: Any) -> None:
    """Raise RefusedError for an attribute whose value differs from the one that Caffe's layer computes."""
    for attribute, value in allowed.items():
        given = node.get(attribute, value)
        if given != value:
            raise RefusedError(f"{attribute} = {given} (Caffe's layer has {value})")


def whole_error(path: str, refused: Sequence[str]) -> Error:
    """Return the error that lists all refused nodes."""
    lines = "\n  ".join(refused)
    advice = "nothing was written (--until TENSOR imports what is before a tensor)"
    return Error(f"{path}: {len(refused)} of its nodes cannot be imported:\n  {lines}\n{advice}")


# The last steps.


SUMS = (Convolution, Deconvolution, InnerProduct, BatchNorm, Scale, Bias, Eltwise)
"""Layers whose tops backward does not read, so that the next layer may replace them, as Caffe's own nets do."""
FOLLOWING = (BatchNorm, Scale, Bias, ReLU, ReLU6, PReLU)


def finished(builder: Builder, name: str) -> caffe_pb2.NetParameter:
    """Return the whole net."""
    layers, outputs = builder.layers, builder.graph.outputs
    kept = {builder.blobs[output] for output in outputs}
    _rename(layers, now := _in_place(layers, kept, kept | builder.restored))
    read = {bottom for layer in layers if list(layer.bottom) != list(layer.top) for bottom in layer.bottom}
    renamed: dict[str, str] = {}
    copies = []
    for output in outputs:
        blob = now.get(builder.blobs[output], builder.blobs[output])
        if blob not in read and blob not in renamed and blob not in builder.graph.inputs and blob not in outputs:
            renamed[blob] = output
        elif blob != output:
            copies.append((blob, output))
    _rename(layers, renamed)
    for blob, output in copies:
        bottom = renamed.get(blob, blob)
        builder.add("Split", [bottom], f"{output}/copy").top.append(output)
    read |= {bottom for layer in layers for bottom in layer.bottom}.union(outputs)
    unused = [top for layer in layers for top in layer.top if top not in read]
    if unused:
        builder.add("Silence", unused, "unused")
    return caffe_pb2.NetParameter(name=name, layer=layers)


def _in_place(layers: list[caffe_pb2.LayerParameter], kept: set[str], named: set[str]) -> dict[str, str]:
    """Return new names by which layers overwrite a blob that only they read, unless it is kept. A named blob keeps its name."""
    readers = Counter(bottom for layer in layers for bottom in layer.bottom)
    makers: dict[str, caffe_pb2.LayerParameter] = {}
    first: dict[str, str] = {}  # the first blob of a chain, by the later ones
    title: dict[str, str] = {}  # the name of the chain, by its first blob
    for layer in layers:
        bottom = layer.bottom[0] if layer.bottom else ""
        alone = readers[bottom] == 1 and bottom not in kept and bottom in makers
        if alone and _is(layer, FOLLOWING) and _is(makers[bottom], SUMS) and types[layer.type].in_place:
            top, root = layer.top[0], first.get(bottom, bottom)
            first[top] = root
            if top in named or root not in title:
                title[root] = top if top in named else root
        makers.update(dict.fromkeys(layer.top, layer))
    return {name: title[root] for name, root in [*first.items(), *zip(title, title)] if name != title[root]}


def _is(layer: caffe_pb2.LayerParameter, kinds: tuple[type[Layer], ...]) -> bool:
    return layer.type in types and types[layer.type] in kinds


def _rename(layers: list[caffe_pb2.LayerParameter], names: dict[str, str]) -> None:
    for layer in layers:
        layer.bottom[:] = [names.get(bottom, bottom) for bottom in layer.bottom]
        layer.top[:] = [names.get(top, top) for top in layer.top]
