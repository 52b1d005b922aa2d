"""What reads what in a net's prototxt, one phase at a time, without setting it up."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, cast

from .filter import filter_layers
from .layer import Layer
from .layers.concat import Concat
from .layers.eltwise import Eltwise
from .mode import Phase
from .proto import caffe_pb2
from .registry import class_of


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

    def heads(self, start: int) -> Iterator[tuple[int, list[int]]]:
        """The nearest layers before start (or start) whose outputs are numbered, each with the layers passed on the way."""
        queue = deque([(start, [start])])
        while queue:
            i, path = queue.popleft()
            kind = self.kinds[i]
            if kind.linear or kind.position_sensitive:
                yield i, path[:-1]
            elif self.layers[i].type != "Python":
                before = self.makers[i] if kind in (Eltwise, Concat) else self.makers[i][:1]
                queue.extend((maker, [*path, maker]) for maker in before if maker not in path)
