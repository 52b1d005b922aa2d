"""The size that an ONNX model has once its local functions are inlined: calls of calls make a small file any size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from minicaffe import limits
from minicaffe.errors import Error

if TYPE_CHECKING:
    from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

DEEPEST = 100
"""Most calls and sub-graphs inside each other: onnx's inliner recurses, and lengthens every name with each call."""
ROOM = 2**28
"""Bytes that copies of functions may take beyond four times those of the model."""


def check_unfolded(model: ModelProto, name: str) -> None:
    """Check the graph's size with its sub-graphs, and with a function's body in place of each call. Raises Error.

    The walk visits what the inliner would write, and stops at the first step beyond a limit.
    """
    functions = {_key(f.domain, f.name, f.overload): f for f in model.functions}
    _check_chains(functions, name)
    nodes = calls = size = 0
    room = ROOM + 4 * model.ByteSize()
    blocks: list[tuple[GraphProto | FunctionProto, int]] = [(model.graph, 0)]
    while blocks:
        block, depth = blocks.pop()
        if depth > DEEPEST:
            raise Error(f"{name}: its functions or sub-graphs nest more than {DEEPEST} deep, or a function calls itself")
        for node in block.node:
            function = functions.get(_key(node.domain, node.op_type, node.overload))
            nodes, calls = (nodes + 1, calls) if function is None else (nodes, calls + 1)
            limits.check(f"{name}: the graph", max(nodes, calls), "layers")
            graphs = list(_graphs(node, name, called=function is not None))
            blocks += [(graph, depth + 1) for graph in graphs]
            if function is not None:
                blocks.append((function, depth + 1))
                size += function.ByteSize()
        if size > room:
            raise Error(f"{name}: the copies of its functions take more than {room:,} bytes")


def _check_chains(functions: dict[tuple[str, str, str], FunctionProto], name: str) -> None:
    """Check how deep calls nest, also among functions that nothing calls: onnx's code walks these too. Raises Error."""
    calls = {key: [*_called(function, functions)] for key, function in functions.items()}
    callers = dict.fromkeys(calls, 0)
    for called in calls.values():
        for key in called:
            callers[key] += 1
    ready, depth, seen = [key for key, count in callers.items() if not count], dict.fromkeys(calls, 1), 0
    while ready:
        key, seen = ready.pop(), seen + 1
        for called_key in calls[key]:
            depth[called_key] = max(depth[called_key], depth[key] + 1)
            callers[called_key] -= 1
            if not callers[called_key]:
                ready.append(called_key)
    if seen < len(calls) or max(depth.values(), default=0) > DEEPEST:
        raise Error(f"{name}: its functions or sub-graphs nest more than {DEEPEST} deep, or a function calls itself")


def _called(function: FunctionProto, functions: dict[tuple[str, str, str], FunctionProto]) -> Iterator[tuple[str, str, str]]:
    """Yield the functions that a function's nodes and sub-graphs call, each as often as it is called."""
    blocks: list[FunctionProto | GraphProto] = [function]
    while blocks:
        for node in blocks.pop().node:
            if (key := _key(node.domain, node.op_type, node.overload)) in functions:
                yield key
            for attribute in node.attribute:
                blocks += [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]


def _key(domain: str, name: str, overload: str) -> tuple[str, str, str]:
    return "" if domain == "ai.onnx" else domain, name, overload


def _graphs(node: NodeProto, name: str, *, called: bool) -> Iterator[GraphProto]:
    """The node's sub-graphs. Raises Error where a call hands one over: the function's body may copy it any number of times."""
    from onnx import AttributeProto

    kinds = AttributeProto.GRAPH, AttributeProto.GRAPHS
    for attribute in node.attribute:
        handed = called and (attribute.HasField("g") or attribute.graphs)
        if handed or (attribute.ref_attr_name and attribute.type in kinds):
            raise Error(f'{name}: node "{node.name}" ({node.op_type}) hands a sub-graph to a function, which is not read')
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs
