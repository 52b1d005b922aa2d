"""Pooling and SPP as MaxPool and AveragePool.

With ceil_mode these have Caffe's windows: the last one may reach past the map, and is dropped if it would start in the padding
at the end. A separate node pads the map in three cases: ONNX drops a window that Caffe keeps (the stride exceeds the kernel);
ONNX's shape inference, unlike its runtime, keeps one that Caffe drops (a map of fixed size, the last window in the padding);
means over padding, whose divisor counts it up to H + pad: onnxruntime before 1.29 counted the whole kernel for
count_include_pad with ceil_mode.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from minicaffe.layers.pool.pooling import AVE, MAX, Pooling
from minicaffe.layers.pool.pooling_windows import PoolAxis
from minicaffe.layers.pool.spp import SPP
from minicaffe.layers.roi.roi_geometry import LOWEST
from minicaffe.registry import exports

from .graph import Dims, Graph, Value

NO_END = 2**40
"""Added to a size that is no bound."""


@exports(Pooling)
def pooling(g: Graph, layer: Pooling, bottom: list[Value], top: list[Dims]) -> list[str]:
    x, axes = bottom[0], _axes(layer, bottom[0])
    if layer.method not in (MAX, AVE):
        raise layer.error("STOCHASTIC pooling has no ONNX form", "pooling_param.pool")
    if layer.param.pooling_param.global_pooling:
        if len(top) > 1:
            raise layer.error("the mask of global pooling has no ONNX form", "top[1]")
        return [g("GlobalMaxPool" if layer.method == MAX else "GlobalAveragePool", x)]
    # Caffe's divisor counts padding, but not what ceil adds behind it; ONNX has no such mode.
    padded_mean = layer.method == AVE and layer.counts_padding and any(a.pad and not a.floor for a in axes)
    if padded_mean or any(_needs_padding(a, length) for a, length in zip(axes, x.dims[2:])):
        return _padded(g, layer, x, len(top))
    if layer.method == AVE:
        counts_padding = int(axes[0].floor and layer.counts_padding)
        return [g("AveragePool", x, count_include_pad=counts_padding, **_window(axes, ceil=not axes[0].floor))]
    window = _window(axes, ceil=not axes[0].floor)
    if len(top) == 1:
        return [g("MaxPool", x, **window)]
    y, index = g.several("MaxPool", 2, x, **window)
    # ONNX's index is flat over N and C too
    return [y, g.cast(g("Mod", index, g("Mul", g.number(x, 2), g.number(x, 3))), np.float32)]


def _axes(layer: Pooling, x: Value) -> tuple[PoolAxis, ...]:
    """The windows on both axes. The layer clips a stride that exceeds its map; a dynamic axis may be longer."""
    axes = (layer.rows, layer.columns)
    return tuple(
        a if isinstance(length, int) else replace(a, stride=stride)
        for a, length, stride in zip(axes, x.dims[2:], layer.sizes[1])
    )


def _needs_padding(axis: PoolAxis, length: int | str) -> bool:
    room = axis.size + 2 * axis.pad - axis.kernel
    left_out = axis.pooled <= -(-room // axis.stride) and not axis.floor  # Caffe left out a window that ONNX's ceil_mode has
    return (axis.stride > axis.kernel and not axis.clip and not axis.floor) or (isinstance(length, int) and left_out)


def _window(axes: tuple[PoolAxis, ...], *, ceil: bool) -> dict[str, Any]:
    kernel, stride, pad = ([getattr(a, what) for a in axes] for what in ("kernel", "stride", "pad"))
    return {"kernel_shape": kernel, "strides": stride, "pads": pad * 2, "ceil_mode": int(ceil)}


def _padded(g: Graph, layer: Pooling, x: Value, tops: int) -> list[str]:
    """Pooling of the map padded up to the end of the last window."""
    if tops > 1:
        raise layer.error("the mask of windows on a padded map has no ONNX form", "top[1]")
    axes = _axes(layer, x)
    kernel, stride, pad = (np.array([getattr(a, what) for a in axes]) for what in ("kernel", "stride", "pad"))
    room = g("Add", g.shape(x, 2), 2 * pad - kernel)
    # Caffe, if padded: the last window begins on the map or in the first pad
    most = g("Div", g("Add", g.shape(x, 2), pad - 1 + NO_END * (not pad.any())), stride)
    steps = g("Min", g("Div", g("Add", room, stride - 1), stride), most)  # Div rounds to 0: the room is >= 1 - stride
    past = g("Sub", g("Add", g("Mul", steps, stride), kernel), g("Add", g.shape(x, 2), pad))
    ends = g("Concat", [0, 0, *pad.tolist(), 0, 0], g("Max", past, np.zeros(2, np.int64)), axis=0)
    window = {"kernel_shape": kernel.tolist(), "strides": stride.tolist()}
    if layer.method == MAX:
        return [g("MaxPool", g("Pad", x, ends, np.float32(LOWEST)), **window)]  # LOWEST never wins, as in Caffe
    # what counts are ones: the map with or without its padding; beyond it nothing does
    counted = pad * layer.counts_padding
    ones = g("Expand", 1.0, g("Concat", [1, 1], g("Add", g.shape(x, 2), 2 * counted), axis=0))
    beyond = g("Sub", ends, np.array([0, 0, *counted, 0, 0, *counted]))
    divisor = g("AveragePool", g("Pad", ones, g("Max", beyond, np.zeros(8, np.int64))), **window)
    return [g("Div", g("AveragePool", g("Pad", x, ends), **window), divisor)]  # sum / size over count / size


@exports(SPP)
def spp(g: Graph, layer: SPP, bottom: list[Value], top: list[Dims]) -> list[str]:
    """The pooling of each level, flattened and concatenated, for the map size of the net."""
    levels = [pooling(g, level, bottom, [top[0]])[0] for level, _ in layer.levels]
    if len(levels) == 1:
        return levels
    return [g("Concat", *(g("Flatten", y, axis=1) for y in levels), axis=1)]
