"""Which layers of a prototxt belong to a net: the include and exclude rules against the net's state.

Source: Caffe's Net::FilterNet and Net::StateMeetsRule.
"""

from __future__ import annotations

from .formats.source import LayerSource
from .layer import Layer
from .proto import caffe_pb2

LayerList = list[tuple[caffe_pb2.LayerParameter, LayerSource | None]]
"""Layers with their places in the prototxt."""


def filter_layers(layers: LayerList, state: caffe_pb2.NetState) -> LayerList:
    """The layers that an include rule, or no exclude rule, keeps. Raises LayerError for a layer with both kinds."""
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
    """A net's state, to be matched with rules."""

    def __init__(self, state: caffe_pb2.NetState) -> None:
        self.phase, self.level, self.stages = state.phase, state.level, frozenset(state.stage)

    def meets(self, rule: caffe_pb2.NetStateRule) -> bool:
        """Whether the state has rule's phase, a level in its range, all of its stages and none of its not_stages."""
        return (
            (not rule.HasField("phase") or rule.phase == self.phase)
            and (not rule.HasField("min_level") or self.level >= rule.min_level)
            and (not rule.HasField("max_level") or self.level <= rule.max_level)
            and self.stages.issuperset(rule.stage)
            and self.stages.isdisjoint(rule.not_stage)
        )
