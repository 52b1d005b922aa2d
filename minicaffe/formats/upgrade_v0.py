"""V0 (`layers { layer { type: "conv" } }`, every parameter in one message) to V1. Source: Caffe's upgrade_proto.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minicaffe.errors import UpgradeError
from minicaffe.proto import caffe_pb2

from .generations import V0_FIELDS, V0_SAME, V0_TYPES

Warn = Callable[[str, int], None]
"""Reports a message about the block with an index."""


def is_v0(net: caffe_pb2.NetParameter) -> bool:
    return any(layer.HasField("layer") for layer in net.layers)


def v0_to_v1(net: caffe_pb2.NetParameter, warn: Warn) -> list[int]:
    """Fold padding layers, then convert each V0 layer of net to V1; returns the previous index of each layer."""
    old = list(net.layers)
    origins = fold_padding(old)
    layers = [_layer(old[i], i, warn) if old[i].HasField("layer") else old[i] for i in origins]
    new = caffe_pb2.NetParameter(layers=layers)
    del net.layers[:]
    net.layers.extend(new.layers)
    return origins


def fold_padding(layers: Sequence[caffe_pb2.V1LayerParameter]) -> list[int]:
    """Move the pad of each padding layer to the convolution or pooling that reads it; returns the other layers' indices."""
    padding_top: dict[str, caffe_pb2.V1LayerParameter | None] = {}
    for i, layer in enumerate(layers):
        for j, name in enumerate(layer.bottom):
            padding = padding_top.get(name)
            if padding is None:
                continue
            own, pad = layer.layer, padding.layer
            if own.type not in ("conv", "pool") or len(layer.bottom) != 1:
                raise UpgradeError(f'"{own.name}" reads padding layer "{pad.name}": only conv and pool with one bottom can', i)
            if len(padding.bottom) != 1 or len(padding.top) != 1:
                raise UpgradeError(f'padding layer "{pad.name}" must have one bottom and one top', i)
            own.pad = pad.pad
            layer.bottom[j] = padding.bottom[0]
        padding_top.update(dict.fromkeys(layer.top, layer if layer.layer.type == "padding" else None))
    return [i for i, layer in enumerate(layers) if layer.layer.type != "padding"]


def _layer(connection: caffe_pb2.V1LayerParameter, index: int, warn: Warn) -> caffe_pb2.V1LayerParameter:
    """A V0 layer as V1: bottoms and tops from the connection, the rest from its inner layer by generations.V0_FIELDS."""
    old = connection.layer
    if old.HasField("type") and old.type not in V0_TYPES:
        raise UpgradeError(f'"{old.name}": V0 has no layer type "{old.type}"', index, "it is one of " + ", ".join(V0_TYPES))
    new = caffe_pb2.V1LayerParameter(
        bottom=connection.bottom, top=connection.top, blobs=old.blobs, blobs_lr=old.blobs_lr, weight_decay=old.weight_decay
    )
    if old.HasField("name"):
        new.name = old.name
    if old.HasField("type"):
        new.type = caffe_pb2.V1LayerParameter.LayerType.Value(V0_TYPES[old.type])
    for descriptor, value in old.ListFields():
        if descriptor.name in V0_SAME:
            continue
        homes = V0_FIELDS.get(descriptor.name, {})
        path = homes.get("*") or homes.get(old.type)
        if path:
            _put(new, path, value)
        else:
            warn(f'V0 layer "{old.name}" of type "{old.type}" does not use {descriptor.name}; dropped', index)
    return new


def _put(message: Any, path: str, value: Any) -> None:
    """Set the field at a dotted path, append to it if it is repeated, or copy a message into it."""
    *blocks, name = path.split(".")
    for block in blocks:
        message = getattr(message, block)
    present = getattr(message, name)
    if hasattr(present, "CopyFrom"):
        present.CopyFrom(value)
    elif hasattr(present, "append"):
        present.append(value)
    else:
        setattr(message, name, value)
