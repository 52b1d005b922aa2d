"""Conv, ConvTranspose, Gemm and MatMul as Convolution, Deconvolution and InnerProduct.

Caffe pads both ends alike. Where a node does not, zeros are added to the kernel on the side with less padding: the same sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minicaffe.blob import Array

from .builder import Builder, imports, refuse_others
from .node import Node, RefusedError
from .windows import pads_of

PER_AXIS = "strides", "dilations"


def one_or_all(numbers: list[int], default: int) -> list[int] | None:
    """A repeated field: left out if all are the default, once if all are equal."""
    if set(numbers) == {default}:
        return None
    return numbers[:1] if len(set(numbers)) == 1 else numbers


@imports("Conv")
def conv(b: Builder, node: Node) -> list[str]:
    weight, size = b.weight(node.inputs[1]), b.shape(node.inputs[0])[2:]
    stride, dilation = (list(node.get(name, [1] * len(size))) for name in PER_AXIS)
    reach = [(k - 1) * d + 1 for k, d in zip(weight.shape[2:], dilation)]
    begin, end = pads_of(node, size, reach, stride)
    if min(begin + end) < 0:
        raise RefusedError(f"negative pads {begin + end}")
    more = [e - s for s, e in zip(begin, end)]
    if any(m % d for m, d in zip(more, dilation)):
        raise RefusedError(f"pads {begin} before and {end} after a map, with dilations {dilation} (Caffe pads both ends alike)")
    zeros = [(max(m, 0) // d, max(-m, 0) // d) for m, d in zip(more, dilation)]
    weight = np.pad(weight, [(0, 0), (0, 0), *zeros])
    pad = [max(s, e) for s, e in zip(begin, end)]
    return [_convolution(b, "Convolution", node, weight, {"stride": stride, "pad": pad, "dilation": dilation})]


@imports("ConvTranspose")
def conv_transpose(b: Builder, node: Node) -> list[str]:
    weight, size = b.weight(node.inputs[1]), b.shape(node.inputs[0])[2:]
    stride, dilation = (list(node.get(name, [1] * len(size))) for name in PER_AXIS)
    if node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or "output_shape" in node.attributes:
        raise RefusedError("auto_pad or output_shape: export the model with explicit pads")
    pads = list(node.get("pads", [0] * 2 * len(size)))
    added = node.get("output_padding", [0] * len(size))
    begin, end = pads[: len(size)], [e - more for e, more in zip(pads[len(size) :], added)]
    less = [s - e for s, e in zip(begin, end)]  # so much of the end is not cut off
    if any(m % d for m, d in zip(less, dilation)) or min(max(s, e) for s, e in zip(begin, end)) < 0:
        raise RefusedError(f"pads {begin} before and {end} after a map (Caffe cuts off both ends alike)")
    zeros = [(max(-m, 0) // d, max(m, 0) // d) for m, d in zip(less, dilation)]
    pad = [max(s, e) for s, e in zip(begin, end)]
    weight = np.pad(weight, [(0, 0), (0, 0), *zeros])
    return [_convolution(b, "Deconvolution", node, weight, {"stride": stride, "pad": pad, "dilation": dilation})]


def _convolution(b: Builder, kind: str, node: Node, weight: Array, window: Mapping[str, list[int]]) -> str:
    group = node.get("group", 1)
    channels = weight.shape[0] if kind == "Convolution" else weight.shape[1] * group
    fields: dict[str, Any] = {name: one_or_all(numbers, int(name != "pad")) for name, numbers in window.items()}
    fields |= {"num_output": channels, "kernel_size": one_or_all(list(weight.shape[2:]), 0)}
    fields |= {"bias_term": None if node.input(2) else False, "group": group if group > 1 else None}
    return b(kind, [b.blob(node.inputs[0])], _with_bias(b, node, weight, channels), **fields)


def _with_bias(b: Builder, node: Node, weight: Array, outputs: int, factor: float = 1.0) -> list[Array]:
    """The weight, and input 2 as a vector with one number for each output."""
    if not node.input(2):
        return [weight]
    bias = b.weight(node.inputs[2]) * np.float32(factor)
    if bias.size not in (1, outputs) or bias.shape[-1:] not in ((), (1,), (outputs,)):
        raise RefusedError(f"a bias of shape {bias.shape} for {outputs} outputs")
    return [weight, np.broadcast_to(bias.reshape(-1), (outputs,))]


@imports("Gemm")
def gemm(b: Builder, node: Node) -> list[str]:
    refuse_others(node, transA=0)
    weight = b.weight(node.inputs[1]) * np.float32(node.get("alpha", 1.0))
    weight = weight if node.get("transB", 0) else weight.T
    arrays = _with_bias(b, node, weight, len(weight), node.get("beta", 1.0))
    bias = None if len(arrays) > 1 else False
    return [b("InnerProduct", [b.blob(node.inputs[0])], arrays, num_output=len(weight), bias_term=bias)]


@imports("MatMul", "minicaffe.InnerProduct")
def matmul(b: Builder, node: Node) -> list[str]:
    """x times a constant matrix, and a bias that a following Add has."""
    weight, rank = b.weight(node.inputs[1]), len(b.shape(node.inputs[0]))
    if weight.ndim != 2 or rank < 2:
        raise RefusedError(f"a constant of shape {weight.shape} (InnerProduct has a matrix)")
    arrays = _with_bias(b, node, weight.T, weight.shape[1])
    fields = {"num_output": weight.shape[1], "bias_term": None if len(arrays) > 1 else False}
    return [b("InnerProduct", [b.blob(node.inputs[0])], arrays, axis=rank - 1 if rank > 2 else None, **fields)]
