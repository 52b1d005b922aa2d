"""A torch module under construction: its sub-modules, the lines of its forward, its tensors, and the parts that it needs."""

from __future__ import annotations

import keyword
import math
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Array, Arrays
from minicaffe.layer import Layer
from minicaffe.registry import Table

from .parts import parts

MODULE = frozenset(
    """T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches eval
    extra_repr float forward get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict modules mtia
    named_buffers named_children named_modules named_parameters parameters register_backward_hook register_buffer
    register_forward_hook register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook
    register_load_state_dict_post_hook register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule share_memory
    state_dict to to_empty train training type xpu zero_grad""".split()
)
"""Public attributes of nn.Module, which no sub-module may replace. PyTorch may be absent, so this is a table."""

Shapes = Sequence[tuple[int, ...]]
Form = Callable[["Source", Any, Sequence[str], Shapes], "str | Sequence[str]"]
"""(source, layer, the bottoms' variables, the tops' shapes) -> an expression for the top, or one for each."""

Gradient = Callable[[Sequence[Array]], Array]
"""(the gradients of a layer's blobs) -> that of a tensor."""

source: Table[Form] = Table("PyTorch source", "minicaffe.porting.torch_source")
"""The form of each class of layers. @source(Mine) adds your own."""


class Names:
    """Identifiers, each given once. reserved: names to which a _ is appended."""

    def __init__(self, reserved: Collection[str] = ()) -> None:
        self._reserved = reserved
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}  # the last number of each word: searching again would take quadratic time

    def free(self, name: str) -> str:
        """Reserve and return a free identifier for name."""
        word = _identifier(name)
        word = f"{word}_" if keyword.iskeyword(word) or word in self._reserved else word
        free, number = word, self._numbers.get(word, 1)
        while free in self._taken:
            number += 1
            free = f"{word.rstrip('_')}_{number}"
        self._numbers[word] = number
        self._taken.add(free)
        return free


class Source:
    """The pieces of a torch module.

    modules: attribute -> (constructor, comment); lines: (layer, line, comment) of forward; tensors: of the state_dict; parts:
    names, in order.
    """

    def __init__(self) -> None:
        self.modules: dict[str, tuple[str, str]] = {}
        self.lines: list[tuple[Layer, str, str]] = []
        self.tensors: Arrays = {}
        self.constants: dict[str, Sequence[object]] = {}
        self.parts: list[str] = []
        self.layers: dict[str, Layer] = {}  # by attribute
        self._attributes, self._names = Names(MODULE), Names(("self", "torch", "nn", "F", "json", *parts()))
        self.gradients: dict[str, Gradient] = {}  # of tensors that are no blob of the layer
        self._owners: dict[tuple[int, ...], str] = {}
        self._memories: set[int] = set()  # of the owners
        self._variables: dict[str, str] = {}

    def _carry(self, text: str) -> None:
        """Add the functions and classes of parts/ that the text calls."""
        for name in re.findall(r"(?<![\w.])\w+(?=\()", text):
            if name in parts():
                self.part(name)

    def part(self, name: str) -> None:
        """Add a function or class of parts/, after those that it needs."""
        for each in parts()[name].needs:
            self.part(each)
        if name not in self.parts:
            self.parts.append(name)

    def module(
        self, layer: Layer, constructor: str, tensors: dict[str, Array], gradients: Mapping[str, Gradient] | None = None
    ) -> str:
        """Add a sub-module with its tensors; return `self.conv1`.

        A layer that shares its weights gets the other one's module. gradients: of each tensor, if the tensors are not the
        layer's blobs in their order.
        """
        memories = tuple(id(blob.data_memory) for blob in layer.blobs)
        if (owner := self._owners.get(memories)) and self.modules[owner][0] == constructor:
            return f"self.{owner}"
        if not self._memories.isdisjoint(memories):
            raise layer.error("shares some of its weights with a layer of another form", "param")
        name = self._attributes.free(layer.name)
        self._carry(constructor)
        self._owners[memories] = name
        self._memories |= set(memories)
        comment = ", ".join(f"{key} {'x'.join(map(str, array.shape)) or '1'}" for key, array in tensors.items())
        self.modules[name] = (constructor, comment)
        self.layers[name] = layer
        for key, array in tensors.items():
            self.tensors[f"{name}.{key}"] = np.ascontiguousarray(array)
        self.gradients |= {f"{name}.{key}": gradient for key, gradient in (gradients or {}).items()}
        return f"self.{name}"

    def constant(self, name: str, rows: Sequence[object]) -> str:
        """Add a table above the class; return its name."""
        free = self._names.free(name.upper())
        self.constants[free] = rows
        return free

    def variable(self, blob: str) -> str:
        """Return the variable of a blob."""
        if blob not in self._variables:
            self._variables[blob] = self._names.free(blob)
        return self._variables[blob]

    def maker(self, variable: str) -> Layer | None:
        """Return the layer that last assigned a variable in a line of its own."""
        return next((layer for layer, line, _ in reversed(self.lines) if line.startswith(f"{variable} = ")), None)

    def drop_unread(self, outputs: Collection[str]) -> None:
        """Remove the lines that call no module and make a variable that nothing reads."""
        read, kept = set(outputs), []
        for layer, line, comment in reversed(self.lines):
            targets, _, value = line.partition(" = ")
            if "self." in value or not read.isdisjoint(targets.split(", ")):
                kept.append((layer, line, comment))
                read.update(re.findall(r"\w+", value))
        self.lines[:] = kept[::-1]

    def assign(self, layer: Layer, tops: Sequence[str], made: str | Sequence[str], comment: str) -> None:
        """Add the layer's lines to forward."""
        values = [made] if isinstance(made, str) else list(made)
        self._carry(" ".join(values))
        names = [self.variable(top) for top in tops]
        if isinstance(made, str) and len(names) > 1:
            self.lines.append((layer, f"{', '.join(names)} = {made}", comment))
            return
        for name, value in zip(names, values, strict=True):
            if name != value:
                self.lines.append((layer, f"{name} = {value}", comment))


def literal(value: object) -> str:
    """Return the Python text of a number, or of lists and tuples of numbers. Infinity and NaN are torch's."""
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    if isinstance(value, float):
        return (
            repr(float(value)) if math.isfinite(value) else f"{'-' * (value < 0)}torch.{'nan' if math.isnan(value) else 'inf'}"
        )
    return repr(value)


def number(layer: Layer, value: float) -> str:
    """Return the shortest text of this number in the layer's type."""
    with np.errstate(over="ignore"):
        typed = layer.dtype.type(value)
    return str(typed) if np.isfinite(typed) and layer.dtype != np.float64 else literal(float(typed))


def line(layer: Layer, x: str, scale: float, shift: float) -> str:
    """Return the text of scale x + shift, without a scale of 1 and a shift of 0."""
    scaled = x if scale == 1 else f"{x} * {number(layer, scale)}"
    return scaled if shift == 0 else f"{scaled} + {number(layer, shift)}"


def _identifier(name: str) -> str:
    """Return name as a valid identifier, in the form in which Python compares identifiers (NFKC).

    One that begins as nn.Module's private attributes (_modules, __class__) gets an x.
    """
    word = "".join(c if f"_{c}".isidentifier() else "_" for c in unicodedata.normalize("NFKC", name))
    word = word if word.isidentifier() else f"_{word}"
    if not word.strip("_"):
        return "_"
    return f"x{word}" if re.match(r"_(?!\d)", word) else word
