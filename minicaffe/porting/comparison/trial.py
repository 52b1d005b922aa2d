"""Tests of hypotheses: part of a net is recomputed with one layer changed.

The changes from which hypotheses are built, and those between the same layer of two nets: its fields and its weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from minicaffe.blob import Array, Arrays
from minicaffe.detection.inputs import put_array
from minicaffe.errors import Error
from minicaffe.formats.values import is_repeated
from minicaffe.layer import Layer
from minicaffe.net import Net
from minicaffe.porting.graph import clear_fillers, input_layer, without
from minicaffe.proto import caffe_pb2


@dataclass
class Trial:
    """A layer about to be computed, whose param and blobs (its weights) may be changed.

    bottoms: changes its inputs; tweak: the layer object after setup; top: returns another first top, from the first bottom and
    top.
    """

    param: caffe_pb2.LayerParameter
    blobs: list[Array]
    bottoms: Callable[[list[Array]], list[Array]] | None = None
    tweak: Callable[[Layer], None] | None = None
    top: Callable[[Array, Array], Array] | None = None


Change = Callable[[Trial], None]
"""Applies a hypothesis to a trial; may raise ValueError, IndexError or Error if it does not apply."""


@dataclass(frozen=True)
class Variant:
    """A hypothesis about B, as text and as a change."""

    cause: str
    change: Change


@dataclass
class Segment:
    """Consecutive layers and the values of the blobs that they read. The last one's top `which` is compared."""

    layers: list[Layer]
    given: Arrays
    which: int
    phase: int
    dtype: np.dtype[Any]

    def run(self, at: int, change: Change) -> Array | None:
        """Return the compared blob with layer `at` changed; None if the change does not apply."""
        params = [_bare(layer.param) for layer in self.layers]
        for i, param in enumerate(params):
            param.name = f"layer {i}"  # unique, whatever the names in A
        trial = Trial(params[at], [blob.read_data().copy() for blob in self.layers[at].blobs])
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                change(trial)
                return self._run(params, at, trial)
        except (Error, ValueError, IndexError, TypeError, ZeroDivisionError):  # the change does not fit this layer
            return None

    def _run(self, params: list[caffe_pb2.LayerParameter], at: int, trial: Trial) -> Array:
        inputs = [input_layer(f"input {name}", array.shape, top=name) for name, array in self.given.items()]
        param = caffe_pb2.NetParameter(layer=[*inputs, *params])
        net = Net(param, self.phase, dtype=self.dtype, settings=self.layers[at].settings, fork=self.layers[at].fork.name)
        for name, array in self.given.items():
            put_array(net, name, array)
        for i, layer in enumerate(self.layers):
            values = trial.blobs if i == at else [blob.read_data() for blob in layer.blobs]
            for blob, array in zip(net.layer_dict[f"layer {i}"].blobs, values, strict=True):
                blob.data[...] = array.reshape(blob.shape)
        for i, layer in enumerate(net.layers):
            changed = layer.name == f"layer {at}"
            bottoms, tops = net.nodes[i].bottoms, net.nodes[i].tops
            if changed and trial.bottoms:
                for blob, array in zip(bottoms, trial.bottoms([blob.data.copy() for blob in bottoms])):
                    blob.reshape(array.shape)
                    blob.data[...] = array
            if changed and trial.tweak:
                trial.tweak(layer)
            first = bottoms[0].data.copy() if changed and trial.top else None  # the layer may overwrite it
            layer.forward_pass(bottoms, tops)
            if trial.top and first is not None:
                tops[0].data[...] = trial.top(first, tops[0].data.copy())
        made: Array = net.nodes[net.index_of(f"layer {len(self.layers) - 1}")].tops[self.which].data.copy()
        return made


def _bare(param: caffe_pb2.LayerParameter) -> caffe_pb2.LayerParameter:
    """Return a copy without rules, shared names and fillers, because the weights are copied in."""
    new = without(param, "include", "exclude", "param", "phase", "blobs")
    clear_fillers(new)
    return new


# Changes.


def parameter(block: str, **values: Any) -> Change:
    """Return a change that sets fields of the layer's block. A list replaces one, None clears the field."""

    def change(trial: Trial) -> None:
        for name, value in values.items():
            message = getattr(trial.param, block)
            if value is None:
                message.ClearField(name)
            elif isinstance(value, list):
                message.ClearField(name)
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)

    return change


def of_blob(index: int, function: Callable[[Array], Array]) -> Change:
    """Return a change that applies function to the layer's weights `index`."""

    def change(trial: Trial) -> None:
        trial.blobs[index] = function(trial.blobs[index])

    return change


def of_bottom(index: int, function: Callable[[Array], Array]) -> Change:
    """Return a change that applies function to the values that the layer reads from bottom `index`."""
    return of_bottoms(lambda arrays: [function(array) if i == index else array for i, array in enumerate(arrays)])


def of_bottoms(function: Callable[[list[Array]], list[Array]]) -> Change:
    """Return a change that applies function to the values that the layer reads from all bottoms."""

    def change(trial: Trial) -> None:
        trial.bottoms = function

    return change


def of_top(function: Callable[[Array, Array], Array]) -> Change:
    """Return a change that replaces the first top by function(first bottom, first top)."""

    def change(trial: Trial) -> None:
        trial.top = function

    return change


def channels_last(arrays: list[Array]) -> list[Array]:
    """Return the bottoms with the first one's values in the order N, H, W, C, in an array of the same shape."""
    first = arrays[0]
    if first.ndim != 4 or first.shape[1] == 1 or first.shape[2:] == (1, 1):
        raise ValueError("nothing to reorder")
    return [np.ascontiguousarray(first.transpose(0, 2, 3, 1)).reshape(first.shape), *arrays[1:]]


def interleaved(x: Array, groups: int) -> Array:
    """Return x (N, C, H, W) with its channels, in equal groups, reordered: the first of each group, then the second, ..."""
    n, _, h, w = x.shape
    return np.ascontiguousarray(x.reshape(n, groups, -1, h, w).swapaxes(1, 2)).reshape(x.shape)


# The same layer of two nets. Fields and weights are each tried alone, then both together.


CONNECTIONS = ("name", "bottom", "top", "param", "include", "exclude", "phase", "blobs", "loss_weight", "propagate_down")


def parameter_variants(a: Layer, b: Layer) -> Iterator[Variant]:
    """Yield variants of A's layer with B's fields and weights."""
    fields = _differing_fields(a.param, b.param)
    if fields:
        yield Variant(f"the prototxts differ: {'; '.join(fields)}", lambda trial: _take_param(trial, b))
    weights = [blob.read_data() for blob in b.blobs]
    differing = [i for i, (blob, array) in enumerate(zip(a.blobs, weights)) if not np.array_equal(blob.read_data(), array)]
    if differing and len(a.blobs) == len(weights):
        words = f"the weights differ: blob{'s' * (len(differing) > 1)} {', '.join(map(str, differing))}"
        yield Variant(words, lambda trial: _take_blobs(trial, weights))

        def both(trial: Trial) -> None:
            _take_param(trial, b)
            _take_blobs(trial, weights)

        if fields:
            yield Variant(f"{words}; and the prototxts: {'; '.join(fields)}", both)


def _differing_fields(a: caffe_pb2.LayerParameter, b: caffe_pb2.LayerParameter) -> list[str]:
    blocks = {d.name: d for param in (a, b) for d, _ in param.ListFields() if d.name not in CONNECTIONS}
    found = []
    for name, descriptor in blocks.items():
        ours, theirs = getattr(a, name), getattr(b, name)
        if not descriptor.message_type:
            if ours != theirs:
                found.append(f"{name}: {ours} in A, {theirs} in B")
            continue
        for field in descriptor.message_type.fields:
            values = [_shown(block, field) for block in (ours, theirs)]
            if values[0] != values[1] and "filler" not in field.name:  # fillers have no effect on weights that are set
                found.append(f"{name}.{field.name}: {values[0]} in A, {values[1]} in B")
    return found


def _take_param(trial: Trial, b: Layer) -> None:
    new = without(b.param, *CONNECTIONS)
    new.name = trial.param.name
    new.bottom.extend(trial.param.bottom)
    new.top.extend(trial.param.top)
    trial.param.CopyFrom(new)


def _take_blobs(trial: Trial, blobs: list[Array]) -> None:
    trial.blobs = [blob.copy() for blob in blobs]


def _shown(block: Message, field: FieldDescriptor) -> str:
    value = getattr(block, field.name)
    if field.enum_type:
        names = field.enum_type.values_by_number
        return ", ".join(names[number].name for number in ([value] if isinstance(value, int) else value))
    if isinstance(value, float):
        return f"{value:g}"
    if is_repeated(field) and not field.message_type:
        return ", ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in value) or "nothing"
    return str(value).lower() if isinstance(value, bool) else " ".join(str(value).split())
