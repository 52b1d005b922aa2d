"""What a layer type computes, takes and can be told: the text of `minicaffe layers TYPE`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

from minicaffe.formats.forks import fork_field
from minicaffe.layer import Layer
from minicaffe.layers.python.python import STAND_INS
from minicaffe.proto import caffe_pb2

from .layer_table import takes

EXAMPLES = {
    "axis": "1", "dilation": "1", "group": "1", "group_size": "7", "kernel_size": "3", "loss_weight": "1", "num_output": "64",
    "output_dim": "21", "pad": "1", "pooled_h": "7", "pooled_w": "7", "spatial_scale": "0.0625", "stride": "1",
}  # fmt: skip
"""Values of an example's fields, by name: those that nets commonly have where the default is none or another."""


def layer_text(kind: str, layer: type[Layer]) -> str:
    """The formula and source, the class's bottoms, tops and errors, the fields with their defaults, and an example."""
    module = inspect.getdoc(sys.modules[layer.__module__]) or ""
    head = [f"{kind}, the same as {layer.type}"] * (kind != layer.type)
    fields = [line for block in sorted(layer.param_block) for line in _fields(block)]
    return "\n\n".join([*head, module, inspect.getdoc(layer) or "", takes(layer), *fields, _example(kind, layer)]) + "\n"


def _fields(block: str) -> Iterator[str]:
    """A block's fields, one per line: name, type, default, and whose field it is if not BVLC Caffe's."""
    message = _message(block)
    rows = [(field.name, _type(field), _default(field), _whose(message.name, field.name)) for field in message.fields]
    if rows:
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[3]]).rstrip() for row in rows)
        yield "\n".join([f"{block}: field, type, default", *(f"  {line}" for line in lines)])


def _type(field: Any) -> str:
    kinds = {field.TYPE_BOOL: "bool", field.TYPE_STRING: "string", field.TYPE_FLOAT: "float", field.TYPE_DOUBLE: "float"}
    name: str = kinds.get(field.type, "int")
    if field.enum_type:
        name = "|".join(value.name for value in field.enum_type.values)
    elif field.message_type:
        name = str(field.message_type.name)
    return f"repeated {name}" if field.default_value == [] else name


def _default(field: Any) -> str:
    value: bool | int | float | str = field.default_value
    if not field.has_default_value:
        return "-"
    if field.enum_type:
        return str(field.enum_type.values_by_number[field.default_value].name)
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"


def _whose(message: str, name: str) -> str:
    found = fork_field(message, name)
    return f"of {', '.join(found.forks)}" if found and found.forks else ""


def _example(kind: str, layer: type[Layer]) -> str:
    """A block of the prototxt that can be read, with as many bottoms and tops as the type needs at least."""
    least = [count if isinstance(count, int) else count[0] for count in (layer.num_bottom, layer.num_top)]
    names = [f'{side}: "{name}"' for side, count in zip(("bottom", "top"), least) for name in _names(side, count)]
    named = next((name for name, built_in in STAND_INS.items() if built_in is layer), None)
    if named:
        module, name = named
        lines = [f'  python_param {{ module: "{module}" layer: "{name}" param_str: "" }}']
        kind = "Python"
    else:
        lines = [f"  {block} {{ {text} }}" for block in sorted(layer.param_block) if (text := _values(block))]
    return "\n".join(["layer {", f'  name: "{layer.type.lower()}" type: "{kind}" {" ".join(names)}'.rstrip(), *lines, "}"])


def _names(side: str, count: int) -> list[str]:
    first = "x" if side == "bottom" else "y"
    return [first, *(f"{first}{i}" for i in range(1, count))][:count]


def _values(block: str) -> str:
    named = (field.name for field in _message(block).fields)
    return " ".join(f"{name}: {EXAMPLES[name]}" for name in named if name in EXAMPLES)


def _message(block: str) -> Any:
    """Protobuf's descriptor of a block."""
    return caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name[block].message_type
