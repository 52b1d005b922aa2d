"""Layers that minicaffe.export_onnx wrote as groups of nodes: its metadata describe them, and here they are put back.

A group is what lies between a layer's tops and its bottoms. A layer is put back if the group is whole: all that its tops are
made of are its bottoms and constants, by nodes that the metadata name. What it computes is checked with the whole model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.protobuf import text_format

from minicaffe import limits
from minicaffe.porting.onnx.description import INPUTS, LAYERS
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of, exports

from .builder import Builder, imports
from .graph import Graph
from .node import Node

if TYPE_CHECKING:
    from onnx import ModelProto

LAYER = "minicaffe.Layer"


@dataclass(frozen=True)
class _Described:
    """A layer of the metadata: its parameters, tensors, constants that are its weights, and the names of its nodes."""

    param: caffe_pb2.LayerParameter
    bottoms: list[str]
    tops: list[str]
    weights: list[str]
    nodes: set[str]


def input_shapes(model: ModelProto) -> dict[str, list[int]]:
    """The shapes of the inputs of the net that was exported; none for a model of others."""
    found = _metadata(model, INPUTS)
    inputs = {item.name: item for item in model.graph.input}
    shapes = {}
    for name, shape in found.items() if isinstance(found, dict) else ():
        if name in inputs and isinstance(shape, list) and all(isinstance(d, int) and d > 0 for d in shape):
            shapes[name] = shape
    return shapes


def regroup(graph: Graph, model: ModelProto) -> None:
    """Replace the groups of described layers by one node each."""
    entries = _metadata(model, LAYERS)
    makers, order = graph.makers(), {id(node): i for i, node in enumerate(graph.nodes)}
    taken: set[int] = set()
    placed: dict[int, Node] = {}
    for entry in entries if isinstance(entries, list) else ():
        layer = _described(entry)
        group = _group(layer, graph, makers, taken) if layer else None
        if layer and group:
            taken |= {id(node) for node in group}
            last = max(order[id(makers[top])] for top in layer.tops)
            attributes = {"param": layer.param, "weights": layer.weights}
            placed[last] = Node(LAYER, layer.param.name, layer.bottoms, layer.tops, attributes)
    tops = {name for node in placed.values() for name in node.outputs}
    kept = [placed.get(i) or node for i, node in enumerate(graph.nodes) if i in placed or not tops.intersection(node.outputs)]
    graph.nodes = kept
    graph.drop_unused()


def _metadata(model: ModelProto, key: str) -> Any:
    """What the model's metadata hold under this key; None if they lack it, or it is no JSON."""
    text = next((item.value for item in model.metadata_props if item.key == key), "")
    limits.check(f"the model's {key}", len(text), "text")
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _described(entry: Any) -> _Described | None:
    """An entry of the metadata, or None if it is not one of an exported layer."""
    param = caffe_pb2.LayerParameter()
    try:
        text_format.Parse(str(entry["layer"]), param)
        names = [[str(name) for name in entry[key]] for key in ("bottoms", "tops", "weights", "nodes")]
    except (KeyError, TypeError, text_format.ParseError, RecursionError, UnicodeError):
        return None
    bottoms, tops, weights, nodes = names
    if exports.get(class_of(param)) is None or not tops:  # a data layer, or another that opens files
        return None
    return _Described(param, bottoms, tops, weights, {name.lstrip("/") for name in nodes})


def _group(layer: _Described, graph: Graph, makers: Mapping[str, Node], taken: set[int]) -> list[Node] | None:
    """The nodes of a layer, or None if the group is not whole."""
    if not all(name in graph.constants for name in layer.weights) or not all(top in makers for top in layer.tops):
        return None
    group: dict[int, Node] = {}
    waiting = list(layer.tops)
    while waiting:
        name = waiting.pop()
        if not name or name in layer.bottoms or name in graph.constants:
            continue
        node = makers.get(name)
        if node is None or id(node) in taken or node.name not in layer.nodes:
            return None
        if id(node) not in group:
            group[id(node)] = node
            waiting += node.reads
    return list(group.values())


@imports(LAYER)
def restored(b: Builder, node: Node) -> list[str]:
    bottoms, weights = [b.blob(name) for name in node.inputs], [b.constant(name) for name in node.attributes["weights"]]
    return b.restore(node.attributes["param"], bottoms, weights, node.outputs)
