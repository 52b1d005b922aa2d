"""The layers of a prototxt in one phase, and the changes to another class count, collected before the text is edited."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from minicaffe.errors import Error
from minicaffe.formats.prototxt import NetFile
from minicaffe.layer import Layer
from minicaffe.layer_list import filter_layers
from minicaffe.layers.elementwise.eltwise import Eltwise
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.loss.softmax_with_loss import SoftmaxWithLoss
from minicaffe.layers.proposal.ohem import SoftmaxWithLossOHEM
from minicaffe.layers.roi.psroi_layer import PSROILayer
from minicaffe.layers.shape.concat import Concat, Slice
from minicaffe.layers.shape.reshape import Reshape
from minicaffe.mode import TEST, TRAIN, Phase
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of, linear_block

from .graph import Graph


def outputs_field(layer: caffe_pb2.LayerParameter) -> str:
    """Return the "block.field" with a layer's number of outputs; "" if it has none.

    The field is num_output, or output_dim of a position-sensitive layer.
    """
    if issubclass(kind := class_of(layer), PSROILayer):
        return f"{kind.param_block[0]}.output_dim"
    return f"{linear_block(layer)}.num_output" if linear_block(layer) else ""


def outputs_of(layer: caffe_pb2.LayerParameter) -> int:
    """Return the number of outputs of a layer that has an outputs_field."""
    block, _, name = outputs_field(layer).partition(".")
    return int(getattr(getattr(layer, block), name))


def reached(starts: Iterable[int], following: Callable[[int], Iterable[int]]) -> list[int]:
    """Return starts and all layers reached from them by `following`, the nearest first, each once."""
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
        """Return these heads and all layers on the paths to them."""
        return reached(heads, lambda i: self.passed.get(i, ()))


class PhaseGraph(Graph):
    """The layers of a prototxt in one phase, by their index in the file, and their classes.

    ends: the layers whose tops nothing reads, or that have none.
    """

    def __init__(self, param: caffe_pb2.NetParameter, phase: Phase) -> None:
        state = caffe_pb2.NetState(phase=caffe_pb2.Phase.Value(phase.name))
        numbered: list[Any] = [(layer, i) for i, layer in enumerate(param.layer)]
        super().__init__({i: layer for layer, i in cast(list[Any], filter_layers(numbered, state))})
        self.kinds = {i: class_of(layer) for i, layer in self.layers.items()}
        self.ends = sorted({i for i, _ in self.unread()} | {i for i, layer in self.layers.items() if not layer.top})

    def of_class(self, *kinds: type[Layer]) -> list[int]:
        """Return the layers of exactly these classes."""
        return [i for i, kind in self.kinds.items() if kind in kinds]

    def dependent(self, starts: Sequence[int]) -> set[int]:
        """Return these layers and all that depend on them."""
        return {*starts, *self.after(value for i in starts for value in self.values(i))}

    def heads(self, starts: Iterable[int]) -> Heads:
        """Return the nearest layers with num_output or output_dim at or before each of these, and the paths to them."""
        found = Heads()

        def before(i: int) -> list[int]:
            kind = self.kinds[i]
            if kind.linear or issubclass(kind, PSROILayer):
                found.layers.append(i)
                return []
            if self.layers[i].type == "Python":  # unknown: the search ends here
                return []
            # Later bottoms of other layers are labels, rois or weights.
            makers = self.makers(i) if kind in (Eltwise, Concat) else self.makers(i)[:1]
            for maker in makers:
                found.passed.setdefault(maker, []).append(i)
            return makers

        reached(starts, before)
        return found


SOFTMAX = (Softmax, SoftmaxWithLoss, SoftmaxWithLossOHEM)
NUM_CLASSES = re.compile(r"(num_classes\\?['\"]?\s*[:=]\s*)(\d{1,9})(?!\d)")


@dataclass(frozen=True)
class Change:
    """A new value for the field at path of a layer (by index in the file)."""

    layer: int
    path: str
    old: int | str
    new: int | str


@dataclass
class Plan:
    """The changes so far, in order and without repetition. old: the class count found (0: none)."""

    net: NetFile
    new: int
    boxes: str = ""
    old: int = 0
    changes: dict[Change, None] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    agnostic: bool = False
    resized: dict[int, None] = field(default_factory=dict)

    def graphs(self) -> list[PhaseGraph]:
        return [PhaseGraph(self.net.param, phase) for phase in (TEST, TRAIN)]

    def layer(self, i: int) -> caffe_pb2.LayerParameter:
        return self.net.param.layer[i]

    def found(self, count: int, i: int) -> None:
        """Record the class count of a layer. Raises Error if it differs from another layer's."""
        if self.old and self.old != count:
            place = self.net.sources[i].at()
            raise Error(f'{place}: layer "{self.layer(i).name}" is for {count} classes, another layer for {self.old}')
        self.old = count

    def change(self, i: int, path: str, old: int | str, new: int | str) -> None:
        self.changes[Change(i, path, old, new)] = None

    def note(self, i: int, text: str) -> None:
        self.notes[f'{self.net.sources[i].at()}: {self.layer(i).type} layer "{self.layer(i).name}": {text}'] = None

    def resize(self, i: int, old: int, new: int) -> None:
        """Change the layer's num_output or output_dim. Raises Error if it differs from old."""
        layer = self.layer(i)
        path, given = outputs_field(layer), outputs_of(layer)
        if given != old:
            place, name = self.net.sources[i].at(path), path.partition(".")[2]
            raise Error(f'{place}: layer "{layer.name}" has {name} {given}, but {self.old} classes need {old} there')
        self.change(i, path, old, new)
        if linear_block(layer) and i not in self.resized:
            self.resized[i] = None
            if any(spec.lr_mult == 0 for spec in layer.param):
                self.note(i, "its lr_mult is 0, so the new layer would never learn")

    def reshapes(self, layers: Iterable[int], sizes: dict[int, int]) -> None:
        """Replace the dims of Reshapes among these layers by sizes (old: new)."""
        for i in layers:
            if class_of(self.layer(i)) is Reshape:
                for k, dim in enumerate(self.layer(i).reshape_param.shape.dim):
                    if dim in sizes:
                        self.change(i, f"reshape_param.shape.dim[{k}]", dim, sizes[dim])
            elif class_of(self.layer(i)) is Slice:
                self.note(i, "its bottom has another size now: check its slice_point")

    def python_layers(self) -> None:
        """Change num_classes in param_str. Without heads and boxes (one stage of training), take the class count from there."""
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
                self.note(i, f"not changed: its num_classes is {count}, not {self.old}")
            else:
                self.change(i, "python_param.param_str", count, self.new)

    def rename(self) -> None:
        """Rename every layer whose weights change shape to name_N. A suffix _C of an earlier change is removed."""
        names = {layer.name for layer in self.net.param.layer}
        for i in self.resized:
            old = self.layer(i).name
            new = f"{old.removesuffix(f'_{self.old}')}_{self.new}"  # cls_score_21 of an earlier change becomes cls_score_5
            if new in names:
                raise Error(f'{self.net.sources[i].at("name")}: cannot rename layer "{old}": "{new}" is already a layer')
            self.renamed[old] = new
            self.change(i, "name", old, new)

    def hint(self) -> str:
        """Return advice, for the error, on a net without a class count."""
        if any(layer.type == "Python" and layer.python_param.layer == "ProposalLayer" for layer in self.net.param.layer):
            return "; a region proposal net (object or not) fits any number of classes unchanged"
        graph = self.graphs()[0]
        heads = graph.heads(graph.of_class(*SOFTMAX)).layers
        return f'; if it is a classifier: change num_output of "{self.layer(heads[0]).name}" and its name' if heads else ""
