"""The text of `minicaffe layers TYPE`: a layer type's formula, bottoms, tops and fields; and the table of all, docs/layers.md.

    python -m minicaffe layers --markdown -o docs/layers.md

The facts come from the class; support by explain, the ONNX export and minicaffe.torch from their tables (registry.py).
The table needs PyTorch.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, NamedTuple

from minicaffe.formats.forks import fork_field
from minicaffe.layer import Count, Layer, gpu_methods_apply
from minicaffe.layers import CATALOGUE
from minicaffe.layers.data.input import Input
from minicaffe.layers.data.prefetching import DataLayer
from minicaffe.layers.python.python import STAND_INS
from minicaffe.proto import caffe_pb2
from minicaffe.registry import explains, explains_gradient, exports, is_built_in, torch_form

HEAD = """# The layers

The {types} names of the built-in layer types. `minicaffe layers` describes each type in one line; the classes in
[layers/](../layers) give formulas, shapes and errors.

- **parameters**: the blocks of the prototxt's `layer` that the type reads. `python_param`: its `param_str`, as in the Python
  layer of py-faster-rcnn that the type replaces.
- **CPU backward**: *none* if no gradient is defined, as for labels, boxes and counts; a dash if there is no bottom.
  *the class's*: the class of a Python layer decides.
- **GPU**: *on the CPU* if a net in GPU mode runs the layer on the CPU, as Caffe does with a layer that has no GPU code.
- **explain**, **ONNX**: whether `minicaffe explain` supports the type, forward and backward, and whether
  `minicaffe export` has operators for it. *an input*: an input of the model replaces the layer.
- **torch**: whether `minicaffe.torch.to_torch` builds it from PyTorch's operators. *our layer*: it runs minicaffe's layer on
  the CPU.

A dash means no. Decorators register your classes in each column; see [python.md](python.md#a-layer-of-your-own).

| type | bottoms | tops | parameters | CPU forward | CPU backward | GPU | explain | ONNX | torch |
|---|---|---|---|---|---|---|---|---|---|
"""
DASH = "–"

EXAMPLES = {
    "axis": "1", "dilation": "1", "group": "1", "group_size": "7", "kernel_size": "3", "loss_weight": "1", "num_output": "64",
    "output_dim": "21", "pad": "1", "pooled_h": "7", "pooled_w": "7", "spatial_scale": "0.0625", "stride": "1",
}  # fmt: skip
"""Values of an example's fields, by name: those that nets commonly have where the default is none or another."""


def markdown() -> str:
    """Return the text of docs/layers.md."""
    types = sorted(((kind, layer) for kind, layer in CATALOGUE.items() if is_built_in(layer)), key=lambda item: item[0].lower())
    return HEAD.format(types=len(types)) + "".join(f"| {' | '.join(row(kind, layer))} |\n" for kind, layer in types)


def row(kind: str, layer: type[Layer]) -> list[str]:
    """Return the table's cells for one type."""
    forward = "yes" if layer.forward_cpu is not Layer.forward_cpu else "the class's"
    name = f"`{kind}`" if layer.type == kind else f"`{kind}`, the same as `{layer.type}`"
    blocks = ", ".join(f"`{block}`" for block in sorted(layer.param_block))
    has_gpu = layer.forward_gpu is not Layer.forward_gpu and gpu_methods_apply(layer)
    on_gpu = forward if forward != "yes" else "yes" if has_gpu else "on the CPU"
    takes = [_count(layer.num_bottom), _count(layer.num_top), blocks or DASH]
    return [name, *takes, forward, _backward(layer, forward), on_gpu, *(_tools(layer) if forward == "yes" else 3 * [forward])]


def takes(layer: type[Layer]) -> str:
    """Return a line on a class's bottoms, tops and support."""
    has_gpu = layer.forward_gpu is not Layer.forward_gpu and gpu_methods_apply(layer)
    has = {
        "forward": True,
        "backward": _backward(layer, "yes") == "yes",
        "on the GPU": has_gpu,
        "explain": layer in explains,
        "ONNX": layer in exports or issubclass(layer, Input),
    }
    counts = f"bottoms: {_count(layer.num_bottom)}; tops: {_count(layer.num_top)}"
    return f"{counts}; has: {', '.join(what for what, there in has.items() if there)}"


def _tools(layer: type[Layer]) -> list[str]:
    """Return the cells for explain, ONNX and torch."""
    explained = "yes" if layer in explains and (layer in explains_gradient or _only_indices(layer)) else DASH
    exported = "an input" if issubclass(layer, Input) else "yes" if layer in exports else DASH
    if issubclass(layer, Input | DataLayer):
        return [explained, exported, "an input"]
    runs = is_built_in(layer) and layer.num_top != 0
    return [explained, exported, "yes" if layer in torch_form else "our layer" if runs else DASH]


def _only_indices(layer: type[Layer]) -> bool:
    """Return True if no bottom gets a gradient."""
    most = layer.num_bottom if isinstance(layer.num_bottom, int) else layer.num_bottom[1]
    return not layer.has_gradient or (most is not None and set(range(most)) <= set(layer.index_bottoms))


def _backward(layer: type[Layer], forward: str) -> str:
    if forward != "yes":
        return forward
    return "yes" if layer.has_gradient else DASH if layer.num_bottom == 0 else "none"


def _count(count: Count) -> str:
    least, most = (count, count) if isinstance(count, int) else count
    if most is None:
        return "any" if least == 0 else f"{least} or more"
    return str(least) if least == most else f"{least} to {most}"


def layer_text(kind: str, layer: type[Layer]) -> str:
    """Return a type's reference: formula and source, bottoms, tops and errors, fields with defaults, and an example."""
    head = [f"{kind}, the same as {layer.type}"] * (kind != layer.type)
    tables = [_table(block) for block in sorted(layer.param_block) if fields(block)]
    return (
        "\n\n".join([*head, module_text(layer), inspect.getdoc(layer) or "", takes(layer), *tables, example(kind, layer)])
        + "\n"
    )


def summary(layer: type[Layer]) -> str:
    """Return the first paragraph of the class's docstring on one line."""
    return (inspect.getdoc(layer) or "").split("\n\n")[0].replace("\n", " ").removesuffix(" Raises no LayerError.")


def module_text(layer: type[Layer]) -> str:
    """Return the docstring of the class's module, which holds the formula if the class's does not."""
    return inspect.getdoc(sys.modules[layer.__module__]) or ""


class Field(NamedTuple):
    """A field of a layer's block. default: "-" for none. whose: "of FORK, ..." for a field that BVLC Caffe lacks, else ""."""

    name: str
    type: str
    default: str
    whose: str


def fields(block: str) -> list[Field]:
    """Return the fields of a block, such as pooling_param."""
    message = _message(block)
    return [Field(field.name, _type(field), _default(field), _whose(message.name, field.name)) for field in message.fields]


def _table(block: str) -> str:
    rows = fields(block)
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row.whose]).rstrip() for row in rows)
    return "\n".join([f"{block}: field, type, default", *(f"  {line}" for line in lines)])


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


def example(kind: str, layer: type[Layer]) -> str:
    """Return a valid prototxt block, with as many bottoms and tops as the type needs at least."""
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
    """Return protobuf's descriptor of a block."""
    return caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name[block].message_type
