"""What reads what in a net's prototxt, one phase at a time, without setting it up."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from minicaffe.filter import filter_layers
from minicaffe.layer import Layer
from minicaffe.layers.concat import Concat
from minicaffe.layers.eltwise import Eltwise
from minicaffe.mode import Phase
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of


@dataclass
class Heads:
    """Layers whose outputs are numbered, the nearest first. passed: for a layer on the ways there, those passed before it."""

    layers: list[int] = field(default_factory=list)
    passed: dict[int, list[int]] = field(default_factory=dict)

    def ways(self, heads: Iterable[int]) -> list[int]:
        """The layers on all ways to these heads, without them, each once."""
        found = dict.fromkeys(heads)
        queue = deque(found)
        while queue:
            for i in self.passed.get(queue.popleft(), ()):
                if i not in found:
                    found[i] = None
                    queue.append(i)
        return list(found)[len(dict.fromkeys(heads)) :]


class Graph:
    """Which layer reads what which made, in one phase; blobs that nothing makes are left out."""

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
            for name in layer.top or [f"(top of layer {i})"]:
                last[name] = unread[name] = i
        self.ends = sorted(set(unread.values()))

    def of_class(self, *kinds: type[Layer]) -> list[int]:
        """The layers of exactly these classes."""
        return [i for i, kind in self.kinds.items() if kind in kinds]

    def behind(self, starts: Sequence[int]) -> set[int]:
        """The layers that read, directly or not, what these make."""
        found: set[int] = set()
        queue = deque(starts)
        while queue:
            for reader in self.readers[queue.popleft()]:
                if reader not in found:
                    found.add(reader)
                    queue.append(reader)
        return found

    def heads(self, starts: Iterable[int]) -> Heads:
        """The nearest layers before each of these (or these) whose outputs are numbered, and the ways to them."""
        found = Heads()
        queue = deque(dict.fromkeys(starts))
        seen = set(queue)
        while queue:
            i = queue.popleft()
            kind = self.kinds[i]
            if kind.linear or kind.position_sensitive:
                found.layers.append(i)
            elif self.layers[i].type != "Python":
                for maker in self.makers[i] if kind in (Eltwise, Concat) else self.makers[i][:1]:
                    found.passed.setdefault(maker, []).append(i)
                    if maker not in seen:
                        seen.add(maker)
                        queue.append(maker)
        return found
