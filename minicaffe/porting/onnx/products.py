"""Convolution, Deconvolution, InnerProduct and Embed as Conv, ConvTranspose, Gemm and Gather."""

from __future__ import annotations

import numpy as np

from minicaffe.layers.conv.convolution import Convolution, DepthwiseConvolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.inner_product import Embed, InnerProduct
from minicaffe.layers.forks.deepdetect import SparseInnerProduct
from minicaffe.registry import exports

from .graph import Dims, Graph, Value

MOST_AXES = 3
"""The most spatial axes that onnxruntime convolves over."""


@exports(Convolution, DepthwiseConvolution, Deconvolution)
def convolution(g: Graph, layer: Convolution, bottom: list[Value], top: list[Dims]) -> list[str]:
    """One Conv or ConvTranspose per bottom; the axes before the channels are flattened before it and restored after it."""
    if layer.spatial_axes > MOST_AXES:
        raise layer.error(f"onnxruntime convolves over {MOST_AXES} axes at most, this layer has {layer.spatial_axes}")
    return [_convolved(g, layer, x, dims) for x, dims in zip(bottom, top, strict=True)]


def _convolved(g: Graph, layer: Convolution, x: Value, dims: Dims) -> str:
    window, axis = layer.window, layer.axis
    flat: str | Value = x
    if axis != 1:
        flat = g.reshape(x, [-1], g.shape(x, axis))
    if not layer.spatial_axes:
        flat = g("Unsqueeze", flat, [2])  # Conv wants at least one spatial axis
    y = g(
        "ConvTranspose" if isinstance(layer, Deconvolution) else "Conv",
        flat,
        g.weight(layer, 0, (*layer.blobs[0].shape[:2], *window.kernel)),
        g.weight(layer, 1) if len(layer.blobs) > 1 else None,
        kernel_shape=list(window.kernel),
        strides=list(window.stride),
        pads=[*window.pad, *window.pad],
        dilations=list(window.dilation),
        group=layer.group,
    )
    if not layer.spatial_axes:
        y = g("Squeeze", y, [2])
    if axis != 1:
        y = g.reshape(y, g.shape(x, 0, axis), g("Shape", y, start=1))
    return y


@exports(InnerProduct, SparseInnerProduct)
def inner_product(g: Graph, layer: InnerProduct, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Flatten and Gemm; the axes before layer.axis are restored."""
    x, axis = bottom[0], layer.axis
    rows = x if x.rank == 2 and axis == 1 else g("Flatten", x, axis=axis)
    bias = g.weight(layer, 1) if len(layer.blobs) > 1 else None
    weight = layer.scaled(layer.blobs[0].read_data()) if layer.normalize else g.weight(layer, 0)
    y = g("Gemm", rows, weight, bias, transB=0 if layer.transpose else 1)
    if axis != 1:
        y = g.reshape(y, g.shape(x, 0, axis), [layer.param.inner_product_param.num_output])
    return [y]


@exports(Embed)
def embed(g: Graph, layer: Embed, bottom: list[Value], top: list[Dims]) -> list[str]:
    y = g("Gather", g.weight(layer, 0), g.cast(bottom[0], np.int64), axis=0)
    return [g("Add", y, g.weight(layer, 1)) if len(layer.blobs) > 1 else y]
