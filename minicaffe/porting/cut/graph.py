"""A net's layers and the values between them. A blob that layers change in place has several values, one after the other.

    conv1 -> conv1 (value 1) -> relu1 -> conv1 (value 2) -> ...

A name given by a user is a layer, or a blob: its last value. `blob:conv1` is the blob where a layer has the name too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.layers.data.input import Input
from minicaffe.layers.data.prefetching import DataLayer
from minicaffe.layers.shape.split import Split
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.parameters import names_near
from minicaffe.proto import caffe_pb2

Value = tuple[int, int]
"""What a step makes: the step's index, the top's."""

BLOB, LAYER = "blob:", "layer:"


@dataclass(frozen=True)
class Step:
    """A layer of the net that is no inserted Split, its parameters without their names, and what it reads."""

    layer: Layer
    param: caffe_pb2.LayerParameter
    reads: Sequence[Value]

    @property
    def is_constant(self) -> bool:
        """Whether it makes its tops of nothing: DummyData, Parameter."""
        return not (self.reads or isinstance(self.layer, Input | DataLayer))


@dataclass
class Graph:
    """The steps of a net in order; last: each blob's last value."""

    steps: list[Step] = field(default_factory=list)
    last: dict[str, Value] = field(default_factory=dict)

    def name(self, value: Value) -> str:
        """The blob whose value it is."""
        step, top = value
        return self.steps[step].param.top[top]

    def values(self, step: int) -> list[Value]:
        """What a step makes."""
        return [(step, j) for j in range(len(self.steps[step].param.top))]

    def behind(self, values: Iterable[Value]) -> set[int]:
        """The steps that depend on any of these values."""
        made, found = set(values), set[int]()
        for i, step in enumerate(self.steps):
            if made.intersection(step.reads):
                found.add(i)
                made.update(self.values(i))
        return found

    def before(self, values: Iterable[Value]) -> set[int]:
        """The steps that any of these values depends on."""
        wanted, found = {step for step, _ in values}, set[int]()
        for i in reversed(range(len(self.steps))):
            if i in wanted:
                found.add(i)
                wanted.update(step for step, _ in self.steps[i].reads)
        return found

    def step_or_value(self, name: str) -> tuple[int | None, Value | None]:
        """The step of a layer, or the last value of a blob, whichever has the name. Raises Error."""
        bare = name.removeprefix(BLOB).removeprefix(LAYER)
        layers = {step.layer.name: i for i, step in reversed(list(enumerate(self.steps)))}
        if bare in layers and not name.startswith(BLOB):
            return layers[bare], None
        if bare in self.last and not name.startswith(LAYER):
            return None, self.last[bare]
        kind = "blob" if name.startswith(BLOB) else "layer" if name.startswith(LAYER) else "layer and no blob"
        known = [*layers, *self.last] if kind == "layer and no blob" else [*(self.last if kind == "blob" else layers)]
        raise Error(f'the net has no {kind} "{bare}"{names_near(bare, dict.fromkeys(known))}')


def graph_of(net: Net) -> Graph:
    """The graph of a TEST net, without the Splits that it inserts. Raises Error for a TRAIN net."""
    if net.phase != TEST:
        raise Error("a net is cut in TEST; this one is in TRAIN")
    graph, copied = Graph(), dict[str, str]()
    for layer in net.layers:
        param = caffe_pb2.LayerParameter()
        param.CopyFrom(layer.param)
        param.bottom[:] = [copied.get(name, name) for name in param.bottom]
        if _is_inserted(layer):
            copied.update(dict.fromkeys(layer.param.top, param.bottom[0]))
            continue
        for name in ("include", "exclude", "blobs"):
            param.ClearField(name)
        graph.steps.append(Step(layer, param, [graph.last[name] for name in param.bottom]))
        graph.last.update((graph.name(value), value) for value in graph.values(len(graph.steps) - 1))
    return graph


def _is_inserted(layer: Layer) -> bool:
    """Whether it is one of the net's own Splits, by Caffe's names of its tops."""
    if not isinstance(layer, Split) or not layer.name.endswith("_split"):
        return False
    return list(layer.param.top) == [f"{layer.name}_{k}" for k in range(len(layer.param.top))]
