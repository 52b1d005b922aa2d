"""The connections of layers, and the edits and names of layers that several tools make.

A blob that layers change in place has several values, one after the other:

conv1 -> conv1 (value 1) -> relu1 -> conv1 (value 2) -> ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy

from minicaffe.layer_list import Node
from minicaffe.proto import caffe_pb2

LayerParameter = caffe_pb2.LayerParameter
Value = tuple[int, int]
"""A layer's number, and the number of its top."""


class Graph:
    """Layers by number, in order, and the values between them.

    reads: of each layer the value of each bottom, None where no layer before makes it. readers: of each value. last: each
    blob's last value. inputs: the blobs that no layer before their first reader makes.
    """

    def __init__(self, layers: Iterable[LayerParameter] | Mapping[int, LayerParameter]) -> None:
        self.layers = dict(layers) if isinstance(layers, Mapping) else dict(enumerate(layers))
        self.reads: dict[int, list[Value | None]] = {}
        self.readers: dict[Value, list[int]] = {}
        self.last: dict[str, Value] = {}
        self.inputs: list[str] = []
        for i, layer in self.layers.items():
            self.reads[i] = [self.last.get(name) for name in layer.bottom]
            for name, value in zip(layer.bottom, self.reads[i]):
                if value is not None:
                    self.readers[value].append(i)
                elif name not in self.inputs:
                    self.inputs.append(name)
            for value in self.values(i):
                self.readers[value] = []
                self.last[self.name(value)] = value

    def values(self, i: int) -> list[Value]:
        """Return the values that a layer makes."""
        return [(i, j) for j in range(len(self.layers[i].top))]

    def name(self, value: Value) -> str:
        """Return the name of the value's blob."""
        return self.layers[value[0]].top[value[1]]

    def makers(self, i: int) -> list[int]:
        """Return the layers that make a layer's bottoms, one for each bottom that a layer makes."""
        return [maker for maker, _ in self.read(i)]

    def read(self, i: int) -> list[Value]:
        """Return the values that a layer reads, except bottoms that no layer makes."""
        return [value for value in self.reads[i] if value is not None]

    def unread(self) -> list[Value]:
        """Return the last values that no layer reads."""
        return [value for value in self.last.values() if not self.readers[value]]

    def after(self, values: Iterable[Value]) -> set[int]:
        """Return the layers that depend on any of these values."""
        made, found = set(values), set[int]()
        for i in self.layers:
            if not made.isdisjoint(self.read(i)):
                found.add(i)
                made.update(self.values(i))
        return found

    def before(self, values: Iterable[Value]) -> set[int]:
        """Return the layers that any of these values depends on, including their makers."""
        found = {i for i, _ in values}
        for i in reversed(self.layers):
            if i in found:
                found.update(self.makers(i))
        return found


def graph_of(nodes: Iterable[Node]) -> Graph:
    """Return the graph of a net's layers, also with the tops of losses that name none."""
    return Graph(LayerParameter(bottom=node.bottom_names, top=node.top_names) for node in nodes)


def bypass(layers: Iterable[LayerParameter], is_left_out: Callable[[LayerParameter], bool]) -> list[LayerParameter]:
    """Return the layers without those left out, whose readers now read their first bottom."""
    names: dict[str, str] = {}
    kept = []
    for layer in layers:
        layer.bottom[:] = [names.get(name, name) for name in layer.bottom]
        if is_left_out(layer):
            names.update(dict.fromkeys(layer.top, layer.bottom[0]))
            continue
        kept.append(layer)
        for top in layer.top:
            names.pop(top, None)  # the layer overwrites the blob, so the name no longer stands for a bottom
    return kept


def input_layer(name: str, shape: Iterable[int], *, top: str) -> LayerParameter:
    """Return an Input layer with one top."""
    block = caffe_pb2.InputParameter(shape=[caffe_pb2.BlobShape(dim=shape)])
    return LayerParameter(name=name, type="Input", top=[top], input_param=block)


def without(layer: LayerParameter, *names: str) -> LayerParameter:
    """Return a copy of a layer without these fields."""
    new = deepcopy(layer)
    for name in names:
        new.ClearField(name)  # type: ignore[arg-type]
    return new


def clear_fillers(layer: LayerParameter) -> None:
    """Remove the fillers of a layer whose weights will be copied in."""
    for descriptor, block in layer.ListFields():
        for filler in ("weight_filler", "bias_filler", "filler"):
            if descriptor.message_type and filler in descriptor.message_type.fields_by_name:
                block.ClearField(filler)


def free_name(taken: set[str], name: str) -> str:
    """Reserve and return name, with a number appended if it is taken."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    taken.add(free)
    return free
