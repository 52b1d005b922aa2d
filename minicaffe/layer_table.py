"""The catalogue as a table in Markdown, docs/layers.md: what every layer type takes, gives, reads and computes.

    python -m minicaffe layers --markdown > docs/layers.md

Everything is read off the classes: how many bottoms and tops are class facts; the parameters are the *_param fields that
a class's module, and the helper modules that it imports, take from a LayerParameter; a pass exists where a class writes it.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .layer import Count, Layer
from .layers import CATALOGUE
from .proto import caffe_pb2

HEAD = """# The layers

The layer types that are built in, {types} names in all. `minicaffe layers` says what each one does; formulas, shapes and errors
stand at the classes, in [layers/](../layers).

- **parameters**: the blocks of the prototxt's `layer` that the type reads. `python_param`: its `param_str`, as in the Python
  layer of py-faster-rcnn that the type stands in for.
- **CPU backward**: *none* where no gradient is defined, as of labels, boxes and counts; a dash where there is nothing to
  compute one for. *the class's*: a Python layer computes what its class does.
- **GPU**: *on the CPU* where a net in GPU mode runs the layer on the CPU, as Caffe does with a layer that has no GPU code.

| type | bottoms | tops | parameters | CPU forward | CPU backward | GPU |
|---|---|---|---|---|---|---|
"""
DASH = "–"


def markdown() -> str:
    """The text of docs/layers.md."""
    types = sorted(CATALOGUE.items(), key=lambda item: item[0].lower())
    return HEAD.format(types=len(types)) + "".join(f"| {' | '.join(row(kind, layer))} |\n" for kind, layer in types)


def row(kind: str, layer: type[Layer]) -> list[str]:
    """The cells of one type."""
    forward = "yes" if _writes(layer, "forward_cpu") else "the class's"
    name = f"`{kind}`" if layer.type == kind else f"`{kind}`, the same as `{layer.type}`"
    blocks = ", ".join(f"`{block}`" for block in parameters(layer))
    on_gpu = forward if forward != "yes" else "yes" if layer.forward_gpu is not Layer.forward_gpu else "on the CPU"
    return [name, _count(layer.num_bottom), _count(layer.num_top), blocks or DASH, forward, _backward(layer, forward), on_gpu]


def parameters(layer: type[Layer]) -> list[str]:
    """The *_param fields of LayerParameter that a type reads."""
    text = "\n".join(inspect.getsource(module) for module in _modules(layer))
    found = set(re.findall(r"(?:\bparam\.|\b\w+ = \")(\w+_param)\b", text))
    if re.search(r"^from minicaffe\.param_str import", text, re.MULTILINE):
        found.add("python_param")
    return sorted(found & set(caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name))


def _modules(layer: type[Layer]) -> list[ModuleType]:
    """The modules of a class and its bases below Layer, and those that they import from beside them and that hold no layer."""
    own = [sys.modules[cls.__module__] for cls in _classes(layer)]
    names = [name for module in own for name in re.findall(r"^from \.(\w+) import", inspect.getsource(module), re.MULTILINE)]
    beside = [sys.modules[f"{own[0].__package__}.{name}"] for name in dict.fromkeys(names)]
    return own + [module for module in beside if not any(map(_is_layer, vars(module).values()))]


def _is_layer(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Layer) and value is not Layer


def _classes(layer: type[Layer]) -> list[type[Layer]]:
    return [cls for cls in layer.__mro__ if _is_layer(cls)]


def _writes(layer: type[Layer], method: str) -> bool:
    """Whether a class, or a base of it below Layer, writes a method."""
    return any(method in vars(cls) for cls in _classes(layer))


def _backward(layer: type[Layer], forward: str) -> str:
    if forward != "yes":
        return forward
    found = next((vars(cls)["backward_cpu"] for cls in _classes(layer) if "backward_cpu" in vars(cls)), None)
    shares = any("share_diff(" in inspect.getsource(sys.modules[cls.__module__]) for cls in _classes(layer))
    if shares or (found and not _is_empty(found)):
        return "yes"
    return DASH if layer.num_bottom == 0 else "none"


def _is_empty(function: Callable[..., Any]) -> bool:
    """Whether a function is nothing but its docstring."""
    body = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    return isinstance(body, ast.FunctionDef) and len(body.body) == 1 and bool(ast.get_docstring(body))


def _count(count: Count) -> str:
    least, most = (count, count) if isinstance(count, int) else count
    if most is None:
        return "any" if least == 0 else f"{least} or more"
    return str(least) if least == most else f"{least} to {most}"
