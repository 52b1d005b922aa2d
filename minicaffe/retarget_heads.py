"""Where the class count stands in a net: found by what reads what, not by layer names."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from .errors import Error
from .filter import filter_layers
from .merge_bn import LINEAR
from .mode import TEST, TRAIN, Phase
from .proto import caffe_pb2
from .prototxt import NetFile
from .target_scaling import GROUPED

ROI_LAYERS = ("ROIPooling", "ROIAlign", *GROUPED)
SOFTMAX = ("Softmax", "SoftmaxWithLoss", "SoftmaxWithLossOHEM")
NUM_CLASSES = re.compile(r"(num_classes\\?['\"]?\s*[:=]\s*)(\d+)")


@dataclass(frozen=True)
class Change:
    """The field at path of a layer (by index in the file) gets another value."""

    layer: int
    path: str
    old: int | str
    new: int | str


class Graph:
    """Which layer reads what which made, in one phase; blobs that nothing makes are left out."""

    def __init__(self, param: caffe_pb2.NetParameter, phase: Phase) -> None:
        state = caffe_pb2.NetState(phase=caffe_pb2.Phase.Value(phase.name))
        numbered: list[Any] = [(layer, i) for i, layer in enumerate(param.layer)]
        self.layers = {i: layer for layer, i in cast(list[Any], filter_layers(numbered, state))}
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

    def of_type(self, *types: str) -> list[int]:
        return [i for i, layer in self.layers.items() if layer.type in types]

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
            layer = self.layers[i]
            if layer.type in LINEAR or layer.type in GROUPED:
                yield i, path[:-1]
            elif layer.type != "Python":
                before = self.makers[i] if layer.type in ("Eltwise", "Concat") else self.makers[i][:1]
                queue.extend((maker, [*path, maker]) for maker in before if maker not in path)


@dataclass
class Plan:
    """The changes gathered so far. old: the class count found (0: none)."""

    net: NetFile
    new: int
    boxes: str = ""
    old: int = 0
    changes: list[Change] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    agnostic: bool = False
    resized: list[int] = field(default_factory=list)

    def graphs(self) -> list[Graph]:
        return [Graph(self.net.param, phase) for phase in (TEST, TRAIN)]

    def layer(self, i: int) -> caffe_pb2.LayerParameter:
        return self.net.param.layer[i]

    def found(self, count: int, i: int) -> None:
        """A layer says how many classes there are. Raises Error where another said otherwise."""
        if self.old and self.old != count:
            place = self.net.sources[i].at()
            raise Error(f'{place}: layer "{self.layer(i).name}" is for {count} classes, another of the net for {self.old}')
        self.old = count

    def change(self, i: int, path: str, old: int | str, new: int | str) -> None:
        change = Change(i, path, old, new)
        if change not in self.changes:
            self.changes.append(change)

    def note(self, i: int, text: str) -> None:
        note = f'{self.net.sources[i].at()}: {self.layer(i).type} layer "{self.layer(i).name}": {text}'
        if note not in self.notes:
            self.notes.append(note)

    def resize(self, i: int, old: int, new: int) -> None:
        """The layer's outputs, old in number (else an Error), become new: num_output, or output_dim."""
        layer = self.layer(i)
        block = LINEAR.get(layer.type) or GROUPED[layer.type]
        name = "num_output" if layer.type in LINEAR else "output_dim"
        if getattr(getattr(layer, block), name) != old:
            place, given = self.net.sources[i].at(f"{block}.{name}"), getattr(getattr(layer, block), name)
            raise Error(f'{place}: layer "{layer.name}" has {name} {given}, but {self.old} classes need {old} there')
        self.change(i, f"{block}.{name}", old, new)
        if layer.type in LINEAR and i not in self.resized:
            self.resized.append(i)
            if any(spec.lr_mult == 0 for spec in layer.param):
                self.note(i, "its lr_mult is 0: as a new layer it would never learn")

    def reshapes(self, path: Sequence[int], sizes: dict[int, int]) -> None:
        """Reshape layers on a path: dims that are one of sizes become what it says."""
        for i in path:
            if self.layer(i).type == "Reshape":
                for k, dim in enumerate(self.layer(i).reshape_param.shape.dim):
                    if dim in sizes:
                        self.change(i, f"reshape_param.shape.dim[{k}]", dim, sizes[dim])
            elif self.layer(i).type == "Slice":
                self.note(i, "it cuts what has another size now: look at its slice_point")

    def python_layers(self) -> None:
        """num_classes in param_str; of a net with neither heads nor boxes (one stage of training) it is the class count."""
        given = {
            i: int(match[2])
            for i, layer in enumerate(self.net.param.layer)
            if layer.type == "Python" and (match := NUM_CLASSES.search(layer.python_param.param_str))
        }
        if not self.old:
            for i, count in given.items():
                self.found(count, i)
        for i, count in given.items():
            of_boxes = self.layer(i).python_param.layer == "ProposalTargetLayer"
            if self.agnostic and of_boxes and count == 2:
                continue  # background and object: class-agnostic box targets
            if count != self.old:
                self.note(i, f"left alone: its num_classes is {count}, not {self.old}")
                continue
            self.change(i, "python_param.param_str", count, self.new)

    def rename(self) -> None:
        """A new name for every layer whose weights change shape: name_N, without the _C that an earlier change left there."""
        names = {layer.name for layer in self.net.param.layer}
        for i in self.resized:
            old = self.layer(i).name
            new = f"{old.removesuffix(f'_{self.old}')}_{self.new}"
            if new in names:
                raise Error(f'{self.net.sources[i].at("name")}: layer "{old}" should become "{new}", but there is such a layer')
            self.renamed[old] = new
            self.change(i, "name", old, new)

    def hint(self) -> str:
        """What to say of a net in which no class count is found."""
        if any(layer.type == "Python" and layer.python_param.layer == "ProposalLayer" for layer in self.net.param.layer):
            return "; a region proposal net (object or not) fits any number of classes as it is"
        return ""


def plan_heads(plan: Plan) -> None:
    """The classes' and boxes' layers behind ROI layers, in both phases."""
    graphs = plan.graphs()
    for graph in graphs:
        for i, path in _heads(graph, graph.of_type(*SOFTMAX)):
            plan.found(_width(graph, i), i)
            _resize(plan, graph, i, 1)
            plan.reshapes(path, {plan.old: plan.new})
    scores = {change.layer for change in plan.changes}
    for graph in graphs:
        for i, path in _heads(graph, graph.ends):
            if i in scores:
                plan.reshapes(path, {plan.old: plan.new})
            elif plan.old and _for_each_class(plan, graph, i):
                _resize(plan, graph, i, 4)
                plan.reshapes(path, {4 * plan.old: 4 * plan.new, plan.old: plan.new})


def _heads(graph: Graph, starts: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """The heads before these layers that lie behind a ROI layer or are one."""
    rois = graph.of_type(*ROI_LAYERS)
    behind = graph.behind(rois) | set(rois)
    for start in sorted(starts):
        if start in behind:
            yield from ((i, path) for i, path in graph.heads(start) if i in behind)


def _width(graph: Graph, i: int) -> int:
    layer = graph.layers[i]
    if layer.type in LINEAR:
        return int(getattr(layer, LINEAR[layer.type]).num_output)
    return int(getattr(layer, GROUPED[layer.type]).output_dim)


def _for_each_class(plan: Plan, graph: Graph, i: int) -> bool:
    """Whether a head gives 4 values for each class; notes one that gives something else."""
    width = _width(graph, i)
    if width == 4 * plan.old and width == 8 and not plan.boxes:
        place, name = plan.net.sources[i].at(), graph.layers[i].name
        question = "boxes of 2 classes, or class-agnostic ones? say --boxes class or --boxes agnostic"
        raise Error(f'{place}: layer "{name}" has 8 outputs: {question}')
    if width == 8 and plan.boxes != "class":
        plan.agnostic = True
    elif width == 4 * plan.old:
        return True
    else:
        plan.note(i, f"left alone: {width} outputs are neither {4 * plan.old} (boxes of {plan.old} classes) nor 8")
    return False


def _resize(plan: Plan, graph: Graph, i: int, values: int) -> None:
    """A head of so many values a class, and the convolution before a position-sensitive layer."""
    old, new = values * plan.old, values * plan.new
    plan.resize(i, old, new)
    layer = graph.layers[i]
    if layer.type not in GROUPED or not graph.makers[i]:
        return
    cells = getattr(layer, GROUPED[layer.type]).group_size ** 2
    for maker, path in graph.heads(graph.makers[i][0]):
        plan.resize(maker, old * cells, new * cells)
        plan.reshapes(path, {old * cells: new * cells})
