"""A torch module under construction: its sub-modules, the lines of its forward, its tensors, the parts that it needs."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np

from minicaffe.blob import Array, Arrays
from minicaffe.layer import Layer

NEEDS = {
    "box_output": ("nms",),
    "detection_output": ("nms",),
    "mask_resize": ("bilinear",),
    "proposal": ("nms",),
    "psroi_align": ("bilinear",),
    "psroi_pool": ("bins",),
    "roi_align": ("bilinear",),
    "roi_pool": ("bins",),
    "roi_warp": ("bilinear", "bins"),
}
"""The parts that a part needs."""

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

Form = Callable[["Source", Any, Sequence[str], Sequence[tuple[int, ...]]], "str | Sequence[str]"]
"""(source, layer, the bottoms' variables, the tops' shapes) -> an expression for the top, or one for each."""


class Source:
    """modules: attribute -> (constructor, comment); lines: (layer, line, comment) of forward; tensors: of the state_dict;
    parts: names, in order."""

    def __init__(self) -> None:
        self.modules: dict[str, tuple[str, str]] = {}
        self.lines: list[tuple[Layer, str, str]] = []
        self.tensors: Arrays = {}
        self.constants: dict[str, Sequence[object]] = {}
        self.parts: list[str] = []
        self.layers: dict[str, Layer] = {}  # of each attribute
        self._owners: dict[tuple[int, ...], str] = {}
        self._variables: dict[str, str] = {}

    def part(self, name: str) -> None:
        """Take along a function or class of parts/."""
        for each in (*NEEDS.get(name, ()), name):
            if each not in self.parts:
                self.parts.append(each)

    def module(self, layer: Layer, constructor: str, tensors: dict[str, Array]) -> str:
        """Add a sub-module with its tensors: `self.conv1`; of a layer that shares its weights, the module of the other one."""
        memories = tuple(id(blob.data_memory) for blob in layer.blobs)
        if (owner := self._owners.get(memories)) and self.modules[owner][0] == constructor:
            return f"self.{owner}"
        if set(memories) & {memory for known in self._owners for memory in known}:
            raise layer.error("shares some of its weights with a layer of another form", "param")
        name = _free(layer.name, self.modules, reserved=MODULE)
        self._owners[memories] = name
        comment = ", ".join(f"{key} {'x'.join(map(str, array.shape)) or '1'}" for key, array in tensors.items())
        self.modules[name] = (constructor, comment)
        self.layers[name] = layer
        for key, array in tensors.items():
            self.tensors[f"{name}.{key}"] = np.ascontiguousarray(array)
        return f"self.{name}"

    def constant(self, name: str, rows: Sequence[object]) -> str:
        """Add a table above the class; its name."""
        free = _free(name.upper(), [*self.constants, *self._variables.values()])
        self.constants[free] = rows
        return free

    def variable(self, blob: str) -> str:
        """The variable of a blob."""
        if blob not in self._variables:
            self._variables[blob] = _free(blob, [*self._variables.values(), *self.constants], reserved=_reserved())
        return self._variables[blob]

    def assign(self, layer: Layer, tops: Sequence[str], made: str | Sequence[str], comment: str) -> None:
        """Add the layer's lines to forward."""
        values = [made] if isinstance(made, str) else list(made)
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


@lru_cache(maxsize=1)
def _reserved() -> tuple[str, ...]:
    """Names that a variable would hide: of the file's head, and of all functions and classes of parts/."""
    files = (resources.files(__package__) / "parts").iterdir()
    texts = (file.read_text(encoding="utf-8") for file in files if file.name.endswith(".py"))
    defined = (name for text in texts for name in re.findall(r"^(?:def|class) (\w+)", text, flags=re.M))
    return ("self", "torch", "nn", "F", "json", *defined)


def _free(name: str, taken: Collection[str], reserved: Collection[str] = ()) -> str:
    """Return name as a free identifier. One that begins as nn.Module's private attributes (_modules, __class__) gets an x."""
    word = re.sub(r"\W", "_", name, flags=re.ASCII) or "_"
    word = f"_{word}" if word[0].isdigit() else word
    word = f"x{word}" if re.match(r"_(?!\d|$)", word) else word
    word = f"{word}_" if keyword.iskeyword(word) or word in reserved else word
    free, number = word, 2
    while free in taken:
        free, number = f"{word}_{number}", number + 1
    return free
