"""MaxPool and AveragePool as Pooling: with Caffe's windows, rounded up or down, or with a part of them cut off.

A window's pixels and divisor are compared with ONNX's, so that a Pooling layer stands only where it computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.layers.pool.pooling_windows import PoolAxis
from minicaffe.proto import caffe_pb2

from .builder import Builder, RefusedError, imports, refuse_others
from .graph import Node
from .products import pads_of

AVE, MAX = caffe_pb2.PoolingParameter.AVE, caffe_pb2.PoolingParameter.MAX


@imports("GlobalAveragePool", "GlobalMaxPool")
def global_pool(b: Builder, node: Node) -> list[str]:
    if len(b.shape(node.inputs[0])) != 4:
        raise RefusedError(f"x of shape {b.shape(node.inputs[0])} (Pooling has maps)")
    kind = AVE if node.op == "GlobalAveragePool" else MAX
    return [b("Pooling", [b.blob(node.inputs[0])], pool=kind, global_pooling=True)]


@imports("MaxPool", "AveragePool")
def pool(b: Builder, node: Node) -> list[str]:
    shape, kernel = b.shape(node.inputs[0]), list(node.attributes["kernel_shape"])
    if len(shape) != 4:
        raise RefusedError(f"x of shape {shape} (Pooling has maps)")
    if len(node.outputs) > 1 and node.outputs[1] in {*b.graph.outputs, *b.graph.readers()}:
        raise RefusedError("its indices count over the whole batch")
    refuse_others(node, dilations=[1, 1])
    stride = list(node.get("strides", [1, 1]))
    begin, end = pads_of(node, shape[2:], kernel, stride)
    up, counts = bool(node.get("ceil_mode", 0)), bool(node.get("count_include_pad", 0))
    wanted = [_Windows(*sizes, up, counts) for sizes in zip(shape[2:], kernel, stride, begin, end, strict=True)]
    floor, counted = _matching(wanted, average=node.op == "AveragePool")
    axes = _caffes(wanted, floor)
    fields: dict[str, Any] = _both("kernel", kernel, 0) | _both("stride", stride, 1) | _both("pad", begin, 0)
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


@dataclass(frozen=True)
class _Windows:
    """ONNX's windows on one axis. up: their number is rounded up; counts: an average counts padding."""

    size: int
    kernel: int
    stride: int
    begin: int
    end: int
    up: bool
    counts: bool

    @property
    def count(self) -> int:
        room = self.size + self.begin + self.end - self.kernel
        count = (-(-room // self.stride) if self.up else room // self.stride) + 1
        return count - (self.up and (count - 1) * self.stride >= self.size + self.begin)  # less one that starts in the padding

    def divisors(self) -> NDArray[np.intp]:
        """The pixels that count in each window (count,)."""
        start = np.arange(self.count) * self.stride - self.begin
        last, first = (self.size + self.end, -self.begin) if self.counts else (self.size, 0)
        return np.minimum(start + self.kernel, last) - np.maximum(start, first)


def _caffes(wanted: list[_Windows], floor: bool) -> list[PoolAxis]:
    padded = any(w.begin for w in wanted)
    return [PoolAxis(w.size, w.kernel, w.stride, w.begin, floor, clip=padded) for w in wanted]


def _matching(wanted: list[_Windows], *, average: bool) -> tuple[bool, bool]:
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


def _both(name: str, numbers: list[int], default: int) -> dict[str, int]:
    """A size of a pooling_param, once or for each axis."""
    if numbers[0] != numbers[1]:
        return {f"{name}_h": numbers[0], f"{name}_w": numbers[1]}
    return {} if numbers[0] == default else {"kernel_size" if name == "kernel" else name: numbers[0]}
