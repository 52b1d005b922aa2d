"""A node of an ONNX graph, and the refusal of one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import NodeProto

Shape = tuple[int, ...]


class RefusedError(Exception):
    """Caffe has no layer for a node; the text says why."""


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

    @classmethod
    def of(cls, proto: NodeProto) -> Node:
        from onnx import helper

        attributes = {item.name: _plain(helper.get_attribute_value(item)) for item in proto.attribute}
        op = proto.op_type if proto.domain in ("", "ai.onnx") else f"{proto.domain}.{proto.op_type}"
        name = (proto.name or next(iter(proto.output), "")).lstrip("/") or proto.op_type
        return cls(op, name, [*proto.input], [*proto.output], attributes)


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
