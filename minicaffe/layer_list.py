"""The layers that a net has: those of a prototxt that its rules keep, and a Split after every blob with several readers.

    conv1 --+--> relu_a            conv1 -> conv1_conv1_0_split --+--> relu_a  (bottom conv1_conv1_0_split_0)
            +--> relu_b                                           +--> relu_b  (bottom conv1_conv1_0_split_1)

A Split sums its readers' gradients. An explicit loss weight on a top counts as a reader; it moves to the split's first top.
Source: Caffe's Net::FilterNet, Net::StateMeetsRule and insert_splits.cpp.

Node: one layer of a net with the blobs that it reads and writes, and which gradients backward computes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .blob import Blob
from .errors import in_brackets
from .formats.source import LayerSource
from .layer import Layer
from .mode import Phase
from .proto import caffe_pb2


@dataclass
class Node:
    """A layer in a net; net.nodes is in the order of a forward.

    bottoms, tops: the blobs, with their names in the net; an in-place top is its bottom's blob.
    needs_backward: whether backward runs the layer. bottom_needs: for each bottom, whether backward computes its gradient.
    """

    layer: Layer
    bottoms: list[Blob]
    tops: list[Blob]
    bottom_names: list[str]
    top_names: list[str]
    bottom_needs: list[bool] = field(default_factory=list)
    needs_backward: bool = False

    def needs_nothing(self) -> None:
        """Let backward skip the layer."""
        self.needs_backward = False
        self.bottom_needs = [False] * len(self.bottoms)


def drop_unasked_gradients(nodes: Sequence[Node]) -> None:
    """Skip gradients that no loss needs, or that every reader declines. Source: Caffe's Net::Init."""
    under_loss: set[str] = set()
    declined: set[str] = set()
    for node in reversed(nodes):
        if node.needs_backward and all(name in declined for name in node.top_names):  # after splits, a top has one reader
            node.needs_nothing()
        # The loop runs backwards, so under_loss already contains everything that later losses read.
        if any(w or name in under_loss for w, name in zip(node.layer.loss_weights, node.top_names, strict=True)):
            under_loss.update(node.bottom_names)
        else:
            node.needs_nothing()
        declined.update(name for name, needs in zip(node.bottom_names, node.bottom_needs, strict=True) if not needs)


LayerList = list[tuple[caffe_pb2.LayerParameter, LayerSource | None]]
"""Layers with their places in the prototxt."""

Top = tuple[int, int]
"""A produced blob: (layer index, top index). An in-place layer's top counts as a new blob."""


def filter_layers(layers: LayerList, state: caffe_pb2.NetState) -> LayerList:
    """Return the layers that an include rule, or no exclude rule, keeps. Raises LayerError for a layer with both kinds."""
    kept: LayerList = []
    meets = Rules(state).meets
    for param, source in layers:
        if param.include and param.exclude:
            raise Layer(param, source=source).error("has include and exclude rules; give one kind", "exclude")
        if param.include:
            keep = any(map(meets, param.include))
        else:
            keep = not any(map(meets, param.exclude))
        if keep:
            kept.append((param, source))
    return kept


class Rules:
    """A net's state, which rules are matched with."""

    def __init__(self, state: caffe_pb2.NetState) -> None:
        self.phase, self.level, self.stages = state.phase, state.level, frozenset(state.stage)

    def meets(self, rule: caffe_pb2.NetStateRule) -> bool:
        """Return whether the state has rule's phase, a level in its range, all of its stages and none of its not_stages."""
        return (
            (not rule.HasField("phase") or rule.phase == self.phase)
            and (not rule.HasField("min_level") or self.level >= rule.min_level)
            and (not rule.HasField("max_level") or self.level <= rule.max_level)
            and self.stages.issuperset(rule.stage)
            and self.stages.isdisjoint(rule.not_stage)
        )


def left_out(layers: LayerList, state: caffe_pb2.NetState, blob: str) -> str:
    """Return text on a layer that its rules leave out and that would make the blob: `layer "data" makes it, ` and where.

    Return "" without such a layer.
    """
    phase = Phase.TEST if state.phase == caffe_pb2.TRAIN else Phase.TRAIN
    other = caffe_pb2.NetState()
    other.CopyFrom(state)
    other.phase = caffe_pb2.Phase.Value(phase.name)
    for one in layers:
        if blob in one[0].top and not filter_layers([one], state):
            where = f"but its rules ask for another level or stage{in_brackets('--level', '--stage')}"
            if filter_layers([one], other):
                where = f"in phase {phase} only{in_brackets(f'--phase {phase}')}"
            return f'layer "{one[0].name}" makes it, {where}'
    return ""


def insert_splits(layers: LayerList, elsewhere: Callable[[str], str] = lambda blob: "") -> LayerList:
    """Return the layers with Split layers inserted.

    elsewhere: what else is known of a blob, as left_out tells. Raises LayerError for a bottom that no earlier layer produces.
    """
    source_of, readers, loss_weight = _trace(layers, elsewhere)
    result: LayerList = []
    used: Counter[Top] = Counter()
    for i, (original, source) in enumerate(layers):
        param = caffe_pb2.LayerParameter()
        param.CopyFrom(original)
        for j, blob in enumerate(original.bottom):
            top = source_of[i, j]
            if readers[top] > 1:
                param.bottom[j] = split_blob_name(layers[top[0]][0].name, blob, top[1], used[top])  # readers take tops in order
                used[top] += 1
        result.append((param, source))
        for j, blob in enumerate(original.top):
            if readers[i, j] > 1:
                weight = loss_weight.get((i, j), 0.0)
                result.append((_split(param.name, blob, j, readers[i, j], weight), source))
                if weight:
                    param.ClearField("loss_weight")  # as in Caffe, the other tops lose their weights too
                    used[i, j] += 1  # the split's first top carries the loss; readers get the tops after it
    return result


def _trace(layers: LayerList, elsewhere: Callable[[str], str]) -> tuple[dict[Top, Top], Counter[Top], dict[Top, float]]:
    """Return the producing top of each (layer, bottom), the number of readers of each top, and its explicit loss weight."""
    last: dict[str, Top] = {}
    source_of: dict[Top, Top] = {}
    readers: Counter[Top] = Counter()
    loss_weight: dict[Top, float] = {}
    for i, (param, source) in enumerate(layers):
        for j, blob in enumerate(param.bottom):
            if blob not in last:
                raise Layer(param, source=source).error(_unknown_bottom(layers, i, blob, elsewhere), f"bottom[{j}]")
            source_of[i, j] = last[blob]
            readers[last[blob]] += 1
        for j, blob in enumerate(param.top):
            last[blob] = (i, j)  # later readers of an in-place blob read its last writer's top
        for j, weight in enumerate(param.loss_weight[: len(param.top)]):  # the layer reports surplus weights
            if weight:
                loss_weight[i, j] = weight
                readers[i, j] += 1
    return source_of, readers, loss_weight


def _unknown_bottom(layers: LayerList, index: int, blob: str, elsewhere: Callable[[str], str]) -> str:
    later = [f'layer "{p.name}" makes it, but only after this one' for p, _ in layers[index + 1 :] if blob in p.top]
    where = elsewhere(blob) or next(iter(later), "")
    return f'bottom "{blob}" is not produced by any layer before it' + f"; {where}" * bool(where)


def _split(layer: str, blob: str, top: int, count: int, loss_weight: float) -> caffe_pb2.LayerParameter:
    split = caffe_pb2.LayerParameter(name=f"{blob}_{layer}_{top}_split", type="Split", bottom=[blob])
    split.top.extend(split_blob_name(layer, blob, top, k) for k in range(count))
    if loss_weight:
        split.loss_weight.extend([loss_weight] + [0.0] * (count - 1))
    return split


def split_blob_name(layer: str, blob: str, top: int, k: int) -> str:
    """Return Caffe's name of a Split's k-th top."""
    return f"{blob}_{layer}_{top}_split_{k}"
