"""Groups of nodes that are one layer of Caffe, replaced by one node: Swish, ShuffleChannel, a product and its bias, and a Pad
that is the padding of what follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .graph import Graph
from .node import Node

Readers = Mapping[str, Sequence[Node]]
Pattern = Callable[[Graph, Node, Mapping[str, Node], Readers], Node | None]
"""(graph, the group's last node, makers, readers) -> the node in its place, or None."""


def recognise(graph: Graph) -> None:
    """Replace each group by a node in the place of its last one."""
    for pattern in (swish, shuffle, product_and_bias, padded):
        makers, readers = graph.makers(), graph.readers()
        graph.nodes = [pattern(graph, node, makers, readers) or node for node in graph.nodes]
        graph.drop_unused()


def _only(graph: Graph, name: str, readers: Readers) -> bool:
    """Whether a tensor is read once, and is no output."""
    return len(readers.get(name, ())) == 1 and name not in graph.outputs


def swish(graph: Graph, node: Node, makers: Mapping[str, Node], readers: Readers) -> Node | None:
    """x * Sigmoid(x)."""
    if node.op == "Mul":
        for x, gate in (node.inputs, node.inputs[::-1]):
            maker = makers.get(gate)
            if maker and maker.op == "Sigmoid" and maker.inputs[0] == x:
                return Node("minicaffe.Swish", node.name, [x], node.outputs)
    return None


def shuffle(graph: Graph, node: Node, makers: Mapping[str, Node], readers: Readers) -> Node | None:
    """(N, C, ...) as (N, g, C / g, ...), axes 1 and 2 swapped, and back."""
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
    """MatMul, and Add of a vector."""
    if node.op != "Add":
        return None
    for made, bias in (node.inputs, node.inputs[::-1]):
        product, vector = makers.get(made), graph.constants.get(bias)
        if product and product.op == "MatMul" and vector is not None and _only(graph, made, readers):
            weight = graph.constants.get(product.inputs[1])
            if weight is not None and weight.ndim == 2 and vector.shape == weight.shape[1:]:
                return Node("minicaffe.InnerProduct", product.name, [*product.inputs, bias], node.outputs)
    return None


def padded(graph: Graph, node: Node, makers: Mapping[str, Node], readers: Readers) -> Node | None:
    """Pad, and a Conv, MaxPool or AveragePool whose padding it is: zeros, for MaxPool the least number."""
    pad, shape = makers.get(node.input(0)), graph.shapes.get(node.input(0), ())
    if not (pad and pad.op == "Pad" and node.op in LEAST and pad.get("mode", "constant") == "constant" and len(shape) == 4):
        return None
    value, pads = _value(graph, pad), _pads(graph, pad)
    own = list(node.get("pads", [0] * 4))
    if value is None or pads is None or min(pads) < 0 or any(pads[:2] + pads[4:6]) or value != LEAST[node.op](value):
        return None
    if node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or (node.op == "AveragePool" and (any(own) or _up(node))):
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


def _up(node: Node) -> bool:
    return bool(node.get("ceil_mode", 0))


def _value(graph: Graph, pad: Node) -> float | None:
    if not pad.input(2):
        return float(pad.get("value", 0.0))
    found = graph.constants.get(pad.inputs[2])
    return None if found is None else float(found.reshape(-1)[0])


def _pads(graph: Graph, pad: Node) -> list[int] | None:
    """The pads of all four axes, those before them first."""
    if pad.input(3):
        return None
    found = graph.constants.get(pad.input(1))
    pads = list(pad.get("pads", [])) if found is None else found.reshape(-1).tolist()
    return pads if len(pads) == 8 else None
