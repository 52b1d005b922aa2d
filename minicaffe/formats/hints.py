"""Hints for a prototxt that does not parse."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from minicaffe.errors import listed, nearest
from minicaffe.formats.upgrade import V1_TYPES
from minicaffe.proto import caffe_pb2

from .forks import fork_field

_SOLVER_ONLY = {"net", "train_net", "test_net", "test_iter", "test_interval", "base_lr", "lr_policy", "max_iter", "solver_mode"}
_LAYER_FIELDS = set(caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name)
_V1_LAYER_FIELDS = set(caffe_pb2.V1LayerParameter.DESCRIPTOR.fields_by_name)
_V1_TYPE_OF = {v2: v1 for v1, v2 in V1_TYPES.items()}
_NET_ONLY = {"layer", "layers", "input", "input_dim", "input_shape", "force_backward"}


def swapped_file(message: str, name: str) -> str:
    """Return a hint if a top-level field shows that a solver was given for a net, or a net for a solver."""
    if message == "NetParameter" and name in _SOLVER_ONLY:
        return "this is a solver prototxt: give the net that its field net or train_net names"
    if message == "SolverParameter" and name in _NET_ONLY:
        return "this is a net prototxt: give a solver"
    return ""


def is_layer_field(message: str, name: str) -> bool:
    """Return whether a field that belongs in a layer is directly in a net."""
    return message == "NetParameter" and name in _LAYER_FIELDS | _V1_LAYER_FIELDS


def unknown_field(message: str, name: str, known: Collection[str]) -> str:
    """Return a sentence on a field that the schema lacks."""
    sentence = f"{message} has no field {name}"
    known_fork = fork_field(message, name)
    if known_fork:
        does = f", where it {known_fork.sentence}" if known_fork.sentence else ""
        return f"{sentence}: it belongs to {listed(known_fork.forks)}{does}"
    if is_layer_field(message, name):
        return f"{sentence}: it belongs in a layer {{ ... }}"
    if message == "LayerParameter" and name in _V1_LAYER_FIELDS:
        return f"{sentence}: it belongs to V1's layers; in layer, write param {{ lr_mult: ... decay_mult: ... }}"
    near = nearest(name, known, least=0.75)
    return f"{sentence}; the nearest is {near[0]}" if near else sentence


def given_twice(owner: str, name: str) -> str:
    """Return a hint for a field that takes one value but has two.

    No version of protobuf's text parser let Caffe read such a file.
    """
    if (owner, name) == ("TransformationParameter", "resize_param"):
        return "MobileNet-YOLO's Caffe picks one of several at random, which is not built; keep one"
    return f"{name} takes one value, as in Caffe; delete one"


def template(word: str) -> tuple[str, str]:
    """Return the message and the hint for a variable in place of a value."""
    return (
        f"{word} is a variable: this file is a template, whose variables a script of its repository fills in",
        "run that script on it and give what it writes, or write the value here; `minicaffe flow` fills in those of flow nets, "
        "`minicaffe segment --define NAME=VALUE` others",
    )


def number_expected(word: str) -> str:
    """Return a hint for a name in place of a number."""
    return f"is this a template? {word} may stand for a number that a script of its repository fills in"


def enum_values(names: Mapping[str, int]) -> str:
    return "it is one of " + ", ".join(names)


def enum_nearest(owner: str, name: str, word: str, names: Mapping[str, int]) -> str:
    """Return a hint with the nearest value and, if there are few, all of them."""
    least = 0.75 if owner == "V1LayerParameter" else 0.5  # a fork's type must not pass as a misspelling
    near = nearest(_V1_TYPE_OF.get(word, word.upper()), names, least=least)  # Convolution for CONVOLUTION, max for MAX
    parts = [f"did you mean {near[0]}?"] if near else []
    if len(names) <= 8 or not near:
        parts.append(enum_values(names))
    if owner == "V1LayerParameter" and name == "type":
        parts.append(f'layers is V1: newer types need layer {{ type: "{word}" ... }}')
    return "; ".join(parts)


def quoted_enum(owner: str, name: str, value: str, names: Mapping[str, int]) -> str:
    if owner == "V1LayerParameter" and name == "type":
        return f'layers is V1: use layer for a quoted type (layer {{ type: "{value}" ... }})'
    if value in names:
        return f"write {name}: {value} without quotes"
    return enum_nearest(owner, name, value, names)


def string_expected(owner: str, name: str, word: str) -> str:
    if owner == "LayerParameter" and name == "type":
        v2_type = V1_TYPES.get(word)
        quoted = f'write type: "{v2_type or word}"'
        return f"layer takes a quoted type: {quoted}" + (f" (type: {word} is for V1's layers)" if v2_type else "")
    if owner == "V1LayerParameter" and name == "param":
        return 'in V1\'s layers, param is a name: param: "w"; rates are blobs_lr and weight_decay'
    return f'write {name}: "{word}"' if word[:1].isalnum() else ""


def block_expected(owner: str, name: str) -> str:
    if owner == "LayerParameter" and name == "param":
        return 'in layer, param is a block: param { name: "w" lr_mult: 1 }'
    return f"write {name} {{ ... }}"


def value_expected(owner: str, name: str) -> str:
    if owner == "V1LayerParameter" and name == "param":
        return "layers is V1: use layer for param { lr_mult: ... }"
    return f"write {name}: value"
