"""Groups of nodes that are one layer of Caffe: recognised by their form, or described by minicaffe.export_onnx.

Recognized groups become one node: Swish, HardSwish, Mish, ShuffleChannel, a product and its bias, a Pad that is the padding of
what follows, an LSTM or RNN with its directions joined, and Caffe's RNN.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf import text_format

from minicaffe import limits
from minicaffe.porting.onnx.model import INPUTS, LAYERS
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of, exports

from .builder import Builder, imports
from .graph import Graph, Node

if TYPE_CHECKING:
    from onnx import ModelProto


Readers = Mapping[str, Sequence[Node]]
Pattern = Callable[[Graph, Node, Mapping[str, Node], Readers], Node | None]
"""(graph, the group's last node, makers, readers) -> the node in its place, or None."""


def recognise(graph: Graph) -> None:
    """Replace each group by one node in place of its last node."""
    for pattern in (gated, shuffle, product_and_bias, padded, directions, rnn_and_product):
        makers, readers = graph.makers(), graph.readers()
        graph.nodes = [pattern(graph, node, makers, readers) or node for node in graph.nodes]
        graph.drop_unused()


def _only(graph: Graph, name: str, readers: Readers) -> bool:
    """Return True if a tensor is read once and is no output."""
    return len(readers.get(name, ())) == 1 and name not in graph.outputs


def gated(graph: Graph, node: Node, makers: Mapping[str, Node], readers: Readers) -> Node | None:
    """Return a Swish, HardSwish or Mish in place of x times Sigmoid(x), HardSigmoid(x) or Tanh(Softplus(x))."""
    for x, gate in (node.inputs, node.inputs[::-1]) if node.op == "Mul" else ():
        maker = makers.get(gate)
        inner = makers.get(maker.inputs[0]) if maker and maker.op == "Tanh" else None
        if inner and inner.op == "Softplus" and inner.inputs[0] == x:
            return Node("Mish", node.name, [x], node.outputs)
        if maker and maker.inputs[:1] == [x]:
            if maker.op == "Sigmoid":
                return Node("minicaffe.Swish", node.name, [x], node.outputs)
            slope, shift = np.float32(maker.get("alpha", 0.2)), maker.get("beta", 0.5)
            if maker.op == "HardSigmoid" and slope == np.float32(1 / 6) and shift == 0.5:
                return Node("HardSwish", node.name, [x], node.outputs)
    return None


def shuffle(graph: Graph, node: Node, makers: Mapping[str, Node], readers: Readers) -> Node | None:
    """Return a ShuffleChannel in place of (N, C, ...) split into (N, g, C / g, ...), axes 1 and 2 swapped, and joined again."""
    swap = makers.get(node.input(0))
    split = makers.get(swap.inputs[0]) if swap and swap.op == "Transpose" and node.op == "Reshape" else None
    if not (swap and split and split.op == "Reshape"):
        return None
    x, table, y = (graph.shapes.get(name, ()) for name in (split.inputs[0], split.outputs[0], node.outputs[0]))
    order = [0, 2, 1, *range(3, len(table))]
    if not x or x != y or len(table) != len(x) + 1 or table[0] != x[0] or table[3:] != x[2:] or swap.get("perm", []) != order:
        return None
    return Node("minicaffe.ShuffleChannel", split.name, split.inputs[:1], node.outputs, {"group": table[1]})


def product_and_bias(graph: Graph, node: Node, makers: Mapping[str, Node], readers: Readers) -> Node | None:
    """Return an InnerProduct in place of a MatMul and the Add of a vector."""
    if node.op != "Add":
        return None
    for made, bias in (node.inputs, node.inputs[::-1]):
        product, vector = makers.get(made), graph.constants.get(bias)
        if product and product.op == "MatMul" and vector is not None and _only(graph, made, readers):
            weight = graph.constants.get(product.inputs[1])
            if weight is not None and weight.ndim == 2 and vector.shape == weight.shape[1:]:
                return Node("minicaffe.InnerProduct", product.name, [*product.inputs, bias], node.outputs)
    return None


def directions(graph: Graph, node: Node, makers: Mapping[str, Node], readers: Readers) -> Node | None:
    """Return an LSTM or RNN whose y is (T, S, directions units), in place of one and the nodes that join its directions.

    They are a Squeeze or a Reshape, or a Transpose and a Reshape.
    """
    maker = makers.get(node.input(0)) if node.op in ("Squeeze", "Reshape") else None
    swap = maker if maker and maker.op == "Transpose" and maker.get("perm", []) == [0, 2, 1, 3] else None
    made = makers.get(swap.inputs[0]) if swap else maker
    if not (made and "hidden_size" in made.attributes):
        return None
    y, out = (graph.shapes.get(name, ()) for name in (made.outputs[0], node.outputs[0]))
    inner = [made.outputs[0], *(swap.outputs if swap else [])]
    if len(y) != 4 or out != (y[0], y[2], y[1] * y[3]) or not all(_only(graph, name, readers) for name in inner):
        return None
    if y[1] > 1 and not swap:
        return None
    if any(name in readers for name in made.outputs[1:]):
        return None  # a last state must not come after its readers
    return _ending(made, node, made.op, joined=True)


def _ending(made: Node, node: Node, op: str, **more: Any) -> Node:
    """Return a recurrent node that gives node's output instead of its own y. The last states come from it alone."""
    states, made.outputs[1:] = made.outputs[1:], []
    return Node(op, made.name, made.inputs, [*node.outputs, *states], {**made.attributes, **more})


def rnn_and_product(graph: Graph, node: Node, makers: Mapping[str, Node], readers: Readers) -> Node | None:
    """Return Caffe's RNN in place of an RNN, a product with a square matrix, and a Tanh."""
    product = makers.get(node.input(0)) if node.op == "Tanh" else None
    made = makers.get(product.inputs[0]) if product and product.op == "minicaffe.InnerProduct" else None
    if not (product and made and made.op == "RNN" and made.get("joined", False)):
        return None
    units = graph.shapes[made.outputs[0]][2]
    alone = all(_only(graph, name, readers) for name in (node.inputs[0], made.outputs[0]))
    if graph.shapes[product.inputs[1]] != (units, units) or made.get("direction", "forward") != "forward" or not alone:
        return None
    return _ending(made, node, "minicaffe.RNN", product=product.inputs[1:3])


def padded(graph: Graph, node: Node, makers: Mapping[str, Node], readers: Readers) -> Node | None:
    """Return a Conv, MaxPool or AveragePool with its own padding in place of a Pad and the operator.

    The Pad must pad with zeros, before a MaxPool with the least number.
    """
    pad, shape = makers.get(node.input(0)), graph.shapes.get(node.input(0), ())
    if not (pad and pad.op == "Pad" and node.op in LEAST and pad.get("mode", "constant") == "constant" and len(shape) == 4):
        return None
    value, pads = _value(graph, pad), _pads(graph, pad)
    own = list(node.get("pads", [0] * 4))
    if value is None or pads is None or min(pads) < 0 or any(pads[:2] + pads[4:6]) or value != LEAST[node.op](value):
        return None
    if node.op == "AveragePool" and (any(own) or node.get("ceil_mode", 0)):
        return None
    if node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    around = [pads[i] + more for i, more in zip((2, 3, 6, 7), own)]
    more = {"pads": around, "auto_pad": "NOTSET"} | ({"count_include_pad": 1} if node.op == "AveragePool" else {})
    return Node(node.op, node.name, [pad.inputs[0], *node.inputs[1:]], node.outputs, {**node.attributes, **more})


LEAST: Mapping[str, Callable[[float], float]] = {
    "Conv": lambda value: 0.0,
    "AveragePool": lambda value: 0.0,
    "MaxPool": lambda value: min(value, float(np.finfo(np.float32).min)),
}
"""What a Pad may pad with to be an operator's padding: a value for which this is the value."""


def _value(graph: Graph, pad: Node) -> float | None:
    if not pad.input(2):
        return float(pad.get("value", 0.0))
    found = graph.constants.get(pad.inputs[2])
    return None if found is None else float(found.reshape(-1)[0])


def _pads(graph: Graph, pad: Node) -> list[int] | None:
    """Return the pads of all four axes, first those before them."""
    if pad.input(3):
        return None
    found = graph.constants.get(pad.input(1))
    pads = list(pad.get("pads", [])) if found is None else found.reshape(-1).tolist()
    return pads if len(pads) == 8 else None


# Layers that minicaffe.export_onnx wrote as groups of nodes, restored from the model's metadata.
#
# A group must be complete: the nodes that the metadata name compute the layer's tops from its bottoms and constants alone.
# A comparison of outputs then checks the whole model.


LAYER = "minicaffe.Layer"


@dataclass(frozen=True)
class _Described:
    """A layer in the metadata: its parameters, tensors, weights (constants), and the names of its nodes."""

    param: caffe_pb2.LayerParameter
    bottoms: list[str]
    tops: list[str]
    weights: list[str]
    nodes: set[str]


def input_shapes(model: ModelProto) -> dict[str, list[int]]:
    """Return the input shapes of the net that was exported; {} for another program's model."""
    found = _metadata(model, INPUTS)
    inputs = {item.name: item for item in model.graph.input}
    shapes = {}
    for name, shape in found.items() if isinstance(found, dict) else ():
        if name in inputs and isinstance(shape, list) and all(isinstance(d, int) and d > 0 for d in shape):
            shapes[name] = shape
    return shapes


def regroup(graph: Graph, model: ModelProto) -> None:
    """Replace each described layer's group by one node."""
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
    """Return the metadata under this key; None if it is missing or no JSON."""
    text = next((item.value for item in model.metadata_props if item.key == key), "")
    limits.check(f"the model's {key}", len(text), "text")
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _described(entry: Any) -> _Described | None:
    """Return an entry of the metadata, or None if it does not describe an exported layer."""
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
    """Return the nodes of a layer, or None if the group is incomplete."""
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
