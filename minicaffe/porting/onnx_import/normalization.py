"""BatchNormalization as BatchNorm and Scale; LRN, Softmax and LogSoftmax."""

from __future__ import annotations

import math

import numpy as np

from .builder import Builder, imports, refuse_others
from .node import Node, RefusedError


@imports("BatchNormalization")
def batch_norm(b: Builder, node: Node) -> list[str]:
    """Its stored statistics, and a Scale unless that would change nothing."""
    refuse_others(node, training_mode=0)
    scale, bias, mean, variance = (b.weight(name) for name in node.inputs[1:5])
    x = b.blob(node.inputs[0])
    arrays = [mean, variance, np.ones(1, np.float32)]
    y = b("BatchNorm", [x], arrays, use_global_stats=True, eps=node.get("epsilon", 1e-5))
    if (scale == 1).all() and (bias == 0).all():
        return [y]
    return [b("Scale", [y], [scale, bias], bias_term=True)]


@imports("LRN")
def lrn(b: Builder, node: Node) -> list[str]:
    size = node.attributes["size"]
    if size % 2 == 0:
        raise RefusedError(f"size = {size} (LRN's is odd)")
    given = {name: node.get(name, default) for name, default in (("alpha", 1e-4), ("beta", 0.75))}
    return [b("LRN", [b.blob(node.inputs[0])], local_size=size, k=node.get("bias", 1.0), **given)]


@imports("Softmax", "LogSoftmax")
def softmax(b: Builder, node: Node) -> list[str]:
    """Before opset 13 over all axes from `axis` on, which Caffe's is if those after it have length 1."""
    shape, before = b.shape(node.inputs[0]), b.graph.opset < 13
    axis = node.get("axis", 1 if before else -1) % len(shape)
    if before and math.prod(shape[axis + 1 :]) != 1:
        raise RefusedError(f"opset {b.graph.opset} takes it over all axes from {axis} on, Caffe over axis {axis}")
    y = b("Softmax", [b.blob(node.inputs[0])], axis=axis)
    return [b("Log", [y]) if node.op == "LogSoftmax" else y]
