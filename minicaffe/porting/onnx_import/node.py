"""A node of an ONNX graph, and the refusal of one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import NodeProto

Shape = tuple[int, ...]


class RefusedError(Exception):
    """A node that cannot be imported; the text says why."""


@dataclass
class Node:
    """An operator: attributes as Python values, inputs "" where left out."""

    op: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)

    def get(self, attribute: str, default: Any) -> Any:
        return self.attributes.get(attribute, default)

    def input(self, i: int) -> str:
        """The name of input i, "" if it is left out."""
        return self.inputs[i] if i < len(self.inputs) else ""

    @property
    def reads(self) -> list[str]:
        """Its inputs, and what its sub-graphs read from outside."""
        return [*self.inputs, *(name for graph in self.attributes.values() for name in _outer(graph))]

    @classmethod
    def of(cls, proto: NodeProto) -> Node:
        from onnx import helper

        attributes = {item.name: _plain(helper.get_attribute_value(item)) for item in proto.attribute}
        op = proto.op_type if proto.domain in ("", "ai.onnx") else f"{proto.domain}.{proto.op_type}"
        name = (proto.name or next(iter(proto.output), "")).lstrip("/") or proto.op_type
        return cls(op, name, [*proto.input], [*proto.output], attributes)


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _outer(graph: Any) -> Iterator[str]:
    """What a sub-graph reads that is not its own; nothing for another attribute."""
    from onnx import GraphProto

    if isinstance(graph, GraphProto):
        nodes = [Node.of(proto) for proto in graph.node]
        own = {item.name for item in graph.input} | {tensor.name for tensor in graph.initializer}
        own.update(name for node in nodes for name in node.outputs)
        yield from (name for node in nodes for name in node.reads if name not in own)
