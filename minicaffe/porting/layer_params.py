"""Edits of layer parameters that several tools make."""

from __future__ import annotations

from collections.abc import Iterable

from minicaffe.proto import caffe_pb2


def input_layer(name: str, shape: Iterable[int], *, top: str) -> caffe_pb2.LayerParameter:
    """An Input layer with one top."""
    block = caffe_pb2.InputParameter(shape=[caffe_pb2.BlobShape(dim=shape)])
    return caffe_pb2.LayerParameter(name=name, type="Input", top=[top], input_param=block)


def clear_fillers(layer: caffe_pb2.LayerParameter) -> None:
    """Remove the fillers of a layer whose weights are copied in."""
    for descriptor, block in layer.ListFields():
        for filler in ("weight_filler", "bias_filler", "filler"):
            if descriptor.message_type and filler in descriptor.message_type.fields_by_name:
                block.ClearField(filler)
