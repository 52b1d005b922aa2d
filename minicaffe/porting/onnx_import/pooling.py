"""MaxPool and AveragePool as Pooling: with Caffe's windows, rounded up or down, or with a part of them cut off.

A window's pixels and divisor are compared with ONNX's, so that a Pooling layer stands only where it computes the same.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.layers.pool.pooling_windows import PoolAxis
from minicaffe.proto import caffe_pb2

from .builder import Builder, imports, refuse_others
from .node import Node, RefusedError
from .windows import Windows, pool_windows

AVE, MAX = caffe_pb2.PoolingParameter.AVE, caffe_pb2.PoolingParameter.MAX


@imports("GlobalAveragePool", "GlobalMaxPool")
def global_pool(b: Builder, node: Node) -> list[str]:
    if len(b.shape(node.inputs[0])) != 4:
        raise RefusedError(f"x of shape {b.shape(node.inputs[0])} (Pooling has maps)")
    kind = AVE if node.op == "GlobalAveragePool" else MAX
    return [b("Pooling", [b.blob(node.inputs[0])], pool=kind, global_pooling=True)]


@imports("MaxPool", "AveragePool")
def pool(b: Builder, node: Node) -> list[str]:
    shape, kernel = b.shape(node.inputs[0]), list(node.get("kernel_shape", []))
    if len(shape) != 4:
        raise RefusedError(f"x of shape {shape} (Pooling has maps)")
    if len(node.outputs) > 1 and node.outputs[1] in b.read:
        raise RefusedError("its indices count over the whole batch")
    refuse_others(node, dilations=[1, 1])
    if node.get("ceil_mode", 0):
        refuse_others(node, auto_pad="NOTSET")
    wanted = pool_windows(node, shape[2:])
    floor, counted = _matching(wanted, average=node.op == "AveragePool")
    axes = _caffes(wanted, floor)
    sizes = {"kernel": kernel, "stride": [w.stride for w in wanted], "pad": [w.begin for w in wanted]}
    fields: dict[str, Any] = {name: size for what, pair in sizes.items() for name, size in _both(what, pair).items()}
    pooled = b(
        "Pooling",
        [b.blob(node.inputs[0])],
        pool=AVE if node.op == "AveragePool" else MAX,
        round_mode=caffe_pb2.PoolingParameter.FLOOR if floor else None,
        avg_include_pad=None if counted else False,
        **fields,
    )
    made = (*shape[:2], *(axis.pooled for axis in axes))
    for i, windows in enumerate(wanted):  # those that Caffe has beyond ONNX's
        pooled = b.cut(pooled, made, i + 2, 0, windows.count)
        made = (*made[: i + 2], windows.count, *made[i + 3 :])
    return [pooled]


def _caffes(wanted: list[Windows], floor: bool) -> list[PoolAxis]:
    padded = any(w.begin for w in wanted)
    return [PoolAxis(w.size, w.kernel, w.stride, w.begin, floor, clip=padded) for w in wanted]


def _matching(wanted: list[Windows], *, average: bool) -> tuple[bool, bool]:
    """Whether Caffe's windows are rounded down, and whether its average counts padding. Raises RefusedError."""
    exact = [f for f in (False, True) if all(a.pooled == w.count for a, w in zip(_caffes(wanted, f), wanted))]
    enough = [f for f in (False, True) if all(a.pooled >= w.count for a, w in zip(_caffes(wanted, f), wanted))]
    for floor in [*exact, *enough]:
        axes = _caffes(wanted, floor)
        for counted in (True, False):
            if not average or all(
                np.array_equal(_divisors(replace(a, counts_padding=counted), w.count), w.divisors())
                for a, w in zip(axes, wanted)
            ):
                return floor, counted
    pads = [(w.begin, w.end) for w in wanted]
    raise RefusedError(
        f"pads {pads} before and after a map of {' x '.join(str(w.size) for w in wanted)}: Caffe's windows differ"
    )


def _divisors(axis: PoolAxis, count: int) -> NDArray[np.intp]:
    start = np.arange(count) * axis.stride - axis.pad
    if axis.counts_padding:
        return np.minimum(start + axis.kernel, axis.size + axis.pad) - start
    return np.minimum(start + axis.kernel, axis.size) - np.maximum(start, 0)


def _both(name: str, numbers: list[int]) -> dict[str, int]:
    """A size of a pooling_param, once or for each axis."""
    if numbers[0] != numbers[1]:
        return {f"{name}_h": numbers[0], f"{name}_w": numbers[1]}
    return {} if numbers[0] == {"stride": 1, "pad": 0}.get(name) else {"kernel_size" if name == "kernel" else name: numbers[0]}
