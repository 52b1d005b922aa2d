"""Which layers of a prototxt belong to a net: the include and exclude rules against the net's state.

Source: Caffe's Net::FilterNet and Net::StateMeetsRule.
"""

from __future__ import annotations

from collections.abc import Sequence

from .layer import Layer
from .proto import caffe_pb2
from .source import LayerSource

LayerList = list[tuple[caffe_pb2.LayerParameter, LayerSource | None]]
"""Layers with their places in the prototxt."""


def filter_layers(layers: LayerList, state: caffe_pb2.NetState) -> LayerList:
    """The layers that state keeps: an include rule met, or no exclude rule met. Raises LayerError when both kinds are given."""
    kept: LayerList = []
    for param, source in layers:
        if param.include and param.exclude:
            raise Layer(param, source=source).error("has include and exclude rules; give one kind", "exclude")
        if param.include:
            keep = any(meets(state, rule) for rule in param.include)
        else:
            keep = not any(meets(state, rule) for rule in param.exclude)
        if keep:
            kept.append((param, source))
    return kept


def meets(state: caffe_pb2.NetState, rule: caffe_pb2.NetStateRule) -> bool:
    """Whether state has rule's phase, a level in its range, all of its stages and none of its not_stages."""
    return (
        (not rule.HasField("phase") or rule.phase == state.phase)
        and (not rule.HasField("min_level") or state.level >= rule.min_level)
        and (not rule.HasField("max_level") or state.level <= rule.max_level)
        and _has_all(state.stage, rule.stage)
        and not any(stage in state.stage for stage in rule.not_stage)
    )


def _has_all(stages: Sequence[str], wanted: Sequence[str]) -> bool:
    return all(stage in stages for stage in wanted)
