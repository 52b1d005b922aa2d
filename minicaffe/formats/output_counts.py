"""Where a layer of a prototxt says how many outputs it has: what its class knows, by its LayerParameter."""

from __future__ import annotations

from typing import Any

from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of


def linear_block(layer: caffe_pb2.LayerParameter) -> str:
    """The block with the num_output of a layer that multiplies by weights; "" of any other."""
    kind = class_of(layer)
    return kind.param_block[0] if kind.linear else ""


def outputs_field(layer: caffe_pb2.LayerParameter) -> str:
    """ "block.field" with a layer's number of outputs: num_output, or output_dim where its bottom has group_size^2 channels
    for each; "" of a layer that does not number them."""
    if class_of(layer).position_sensitive:
        return f"{class_of(layer).param_block[0]}.output_dim"
    return f"{linear_block(layer)}.num_output" if linear_block(layer) else ""


def outputs_of(layer: caffe_pb2.LayerParameter) -> int:
    """The number of outputs of a layer that has an outputs_field."""
    block, _, name = outputs_field(layer).partition(".")
    return int(getattr(getattr(layer, block), name))


def group_cells(layer: caffe_pb2.LayerParameter) -> int:
    """group_size^2 of a position-sensitive layer."""
    block: Any = getattr(layer, class_of(layer).param_block[0])
    return int(block.group_size) ** 2
