"""The connections of a prototxt's layers in one phase, without setting up a net."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from minicaffe.layer import Layer
from minicaffe.layer_list import filter_layers
from minicaffe.layers.elementwise.eltwise import Eltwise
from minicaffe.layers.roi.psroi_layer import PSROILayer
from minicaffe.layers.shape.concat import Concat
from minicaffe.mode import Phase
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of, linear_block


def outputs_field(layer: caffe_pb2.LayerParameter) -> str:
    """Return the "block.field" with a layer's number of outputs: num_output, or output_dim of a position-sensitive layer; "" if
    it has none."""
    if issubclass(kind := class_of(layer), PSROILayer):
        return f"{kind.param_block[0]}.output_dim"
    return f"{linear_block(layer)}.num_output" if linear_block(layer) else ""


def outputs_of(layer: caffe_pb2.LayerParameter) -> int:
    """Return the number of outputs of a layer that has an outputs_field."""
    block, _, name = outputs_field(layer).partition(".")
    return int(getattr(getattr(layer, block), name))


def reached(starts: Iterable[int], following: Callable[[int], Iterable[int]]) -> list[int]:
    """starts and all layers that following leads to, the nearest first, each once."""
    found = dict.fromkeys(starts)
    queue = deque(found)
    while queue:
        for i in following(queue.popleft()):
            if i not in found:
                found[i] = None
                queue.append(i)
    return list(found)


@dataclass
class Heads:
    """Layers with num_output or output_dim, the nearest first. passed: the readers of a layer on the paths to them."""

    layers: list[int] = field(default_factory=list)
    passed: dict[int, list[int]] = field(default_factory=dict)

    def paths(self, heads: Iterable[int]) -> list[int]:
        """These heads and all layers on the paths to them."""
        return reached(heads, lambda i: self.passed.get(i, ()))


class Graph:
    """Makers and readers of each layer in one phase; blobs that no layer makes are ignored."""

    def __init__(self, param: caffe_pb2.NetParameter, phase: Phase) -> None:
        state = caffe_pb2.NetState(phase=caffe_pb2.Phase.Value(phase.name))
        numbered: list[Any] = [(layer, i) for i, layer in enumerate(param.layer)]
        self.layers = {i: layer for layer, i in cast(list[Any], filter_layers(numbered, state))}
        self.kinds = {i: class_of(layer) for i, layer in self.layers.items()}
        self.makers: dict[int, list[int]] = {}
        self.readers: dict[int, list[int]] = {i: [] for i in self.layers}
        last: dict[str, int] = {}
        unread: dict[str, int] = {}
        for i, layer in self.layers.items():
            self.makers[i] = [last[name] for name in layer.bottom if name in last]
            for maker in self.makers[i]:
                self.readers[maker].append(i)
            for name in layer.bottom:
                unread.pop(name, None)
            for name in layer.top or [f"(top of layer {i})"]:  # a layer without tops is an end too
                last[name] = unread[name] = i
        self.ends = sorted(set(unread.values()))

    def of_class(self, *kinds: type[Layer]) -> list[int]:
        """The layers of exactly these classes."""
        return [i for i, kind in self.kinds.items() if kind in kinds]

    def dependent(self, starts: Sequence[int]) -> set[int]:
        """These layers and all that depend on them."""
        return set(reached(starts, self.readers.__getitem__))

    def heads(self, starts: Iterable[int]) -> Heads:
        """The nearest layers with num_output or output_dim before each of these (or these), and the paths to them."""
        found = Heads()

        def before(i: int) -> list[int]:
            kind = self.kinds[i]
            if kind.linear or issubclass(kind, PSROILayer):
                found.layers.append(i)
                return []
            if self.layers[i].type == "Python":  # unknown: the search ends here
                return []
            # others' later bottoms are labels, rois or weights
            makers = self.makers[i] if kind in (Eltwise, Concat) else self.makers[i][:1]
            for maker in makers:
                found.passed.setdefault(maker, []).append(i)
            return makers

        reached(starts, before)
        return found
