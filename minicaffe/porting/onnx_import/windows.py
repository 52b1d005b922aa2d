"""ONNX's windows: how many there are on an axis, and the pixels that an average counts in each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .node import Node, RefusedError, Shape


@dataclass(frozen=True)
class Windows:
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


def pads_of(node: Node, size: Shape, kernel: list[int], stride: list[int]) -> tuple[list[int], list[int]]:
    """Padding at the start and at the end of each axis. kernel: as far as it reaches, dilated."""
    auto, axes = node.get("auto_pad", "NOTSET"), len(kernel)
    if auto in ("NOTSET", ""):
        pads = list(node.get("pads", [0] * 2 * axes))
        return pads[:axes], pads[axes:]
    if auto == "VALID":
        return [0] * axes, [0] * axes
    whole = [(-(-n // s) - 1) * s + k - n for n, k, s in zip(size, kernel, stride)]
    if min(whole) < -1:  # runtimes disagree
        raise RefusedError(f"auto_pad = {auto} with a kernel of {kernel} and strides {stride} on a map of {size}")
    whole = [max(p, 0) for p in whole]
    less, more = [p // 2 for p in whole], [p - p // 2 for p in whole]
    return (less, more) if auto == "SAME_UPPER" else (more, less)


def pool_windows(node: Node, size: Shape) -> list[Windows]:
    """Of a MaxPool or AveragePool over maps of this height and width."""
    kernel, axes = node.attributes["kernel_shape"], len(size)
    stride, dilation = (list(node.get(name, [1] * axes)) for name in ("strides", "dilations"))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    begin, end = pads_of(node, size, reach, stride)
    up, counts = bool(node.get("ceil_mode", 0)), bool(node.get("count_include_pad", 0))
    return [Windows(*sizes, up, counts) for sizes in zip(size, reach, stride, begin, end, strict=True)]
